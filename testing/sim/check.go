package sim

import "go.etcd.io/raft/v3/raftpb"

// committed is told of what a leader commits: nobody of an earlier term may commit
// anything new after a later one has (one writer). What both have is no news: a leader that was
// paused hears late of an acknowledgement that was given before the other one claimed.
func (w *world) committed(n *node, e *raftpb.Entry) {
	if n.term < w.top.term && w.top.site != n.s.i && e.GetIndex() > w.top.index {
		w.violation("%s commits entry %d/%d in term %d after %s did in term %d: two writers",
			n.s.name, e.GetIndex(), e.GetTerm(), n.term, w.sites[w.top.site].name, w.top.term)
	}
	w.top.index = max(w.top.index, e.GetIndex())
	if n.term >= w.top.term {
		w.top.term, w.top.site = n.term, n.s.i
	}
}

// checkEntry: all histories that are ever committed are prefixes of one another.
func (w *world) checkEntry(n *node, e *raftpb.Entry) {
	i := e.GetIndex()
	h := mix(uint64(e.GetType())+1, uint64(len(e.Data)))
	for _, b := range e.Data {
		h = mix(h, uint64(b))
	}
	l := link{e.GetTerm(), h, n.s.name}
	switch {
	case i == uint64(len(w.chain)):
		w.chain = append(w.chain, l)
	case i > uint64(len(w.chain)):
		w.violation("%s applies entry %d, nobody applied %d", n.s.name, i, len(w.chain))
	case w.chain[i].term != l.term || w.chain[i].data != l.data:
		w.violation("%s applies entry %d of term %d, %s applied another one of term %d: two histories",
			n.s.name, i, l.term, w.chain[i].by, w.chain[i].term)
	}
}

// checkSnapshot: a received snapshot is a prefix too.
func (w *world) checkSnapshot(n *node) {
	i := n.state.ci
	if i >= uint64(len(w.chain)) || w.chain[i].term != n.state.term {
		w.violation("%s takes a snapshot at entry %d of term %d that nobody applied", n.s.name, i, n.state.term)
	}
}
