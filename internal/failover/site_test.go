package failover

import (
	"fmt"
	"slices"
	"strings"
)

// step runs one event through the core and checks what must hold of every step.
func (s *site) step(e Event) {
	w := s.w
	w.nonces++
	e.Stamp = Stamp{Nonce: fmt.Sprintf("n%d", w.nonces), Now: int64(w.now)}
	w.fresh++
	e.FreshID = 0xf0 + w.fresh
	if e.RecordID == "" {
		e.RecordID = fmt.Sprintf("rec%d", w.nonces)
	}
	before := s.s
	after, acts := Step(before, e)
	s.s = after
	if w.states != nil {
		w.states[after] = true
	}
	w.seen[[2]string{before.Phase.String(), e.Kind.String()}]++
	for _, a := range acts {
		w.did[a.Kind]++
	}
	s.check(before, after, acts)
	s.queue = append(s.queue, acts...)
	s.print(e, before, after, acts)
}

func (s *site) print(e Event, before, after State, acts []Action) {
	if s.w.quiet {
		return
	}
	var as []string
	poll := true
	for _, a := range acts {
		n := a.Kind.String()
		switch a.Kind {
		case Swap:
			n = fmt.Sprintf("swap(%s g%d)", purposeNames[after.Purpose], a.Record.Generation)
		case Append:
			n = fmt.Sprintf("append(term %d, remove %s)", a.Term, ids(a.Remove[:]))
			if a.ID != 0 {
				n = fmt.Sprintf("append(term %d, join as %x, remove %s)", a.Term, a.ID, ids(a.Remove[:]))
			}
		case Rewrite:
			n = fmt.Sprintf("rewrite(%x, keep %v)", a.ID, a.Keep)
			if !a.Keep {
				n = fmt.Sprintf("rewrite(%x, aside for %s)", a.ID, a.Why)
			}
		case RemoveLearner, Compare, Promote:
			n = fmt.Sprintf("%s(%x)", n, a.ID)
		case WriteToken:
			n = fmt.Sprintf("%s(g%d)", n, a.Generation)
		}
		as = append(as, n)
		poll = poll && (a.Kind == ReadRecord || a.Kind == LookAtList || a.Kind == Compare)
	}
	if before.Phase == after.Phase && before.Why == after.Why && poll {
		return
	}
	ev := e.Kind.String()
	if e.Kind != Tick && e.Kind != RecordRead && e.Outcome != Done {
		ev += " " + outcomeNames[e.Outcome]
	}
	line := fmt.Sprintf("%4d %s %s: %s", s.w.now, s.name, ev, after.Phase)
	if after.Why != None {
		line += "/" + after.Why.String()
	}
	if len(as) > 0 {
		line += " -> " + strings.Join(as, ", ")
	}
	s.w.out.WriteString(line + "\n")
}

var (
	outcomeNames = []string{"unknown", "done", "conflict", "failed"}
	purposeNames = []string{"none", "create", "claim", "confirm", "whole", "mark", "reassert"}
)

func ids(l []uint64) string {
	var n []string
	for _, id := range l {
		if id != 0 {
			n = append(n, fmt.Sprintf("%x", id))
		}
	}
	return strings.Join(n, " ")
}

// check is what must hold of every step.
func (s *site) check(before, after State, acts []Action) {
	w := s.w
	slots := map[bool]int{before.Arb != NoAction && after.Arb == before.Arb: 0}
	clear(slots)
	for _, a := range acts {
		slots[a.Kind.onArbiter()]++
		switch a.Kind {
		case Append:
			if !s.won || !s.locked {
				w.violation("%s appends without its own swap under these locks (P7)", s.name)
			}
			if a.Term != s.etcd.term+1 && a.Term != s.term {
				w.violation("%s appends in term %d, its log is at %d (P8)", s.name, a.Term, s.etcd.term)
			}
		case Swap:
			if a.Claim && after.Purpose == ForClaim && (!before.Locked || !s.locked) {
				w.violation("%s claims without the locks (P7)", s.name)
			}
			if a.Claim && after.Mine.Nonces[0] != a.Record.ClaimNonce {
				w.violation("%s claims with a nonce that it will not know again (P1)", s.name)
			}
			if a.Claim != (after.Purpose == ForClaim || after.Purpose == ForReassert) || (!a.Claim && a.Record.Generation != max(1, before.Rec.Generation, after.Rec.Generation)) {
				w.violation("%s changes the generation without a claim (P2)", s.name)
			}
		case Rewrite:
			if a.ID == 0 || a.ID != s.added {
				w.violation("%s rewrites to %x, the survivor added %x (P12)", s.name, a.ID, s.added)
			}
			s.added = 0
		case WriteToken:
			if after.Phase != Leading || a.Generation != after.Rec.Generation || after.RecAge != 0 {
				w.violation("%s writes a token of a generation that was not just read (P14)", s.name)
			}
		case Release:
			if after.Held {
				w.violation("%s releases an etcd that has to stay down (P16)", s.name)
			}
		}
	}
	if slots[true] > 1 || slots[false] > 1 || (before.Arb != NoAction && len(acts) > 0 && slots[true] > 0 && after.Arb == NoAction) {
		w.violation("%s has two actions in one slot", s.name)
	}
	if (after.Arb == NoAction) != (!s.out(true) && slots[true] == 0) || (after.Site == NoAction) != (!s.out(false) && slots[false] == 0) {
		w.violation("%s lost track of what is out", s.name)
	}
	if after.Arb == NoAction && after.Site == NoAction {
		switch after.Phase {
		case Stopping, Deciding, Claiming, Appending, Rechecking, Releasing, Joining, Preparing:
			if next, as := Step(after, Event{Kind: Tick, Obs: after.Obs}); len(as) == 0 && next.Phase == after.Phase {
				w.violation("%s is stuck in %s", s.name, after.Phase)
			}
		}
	}
}

func (s *site) out(arb bool) bool {
	return slices.ContainsFunc(s.queue, func(a Action) bool { return a.Kind.onArbiter() == arb })
}

// pump carries actions out and answers them until none is left that may.
func (s *site) pump() {
	for n := 0; s.up; n++ {
		i := slices.IndexFunc(s.queue, func(a Action) bool { return !s.held[a.Kind] })
		if i < 0 {
			return
		}
		if n > 40 {
			s.w.violation("%s never comes to rest", s.name)
			return
		}
		a := s.queue[i]
		s.queue = slices.Delete(s.queue, i, i+1)
		e, ok := s.ready[a.Kind]
		if !ok {
			e = s.perform(a)
		}
		delete(s.ready, a.Kind)
		s.last = e
		s.w.settle()
		s.step(s.last)
	}
}

// tick is one tick of one agent.
func (s *site) tick() {
	if !s.up {
		return
	}
	s.step(Event{Kind: Tick, Obs: s.obs()})
	s.pump()
}

func (w *world) tick(n int, only string) {
	for range n {
		w.now++
		w.settle()
		for _, s := range w.sites {
			if only == "" || s.name == only {
				s.tick()
			}
		}
	}
}
