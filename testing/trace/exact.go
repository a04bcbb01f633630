package trace

import (
	"fmt"
	"slices"

	"twok/internal/failover"
)

// replay gives the core the events of one line, ticks in two parts as Line.Quiet says.
func replay(s failover.State, l *Line, step func(failover.State, failover.Event) (failover.State, []failover.Action)) (failover.State, []failover.Action) {
	var all []failover.Action
	e := l.In.Event
	if e.Kind != failover.Tick {
		return step(s, e)
	}
	for k, n := range []uint32{l.Ticks - l.Quiet, l.Quiet} {
		if n > 0 {
			var acts []failover.Action
			e.Ticks, e.Obs.Contact = n, k == 0
			s, acts = step(s, e)
			all = append(all, acts...)
		}
	}
	return s, all
}

// exact makes each step of both agents again, with the values of the trace: the program does
// what its core says, and the trace leaves nothing out.
func exact(ls []Line) error {
	var s [2]failover.State
	var alive [2]bool
	for n := range ls {
		l := &ls[n]
		if l.Edit != nil {
			continue
		}
		if l.Start != nil {
			alive[l.Site] = true
			s[l.Site] = failover.New(l.Start.Params, l.Start.Own)
			if l.Start.ByHand {
				s[l.Site].Phase, s[l.Site].Site = failover.Stopping, failover.Stop
			}
			continue
		}
		if !alive[l.Site] {
			return fmt.Errorf("%s: a step of an agent whose start is not in the trace", l)
		}
		if l.Ticks < l.Quiet || (l.In.Kind == failover.Tick) != (l.Ticks > 0) || l.In.Kind.String() != l.Event {
			return fmt.Errorf("%s: the line contradicts itself", l)
		}
		old := s[l.Site]
		next, acts := replay(old, l, failover.Step)
		var want []failover.Action
		for _, a := range l.Out {
			want = append(want, a.Action)
		}
		switch {
		case old.Phase.String() != l.From:
			return fmt.Errorf("%s: by the steps before, the agent is %s", l, old.Phase)
		case next.Phase.String() != l.To || next.Why.String() != l.Reason:
			return fmt.Errorf("%s: the core goes to %s (%s)", l, next.Phase, next.Why)
		case !slices.Equal(acts, want):
			return fmt.Errorf("%s: the core asks for %+v, the agent did %+v", l, acts, want)
		}
		s[l.Site] = next
	}
	return nil
}
