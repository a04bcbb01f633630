package explore

import (
	"twok/arbiter"
	"twok/internal/failover"
)

// The moves of a traced run, for testing/trace: those of the explorer, taken apart, with the
// agents' own settings. Nothing here can do what the moves cannot: a Down with its Up
// is a Restart that takes its time, Flush is Persist at an earlier moment, Compact too, and an effect
// with its reply is what Do does in one go.

// NewTraced is a pair that has just been started, with these member IDs, as etcd starts one:
// the log begins with the members.
func NewTraced(ids [2]uint64) *World {
	w := NewWorld(0)
	w.Max = 1 << 30
	w.Base.Conf = Conf{}
	order := [2]int{0, 1}
	if ids[0] > ids[1] {
		order = [2]int{1, 0}
	}
	w.Hist = nil
	for k, i := range order {
		w.Hist = append(w.Hist, Entry{Kind: Add, Term: 1, UID: uint32(k + 1), ID: ids[i], Site: uint8(i)})
	}
	w.UIDs, w.IDs = 2, max(ids[0], ids[1])
	for i := range 2 {
		w.Nodes[i] = Node{ID: ids[i], Term: 1, Log: w.Hist, Up: false, Start: 0, HS: 2, DB: 2, Commit: 2, Applied: 2}
	}
	return w
}

// Begin starts the agent of site i, which may have run before.
func (w *World) Begin(i int, p failover.Params) {
	w.die(i)
	s := &w.Sites[i]
	s.S = failover.New(p, s.Own)
}

// Observe is what the watcher of site i sees now, with the term: etcd shows that of the entry that it
// applied last, not that of its hard state.
func (w *World) Observe(i int) failover.Obs {
	o := w.obs(i)
	if n := &w.Nodes[i]; n.Applied > 0 {
		o.Term = uint64(n.Log[n.Applied-1].Term)
	}
	return o
}

// Given makes one step of agent i and returns what it asks for.
func (w *World) Given(i int, e failover.Event) []failover.Action {
	s := &w.Sites[i]
	next, acts := failover.Step(s.S, e)
	s.S = next
	for k := range acts {
		a := acts[k]
		slot := SlotOf(a.Kind)
		switch {
		case s.Out[slot] != nil || s.Back[slot] != nil:
			w.violate("C1", "%s has two actions in one slot", w.name(i))
		case a.Kind == failover.Release && next.Held:
			w.violate("C2", "%s releases an etcd that has to stay down (P16)", w.name(i))
		case a.Kind == failover.Rewrite && (a.ID == 0 || a.ID != s.Added):
			w.violate("C3", "%s rewrites to an ID that the survivor did not add (P12)", w.name(i))
		}
		s.Out[slot] = &a
	}
	return acts
}

// SlotOf is the slot that an action takes.
func SlotOf(k failover.ActionKind) int {
	if k == failover.ReadRecord || k == failover.Swap {
		return arb
	}
	return site
}

// Effect carries out what agent i has out in the slot. The reply is in Back.
func (w *World) Effect(i, slot int, how How) bool {
	s := &w.Sites[i]
	a := s.Out[slot]
	if a == nil || s.Back[slot] != nil {
		return false
	}
	s.Out[slot] = nil
	e := failover.Event{Kind: a.Kind.Reply()}
	if !w.carry(i, a, how, &e) {
		return false
	}
	s.Back[slot] = &e
	w.check()
	return true
}

// PromoteBehind carries out a promotion that agent i has out, at a leader to whom clients write as often before it
// applies it: by the configuration of before it commits that alone (Lose and Put, then the leader applies). The
// learner may be further behind than Effect wants, where indices stand for more than one entry.
func (w *World) PromoteBehind(i, slot, writes int) bool {
	s, o := &w.Sites[i], 1-i
	a, n := s.Out[slot], &w.Nodes[o]
	if a == nil || s.Back[slot] != nil || a.Kind != failover.Promote || !w.Link || !w.alive(o) || !n.Leader || n.Match[i] == 0 {
		return false
	}
	c := w.conf(n, n.Applied)
	if p := c.find(a.ID); p == nil || !p.Learner || !w.propose(o, Entry{Kind: Promote, ID: a.ID}) {
		return false
	}
	at := len(n.Log)
	for range writes {
		if !w.Put(o) {
			return false
		}
	}
	if w.applyAll(o); n.Applied < at {
		return false
	}
	s.Out[slot], s.Back[slot] = nil, &failover.Event{Kind: a.Kind.Reply(), Outcome: failover.Done}
	w.check()
	return true
}

// Stamp is a fresh nonce of the model.
func (w *World) Stamp() failover.Stamp { return w.stamp() }

// Down ends etcd i; Up starts it.
func (w *World) Down(i int) bool {
	if !w.alive(i) {
		return false
	}
	w.halt(i)
	w.Nodes[i].Up = false
	return true
}

