package explore

import (
	"slices"

	"twok/internal/failover"
)

// swap: late swaps stay in the store's queue; of those that can still be applied.
func (w *World) swap(i int, a *failover.Action, how How, e *failover.Event) bool {
	s := &w.Sites[i]
	if a.Claim {
		s.Own = s.S.Mine
	}
	if w.Off.has(P7Order) && a.Claim && s.Locked {
		w.operate(i, &failover.Action{Remove: s.S.Data.Confs.Remove, Term: s.S.Data.Term + 1}, 2)
	}
	switch how {
	case OK, Lose, Keep:
		e.Outcome = failover.Conflict
		if w.put(a) {
			e.Outcome = failover.Done
			s.Won = s.Won || (a.Claim && s.Locked)
			if a.Claim && s.Locked {
				w.holdsAll(i, "claims")
			}
		}
		if how == Lose {
			e.Outcome = failover.Unknown
		}
		return true
	case Later:
		for k := range w.Late {
			if w.stale(w.Late[k]) {
				w.Late[k] = a
				return true
			}
		}
	}
	return false
}

// operate is the surgery (P8), as far as stage: 0 the first hard state, 1 the entries, 2 all.
func (w *World) operate(i int, a *failover.Action, stage int) {
	n := &w.Nodes[i]
	s := &w.Sites[i]
	if s.Running {
		s.Running = false
		w.halt(i)
	}
	if w.Off.has(P8Truncate) {
		n.Log = n.Log[:max(n.HS, min(n.DB, len(n.Log)))]
		n.Log = n.Log[:len(n.Log):len(n.Log)]
	}
	n.Term, n.Vote = uint32(a.Term), n.ID
	if w.Off.has(P8Term) {
		n.Term--
	}
	if stage == 0 {
		return
	}
	var es []Entry
	for _, id := range a.Remove {
		if id != 0 {
			es = append(es, Entry{Kind: Remove, Term: n.Term, ID: id})
		}
	}
	// In the order in which they came in: IDs are random, their order says nothing.
	slices.SortStableFunc(es, func(a, b Entry) int { return w.since(n, a.ID) - w.since(n, b.ID) })
	if len(es) == 0 {
		es = append(es, Entry{Term: n.Term})
	}
	for k := range es {
		w.UIDs++
		es[k].UID = w.UIDs
	}
	w.holdsAll(i, "operates")
	n.push(es...)
	if stage == 2 {
		n.HS = len(n.Log)
		w.commit(i, len(n.Log))
	}
	w.halt(i)
}

func (w *World) since(n *Node, id uint64) int {
	for k, e := range n.Log {
		if (e.Kind == Add || e.Kind == AddLearner) && e.ID == id {
			return 10 + k
		}
	}
	if p := w.Base.Conf.find(id); p != nil {
		return int(p.Site)
	}
	return 9
}

func (w *World) appendEntries(i int, a *failover.Action, how How, e *failover.Event) bool {
	s, n := &w.Sites[i], &w.Nodes[i]
	if !s.Locked || (how != OK && how != Tear1 && how != Tear2) {
		return false
	}
	if w.Off.has(P7Order) {
		e.Outcome = failover.Done
		return how == OK
	}
	if !s.Won && !w.Off.any() {
		w.violate("S5", "%s operates without its own swap under these locks (P7)", w.name(i))
		return true
	}
	if uint64(n.Term)+1 != a.Term && !w.Off.any() {
		w.violate("S5", "%s operates on data that it did not decide on (P7)", w.name(i))
		return true
	}
	stage := map[How]int{OK: 2, Tear1: 0, Tear2: 1}[how]
	w.operate(i, a, stage)
	e.Outcome = failover.Done
	return true
}
