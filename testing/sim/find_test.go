package sim

import (
	"testing"
)

func TestFind(t *testing.T) {
	for name, off := range map[string]Off{
		"A0": {A0: true}, "applied": {TokenApplied: true}, "anyone": {TokenAnyone: true}, "redial": {TokenRedial: true}, "port": {Port: true}, "redialPort": {TokenRedial: true, Port: true}, "pair": {Pair: true}, "term": {NextTerm: true},
	} {
		bad := 0
		n := *flagRuns
		for seed := uint64(1); seed <= uint64(n); seed++ {
			s := draw(seed, 200)
			if name == "anyone" {
				s.start = learning
			}
			r := run(s, off, nil, nil)
			if len(r.violations) > 0 {
				if bad < 2 {
					t.Logf("%s seed %d: %s", name, seed, r.violations[0])
				}
				bad++
			}
		}
		t.Logf("%s: %d of %d", name, bad, n)
	}
}
