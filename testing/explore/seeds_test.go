package explore

import (
	"strings"
	"testing"

	"twok/internal/failover"
)

// Every seed is reached by its moves, and says what its name says.
//
// Rules: none (the explorer itself).
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
			if !w.Apply(m) || w.Broken() {
				t.Fatalf("%s: %s: %s", s.name, m, w)
			}
		}
		a, b := &w.Sites[0].S, &w.Sites[1].S
		want := map[string][2]failover.Phase{
			"new": {failover.Starting, failover.Starting}, "whole": {failover.Leading, failover.Following}, "alone": {failover.Alone, failover.Following},
			"lost": {failover.Alone, failover.Following}, "learner": {failover.Alone, failover.CatchingUp}, "promoting": {failover.Alone, failover.Promoting},
			"returned": {failover.Alone, failover.Following}, "again": {failover.Leading, failover.Following}, "late": {failover.Leading, failover.CatchingUp}, "dangling": {failover.Starting, failover.Following},
		}[s.name]
		if got := [2]failover.Phase{a.Phase, b.Phase}; got != want {
			t.Errorf("%s: %v, want %v", s.name, got, want)
		}
	}
}
