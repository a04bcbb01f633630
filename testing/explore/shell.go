package explore

import (
	"twok/arbiter"
	"twok/internal/failover"
)

// How an action ends.
type How uint8

// The ways. Each action has those that its reply can be.
const (
	OK    How = iota // carried out, and the reply arrives
	Fail             // not carried out, and the reply says so
	Lose             // carried out as far as the own part goes, the reply is Unknown
	Later            // not yet: the reply is Unknown, the effect may come
	Keep             // carried out, the reply is under way
	Fresh            // etcd is stopped, all that it knew is on disk
	Tear1            // an append that ends after the first hard state; the agent dies
	Tear2            // an append that ends before the last hard state; the agent dies
	numHows
)

var howNames = [numHows]string{"ok", "fail", "lose", "late", "keep", "fresh", "tear1", "tear2"}

func (w *World) step(i int, e failover.Event) {
	s := &w.Sites[i]
	w.Off.event(w, i, &e)
	e.Stamp = w.stamp()
	e.RecordID = recordID
	next, acts := failover.Step(s.S, e)
	if next.NoteAge < never {
		next.NoteAge = 0
	}
	if next.TokenAge < never {
		next.TokenAge = 0
	}
	next.TokenAge = min(next.TokenAge, never) // due or not due
	next.TokenAt = 0                          // how much was written since only decides when (P20)
	s.S = next
	for _, a := range acts {
		slot := site
		if a.Kind == failover.ReadRecord || a.Kind == failover.Swap {
			slot = arb
		}
		if s.Out[slot] != nil || s.Back[slot] != nil {
			w.violate("C1", "%s has two actions in one slot", w.name(i))
			return
		}
		if a.Kind == failover.Release && next.Held {
			w.violate("C2", "%s releases an etcd that has to stay down (P16)", w.name(i))
		}
		if a.Kind == failover.Rewrite && (a.ID == 0 || a.ID != s.Added) && !w.Off.any() {
			w.violate("C3", "%s rewrites to an ID that the survivor did not add (P12)", w.name(i))
		}
		a.Record.Reason = ""
		w.Off.action(w, i, &a)
		s.Out[slot] = &a
	}
}

// settle carries out at once what commutes with everything else: reads of files
// under the locks, giving the locks back, and, outside sections, reads of the record
// (a later read is a later tick).
func (w *World) settle(i int) {
	s := &w.Sites[i]
	for range 20 {
		slot := site
		if a := s.Out[arb]; a != nil && a.Kind == failover.ReadRecord {
			switch s.S.Phase {
			case failover.Starting, failover.Following, failover.Leaderless, failover.Lost, failover.Joining, failover.CatchingUp, failover.Promoting, failover.Stopping, failover.Releasing:
				slot = arb
			}
		}
		if slot == site {
			a := s.Out[site]
			if a == nil {
				return
			}
			switch a.Kind {
			case failover.Preflight, failover.Tidy, failover.ReadData, failover.Release:
			default:
				return
			}
		}
		if w.Broken() || !w.perform1(i, slot, OK) {
			return
		}
	}
}

// tick lets the agent see what is there now.
func (w *World) tick(i int) {
	w.step(i, failover.Event{Kind: failover.Tick, Obs: w.obs(i)})
	w.settle(i)
}

// perform carries the action in the slot out. It says whether this way exists.
func (w *World) perform(i, slot int, how How) bool {
	a := w.Sites[i].Out[slot]
	if a == nil || !sensible(a.Kind, how) || !w.perform1(i, slot, how) {
		return false
	}
	w.settle(i)
	return true
}

// sensible leaves out the ways that are as good as another one.
func sensible(k failover.ActionKind, how How) bool {
	switch how {
	case Fail:
		return k != failover.Stop && k != failover.Sample && k != failover.Restart
	case Keep:
		return k == failover.ReadRecord || k == failover.LookAtList || k == failover.Compare || k == failover.Sample || k == failover.Swap
	}
	return true
}

func (w *World) perform1(i, slot int, how How) bool {
	s := &w.Sites[i]
	a := s.Out[slot]
	if how == Keep && s.Back[slot] != nil {
		return false
	}
	e := failover.Event{Kind: a.Kind.Reply()}
	s.Out[slot] = nil
	switch how {
	case Fail:
		e.Outcome = failover.Failed
		if a.Kind == failover.ReadRecord {
			e.Status = failover.Unavailable
		}
	default:
		if !w.carry(i, a, how, &e) {
			s.Out[slot] = a
			return false
		}
	}
	if how == Tear1 || how == Tear2 {
		w.die(i)
		return true
	}
	if how == Keep {
		s.Back[slot] = &e
		return true
	}
	w.step(i, e)
	return true
}

// deliver hands over a reply that was under way.
func (w *World) deliver(i, slot int) bool {
	s := &w.Sites[i]
	if s.Back[slot] == nil {
		return false
	}
	e := *s.Back[slot]
	s.Back[slot] = nil
	w.step(i, e)
	w.settle(i)
	return true
}

