package failover

import (
	"testing"

	"twok/arbiter"
)

// A return that fails for a lasting reason, a full disk say, is tried ever more rarely: each attempt adds and removes a learner at the
// survivor, whose ID etcd keeps among the removed ones for ever. When there is room the member returns.
//
// Rules: P12; F31.
func TestReturnThatFails(t *testing.T) {
	s := representative(Lost)
	adds, rewrites, left, full := 0, 0, uint64(0), DiskFull
	run := func(ticks int) {
		for range ticks {
			var pending []Action
			s, pending = Step(s, tickOf(obsOf(EtcdNoLeader)))
			for len(pending) > 0 {
				a := pending[0]
				e := Event{Kind: a.Kind.Reply(), Outcome: Done}
				switch a.Kind {
				case ReadRecord:
					e = readOf(edited(recordOf(idB, "theirs"), func(r *arbiter.Record) { r.Confirmed = arbiter.Position{Index: 110, Term: 6} }))
				case LookAtList:
					e.List = joinable()
					e.List.Leftover = left
				case AddLearner:
					adds++
					left = uint64(1000 + adds)
					e.ID = left
				case RemoveLearner:
					left = 0
				case ReadData:
					e.Data, e.Why = baseData(), full
				case Rewrite:
					rewrites++
					return
				}
				var acts []Action
				s, acts = Step(s, e)
				pending = append(pending[1:], acts...)
			}
		}
	}
	run(1200)
	if adds < 10 || adds > 20 || rewrites != 0 {
		t.Errorf("%d learners were added, %d logs rewritten", adds, rewrites)
	}
	full = None
	run(110)
	if rewrites != 1 {
		t.Errorf("with room: %s/%s", s.Phase, s.Why)
	}
}

// How long a return that failed is not tried again: a quarter of MinRun, doubled each time, MaxRun at most.
//
// Rules: P12.
func TestReturnWaits(t *testing.T) {
	for _, c := range []struct {
		min, most, want uint32
		level, next     uint8
	}{
		{12, 100, 3, 0, 1}, {12, 100, 6, 1, 2}, {12, 100, 96, 5, 6}, {12, 100, 100, 6, 7},
		{4, 1 << 17, 1 << 15, 15, 16}, {4, 1 << 17, 1 << 16, 16, 16},
		{1 << 20, 1 << 30, 1 << 30, 16, 16}, // no overflow
	} {
		s := representative(Preparing)
		s.P.MinRun, s.P.MaxRun, s.StopLevel, s.Site = c.min, c.most, c.level, ReadData
		s, _ = Step(s, Event{Kind: DataRead, Outcome: Done, Data: baseData(), Why: DiskFull})
		if s.JoinWait != c.want || s.StopLevel != c.next {
			t.Errorf("%+v: wait %d, level %d", c, s.JoinWait, s.StopLevel)
		}
	}
}
