package explore

import (
	"twok/arbiter"
	"twok/internal/failover"
)

// operator has the moves of people.
func (w *World) operator(m Move, a int) bool {
	n := &w.Nodes[a]
	switch m.Op {
	case AddThird:
		if w.Nodes[2].ID != 0 || !w.propose(a, Entry{Kind: Add, ID: w.IDs + 1, Site: 2}) {
			return false
		}
		w.IDs++
		w.Nodes[2] = Node{ID: w.IDs, Up: true, Start: 1}
		return true
	case DropThird:
		return w.Nodes[2].ID != 0 && a != 2 && w.propose(a, Entry{Kind: Remove, ID: w.Nodes[2].ID})
	case DropOther:
		return w.Nodes[1-a].ID != 0 && w.drop(a)
	case Drain:
		t := w.token(n, n.Applied)
		if w.Ver == 0 || w.Rec.Drain || !w.alive(a) {
			return false
		}
		pair, ok := w.pairOf(a)
		if !w.Off.has(P19Whole) && (!n.Leader || !w.linear(a) || !ok || t.Gen != w.Rec.Generation ||
			w.Rec.WholeGeneration != w.Rec.Generation || w.Rec.WholeMembers != pair) {
			return false
		}
		d := w.data(a, 0)
		next := failover.Claim(w.Rec, d, "", w.stamp())
		next.Drain = true
		// The survivor's agent makes this claim, so that it knows it again (P16).
		mine := &w.Sites[a].S.Mine
		if mine.RecordID != next.ID {
			mine.Nonces = [4]string{}
		}
		copy(mine.Nonces[1:], mine.Nonces[:])
		mine.RecordID, mine.Generation, mine.Nonces[0] = next.ID, next.Generation, next.ClaimNonce
		mine.End, mine.Fork = next.ClaimEnd, next.Fork
		w.Sites[a].Own = *mine
		next.Fork = arbiter.Position{Index: d.Last.Index + 1, Term: uint64(n.Term)}
		w.force(next)
		return true
	case DropDrained:
		return w.Rec.Drain && (w.Rec.Survivor.ID == n.ID || w.Off.has(P19Leads)) && w.drop(a)
	case Undrain:
		if !w.Rec.Drain {
			return false
		}
		next := w.Rec
		next.Drain = false
		w.force(next)
		return true
	case Rollback:
		if w.Rec.History[0].First == 0 {
			return false
		}
		next := w.Rec
		k := 0
		for k+1 < arbiter.HistoryLen && next.History[k+1].First != 0 {
			k++
		}
		next.Generation = next.History[k].First - 1
		next.History[k] = arbiter.HistoryEntry{}
		next.Survivor.ID = 0
		if k > 0 {
			next.Survivor.ID = next.History[k-1].Survivor
		}
		next.Confirmed, next.MarkGeneration, next.MarkIndex = arbiter.Position{}, 0, 0
		next.WholeGeneration = next.Generation
		next.ClaimNonce = "n0"
		w.force(next)
		return true
	}
	return false
}

// drop removes the other site's member, through the leader a.
func (w *World) drop(a int) bool {
	c := w.conf(&w.Nodes[a], w.Nodes[a].Applied)
	return c.find(w.Nodes[1-a].ID) != nil && w.linear(a) && w.propose(a, Entry{Kind: Remove, ID: w.Nodes[1-a].ID})
}

// force is an operator's swap of the record as it is.
func (w *World) force(next arbiter.Record) {
	w.Nons++
	next.Nonce = tag(w.Nons)
	w.Rec = next
	w.Vers++
	w.Ver = w.Vers
}