// run carries out whatever is out until nothing is.
func (w *World) run(i int) bool {
	s := &w.Sites[i]
	did := false
	for n := 0; n < 40 && !w.Broken(); n++ {
		switch {
		case s.Back[arb] != nil:
			w.deliver(i, arb)
		case s.Back[site] != nil:
			w.deliver(i, site)
		case s.Out[site] != nil:
			if !w.perform(i, site, OK) && w.perform1(i, site, Fail) {
				w.settle(i)
			}
		case s.Out[arb] != nil:
			if !w.perform(i, arb, OK) && w.perform1(i, arb, Fail) {
				w.settle(i)
			}
		default:
			return did
		}
		did = true
	}
	return did
}

// die ends the agent and starts it again. What it had out is not carried out.
func (w *World) die(i int) {
	s := &w.Sites[i]
	s.Out, s.Back = [2]*failover.Action{}, [2]*failover.Event{}
	s.Added, s.Won = 0, false
	s.S = failover.New(Params, s.Own)
	s.S.NoteAge = never
	if s.Locked {
		s.Locked, s.Running = false, false
		w.boot(i)
	}
}

func (w *World) read(i int, e *failover.Event) {
	e.Outcome = failover.Done
	if w.Ver == 0 {
		e.Status = failover.Absent
		return
	}
	s := &w.Sites[i]
	s.Seen = max(s.Seen, w.Rec.Generation)
	e.Status, e.Record, e.Version, e.Seen = failover.Readable, w.Rec, arbiter.At(tag(w.Ver)), s.Seen
}

// put is the store's compare-and-swap.
func (w *World) put(a *failover.Action) bool {
	at := uint32(0)
	if a.Prev.Exists() {
		at = untag(a.Prev.Tag())
	}
	if at != w.Ver && !w.Off.has(P1) {
		return false
	}
	w.Rec = a.Record
	w.Vers++
	w.Ver = w.Vers
	return true
}

// carry has the action's effect. Not every action has every way.
func (w *World) carry(i int, a *failover.Action, how How, e *failover.Event) bool {
	s, n := &w.Sites[i], &w.Nodes[i]
	simple := how == OK || how == Keep
	switch a.Kind {
	case failover.ReadRecord:
		if simple {
			w.read(i, e)
		}
		return simple
	case failover.Swap:
		return w.swap(i, a, how, e)
	case failover.Append:
		return w.appendEntries(i, a, how, e)
	case failover.RemoveLearner, failover.AddLearner, failover.Promote:
		return w.member(i, a, how, e)
	case failover.WriteToken:
		return w.writeToken(i, a, how, e)
	case failover.Rewrite:
		if how != OK && how != Lose {
			return false
		}
		if how == OK {
			e.Outcome = failover.Done
		}
		n.ID = a.ID
		for j := range w.Nodes {
			w.Nodes[j].Match[i] = 0
		}
		if !a.Keep {
			n.Log, n.HS, n.DB, n.Term, n.Snap = nil, 0, 0, 0, 0
		}
		n.Vote, s.Added = 0, 0
		w.halt(i)
		return true
	}
	if !simple && (how != Fresh || a.Kind != failover.Stop) {
		return false
	}
	e.Outcome = failover.Done
	switch a.Kind {
	case failover.Stop:
		if !s.Locked {
			s.Won = false
			s.Running = w.Off.has(P7Lock)
			if how == Fresh {
				w.persist(i)
			}
			s.Locked = true
			if !s.Running {
				w.halt(i)
			}
		}
	case failover.ReadData:
		if s.Running {
			w.persist(i)
		}
		e.Data = w.data(i, a.Index)
	case failover.Release:
		if s.Locked || !n.Up {
			s.Locked, s.Running = false, false
			w.boot(i)
		}
		s.Won = false
	case failover.Restart:
		w.boot(i)
	case failover.LookAtList:
		if !w.list(i, &e.List) {
			return false
		}
	case failover.Compare:
		o := 1 - i
		if n.ID != a.ID || !w.meets(o, i) || !w.reaches(o) {
			return false
		}
		w.replicate(o, i, true)
		w.acknowledge(o, i)
		w.applyAll(o)
		w.replicate(o, i, true)
		w.applyAll(i)
		m := &w.Nodes[o]
		e.Equal = len(n.Log) == len(m.Log)
		for k := range min(len(n.Log), len(m.Log)) {
			e.Equal = e.Equal && n.Log[k] == m.Log[k]
		}
	case failover.Sample:
		if !w.reaches(i) || n.Applied == 0 || n.Log[n.Applied-1].Term != n.Term {
			return false
		}
		e.Position = arbiter.Position{Index: uint64(n.Applied), Term: uint64(n.Log[n.Applied-1].Term)}
	}
	return true
}