// Up starts etcd i after Down, or one that ended because it was removed.
func (w *World) Up(i int) bool {
	n := &w.Nodes[i]
	if (n.Up && !n.Dead) || (i < 2 && w.Sites[i].Locked) {
		return false
	}
	w.boot(i)
	return true
}

// Replace gives etcd i, which is down, a new disk, on which it makes itself the member that it was at the pair's beginning, as etcd does
// with an empty directory and the flags of its first start while no other member still lists it. What it had promised is forgotten,
// which A0 does not allow: no move of the explorer.
func (w *World) Replace(i int) bool {
	if w.alive(i) || w.Sites[i].Locked {
		return false
	}
	first := w.Hist[:2:2] // as NewTraced has it
	for _, e := range first {
		if int(e.Site) == i {
			w.Nodes[i] = Node{ID: e.ID, Term: 1, Log: first, HS: 2, DB: 2, Commit: 2, Applied: 2}
		}
	}
	return true
}

// Flush makes the disk of node i have this much, as if it had been written when
// there was no more. What lies below stays, what lies above what is there is cut off.
func (w *World) Flush(i, hs, db int) {
	n := &w.Nodes[i]
	n.HS = max(n.HS, min(hs, n.Commit))
	n.DB = max(n.DB, min(db, n.Applied))
}

// CompactTo lets the log of node i begin after this entry.
func (w *World) CompactTo(i, snap int) {
	n := &w.Nodes[i]
	n.Snap = max(n.Snap, min(snap, n.DB))
}

// SendTo lets node i send node j its entries up to an index, and hear of it. It says whether that changed anything.
func (w *World) SendTo(i, j, upto int, ack bool) bool {
	if !w.meets(i, j) {
		return false
	}
	l, f := &w.Nodes[i], &w.Nodes[j]
	before := *f
	w.replicateTo(i, j, true, upto)
	match := l.Match[j]
	if l.Leader && ack {
		w.acknowledge(i, j)
	}
	w.check()
	return before.Term != f.Term || len(before.Log) != len(f.Log) || before.Commit != f.Commit || !l.Leader || match != l.Match[j]
}

// ApplyAll applies what node i has committed.
func (w *World) ApplyAll(i int) bool { return w.applyAll(i) }

// Leads says whether node i leads.
func (w *World) Leads(i int) bool { return w.Nodes[i].Leader && w.alive(i) }

// Reaches says whether node i can commit.
func (w *World) Reaches(i int) bool { return w.reaches(i) }

// Alive says whether etcd i runs and answers.
func (w *World) Alive(i int) bool { return w.alive(i) }

// Put proposes a client's write at leader i.
func (w *World) Put(i int) bool { return w.propose(i, Entry{Kind: Write}) }

// List is what LookAtList of site i would show now.
func (w *World) List(i int) (l failover.List, ok bool) {
	ok = w.list(i, &l)
	return l, ok
}

// ConfirmedAt says whether node i, alone, may confirm this position now (P10).
func (w *World) ConfirmedAt(i int, p arbiter.Position) bool {
	n := &w.Nodes[i]
	return w.reaches(i) && p.Index > 0 && int(p.Index) <= n.Applied && uint64(n.Log[p.Index-1].Term) == p.Term && uint64(n.Term) == p.Term
}

// The model's only cluster and record.
const (
	Cluster  = cluster
	RecordID = recordID
)

// VersionAt is the register's version of this number; VersionOf is its number, zero for none.
func VersionAt(n uint32) arbiter.Version { return arbiter.At(tag(n)) }

// VersionOf is the number of a version.
func VersionOf(v arbiter.Version) uint32 {
	if !v.Exists() {
		return 0
	}
	return untag(v.Tag())
}

func (h How) String() string { return howNames[h] }

// UserAdds is a user's change through leader l: a third member that never runs.
func (w *World) UserAdds(l int, id uint64, learner bool) bool {
	x := Entry{Kind: Add, ID: id, Site: 2}
	if learner {
		x.Kind = AddLearner
	}
	if c := w.conf(&w.Nodes[l], w.Nodes[l].Applied); c.find(id) != nil || c.gone(id) || !w.propose(l, x) {
		return false
	}
	w.Nodes[2] = Node{ID: id}
	return true
}

// UserRemoves is a user's change through leader l.
func (w *World) UserRemoves(l int, id uint64) bool {
	c := w.conf(&w.Nodes[l], w.Nodes[l].Applied)
	return c.find(id) != nil && w.propose(l, Entry{Kind: Remove, ID: id})
}

// OwnVoters is what the member list of node i shows, whoever leads.
func (w *World) OwnVoters(i int) failover.Voters {
	return coreVoters(w.conf(&w.Nodes[i], w.Nodes[i].Applied))
}
