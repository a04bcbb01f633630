package failover

import "testing"

// What could not be tidied up stays until the next generation. A whole pair is not busy with it at each tick: reading the WAL for it takes
// the place of the token's renewal (P5, P14).
//
// Rules: P14.
func TestTidyThatFails(t *testing.T) {
	s := representative(Following)
	tick := func(s State) (State, int) {
		s.Site = NoAction
		n := 0
		s, acts := Step(s, tickOf(edited(obsOf(EtcdLed), func(o *Obs) { o.Leader = idB })))
		for _, a := range acts {
			if a.Kind == Tidy {
				n++
			}
		}
		return s, n
	}
	s.Rec.WholeGeneration = s.Rec.Generation
	s, n := tick(s)
	if n != 1 {
		t.Fatalf("%d times at first", n)
	}
	for _, outcome := range []Outcome{Failed, Unknown} {
		after, _ := Step(s, Event{Kind: Tidied, Outcome: outcome})
		if _, n = tick(after); n != 0 {
			t.Errorf("%v: again with the next tick", outcome)
		}
	}
	s, _ = Step(s, Event{Kind: Tidied, Outcome: Failed})
	s.Rec.Generation, s.Rec.WholeGeneration = s.Rec.Generation+1, s.Rec.Generation+1
	s.Tok.Generation, s.Obs.Token.Generation = s.Rec.Generation, s.Rec.Generation
	s.Site = NoAction
	s.Seen = s.Rec.Generation
	_, acts := Step(s, tickOf(s.Obs))
	if len(acts) == 0 || acts[len(acts)-1].Kind != Tidy {
		t.Errorf("in the next generation: %v", acts)
	}
}
