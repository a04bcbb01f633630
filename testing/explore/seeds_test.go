package explore

import (
	"strings"
	"testing"
)

func TestSeeds(t *testing.T) {
	for _, s := range seeds {
		w, err := Seed(s.from, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(s.moves, ";") {
			if l == "" {
				continue
			}
			m, err := ParseMove(l)
			if err != nil {
				t.Fatal(err)
			}
			ok := w.Apply(m)
			t.Log(s.name, m, ok, w)
			if !ok {
				t.Fatal()
			}
		}
	}
}
