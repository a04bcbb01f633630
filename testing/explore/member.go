package explore

import "twok/internal/failover"

// list is a linearizable member list through the other member's client port.
func (w *World) list(i int, l *failover.List) bool {
	o := 1 - i
	ld, ok := w.leaderOf(o)
	if !w.Link || !w.alive(o) || !ok || !w.linear(ld) || w.Nodes[o].Applied < w.Nodes[ld].Commit {
		return false
	}
	c := w.conf(&w.Nodes[o], w.Nodes[o].Applied)
	*l = failover.List{OK: true, Leader: w.Nodes[ld].ID, Cluster: cluster, Version: version, Voters: coreVoters(c)}
	for _, p := range c.Peers[:c.N] {
		switch {
		case p.ID == w.Nodes[i].ID && p.Learner:
			l.Self = failover.ListedLearner
		case p.ID == w.Nodes[i].ID:
			l.Self = failover.ListedVoter
		case p.Learner && int(p.Site) == i:
			l.Leftover = p.ID
		case p.Learner:
			l.Stranger = p.ID
		}
	}
	return true
}

// linear says whether a leader answers linearizable reads: it has committed in its
// own term, and a quorum answers it.
func (w *World) linear(i int) bool {
	n := &w.Nodes[i]
	return w.reaches(i) && n.Commit > 0 && n.Log[n.Commit-1].Term == n.Term
}

// member is a membership call at the other side's leader. Lose: proposed, applied
// when the moves say so.
func (w *World) member(i int, a *failover.Action, how How, e *failover.Event) bool {
	o := 1 - i
	n := &w.Nodes[o]
	if (how != OK && how != Lose) || !w.Link || !w.alive(o) || !n.Leader {
		return false
	}
	c := w.conf(n, n.Applied)
	x := Entry{Kind: Remove, ID: a.ID}
	switch a.Kind {
	case failover.AddLearner:
		for _, p := range c.Peers[:c.N] {
			if p.Learner || int(p.Site) == i {
				return false
			}
		}
		x = Entry{Kind: AddLearner, ID: w.IDs + 1, Site: uint8(i)}
	case failover.Promote:
		x.Kind = Promote
		p := c.find(a.ID)
		if p == nil || n.Match[i] == 0 || n.Match[i] < len(n.Log)-1 {
			return false // etcd promotes at 90 % of the log
		}
		if !p.Learner && how != Lose {
			return false // etcd proposes it all the same, and rejects it when it applies it: the answer is an error
		}
	case failover.RemoveLearner:
		if c.find(a.ID) == nil {
			return false
		}
	}
	if !w.propose(o, x) {
		return false
	}
	if a.Kind == failover.AddLearner {
		w.IDs++
	}
	if how == Lose {
		return true
	}
	at := len(n.Log)
	w.applyAll(o)
	if n.Applied < at {
		return true // no answer before it is applied
	}
	e.Outcome = failover.Done
	if a.Kind == failover.AddLearner {
		e.ID, w.Sites[i].Added = x.ID, x.ID
	}
	return true
}
