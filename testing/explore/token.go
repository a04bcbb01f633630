package explore

import "twok/internal/failover"

// writeToken is the shell's part of P14: the list, the two local lists, the
// transaction. OK waits until the own member has applied it, Lose proposes it, Late
// leaves the transaction on its way.
func (w *World) writeToken(i int, a *failover.Action, how How, e *failover.Event) bool {
	if how != OK && how != Lose && how != Later {
		return false
	}
	n := &w.Nodes[i]
	l, ok := w.leaderOf(i)
	if !w.alive(i) || !ok || (l != i && !w.Off.has(P14Leads)) || !w.linear(l) || n.Applied < w.Nodes[l].Commit && l == i {
		return false
	}
	if l != i { // a linearizable read waits until the asked member has applied
		if n.Applied < w.Nodes[l].Commit {
			return false
		}
	}
	pair, ok := w.pairOf(i)
	if !ok || (pair[0] != n.ID && pair[1] != n.ID) {
		return false
	}
	for _, id := range pair {
		j, ok := w.peer(id)
		switch {
		case w.Off.has(P14Lists):
		case !ok || !w.alive(j) || !w.linked(i, j):
			return false
		default:
			if p, ok := w.pairOf(j); !ok || p != pair {
				return false
			}
		}
	}
	old := w.token(n, n.Applied)
	if old.Present && old.Gen > a.Generation {
		return false
	}
	x := Entry{Kind: TokenWrite, Tok: Token{Gen: a.Generation, Pair: pair, Term: n.Log[n.Applied-1].Term}, Prev: old.UID, Blind: w.Off.has(P14Txn)}
	if how == Later {
		if w.Txn != nil {
			return false
		}
		w.Txn = &LateToken{Site: uint8(i), Start: n.Start, Entry: x}
		return true
	}
	if !w.propose(l, x) {
		return false
	}
	at := len(w.Nodes[l].Log)
	if how == Lose {
		return true
	}
	for j := range w.Nodes {
		if j != l {
			w.replicate(l, j, true)
			w.acknowledge(l, j)
		}
	}
	for j := range w.Nodes {
		if j != l {
			w.replicate(l, j, true)
		}
	}
	w.applyAll(i)
	t := w.token(n, n.Applied)
	if n.Applied < at || t.UID != w.Nodes[l].Log[at-1].UID {
		return true // no answer in time
	}
	e.Outcome, e.Token = failover.Done, coreToken(t)
	if t.Entry != t.Term {
		e.Outcome, e.Token = failover.Conflict, failover.Token{}
	}
	return true
}

// pairOf is what a member's local list shows, if that is a pair.
func (w *World) pairOf(i int) (pair [2]uint64, ok bool) {
	c := w.conf(&w.Nodes[i], w.Nodes[i].Applied)
	if c.N != 2 || c.Peers[0].Learner || c.Peers[1].Learner {
		return pair, false
	}
	a, b := c.Peers[0].ID, c.Peers[1].ID
	return [2]uint64{min(a, b), max(a, b)}, true
}

// arrive proposes the transaction that is on its way, at whoever leads by now: a
// member forwards proposals. It is gone if the process that it was sent to is gone.
func (w *World) arrive() bool {
	if w.Txn == nil {
		return false
	}
	t := *w.Txn
	w.Txn = nil
	i := int(t.Site)
	if !w.alive(i) || (w.Nodes[i].Start != t.Start && !w.Off.has(P14Conn)) {
		return true
	}
	if l, ok := w.leaderOf(i); ok {
		w.propose(l, t.Entry)
	}
	return true
}
