package sim

import (
	"go.etcd.io/raft/v3/raftpb"

	"twok/arbiter"
)

// committed is told of what a leader commits: nobody of an earlier term may commit
// anything new after a later one has (one writer). What both have is no news: a leader that was
// paused hears late of an acknowledgement that was given before the other one claimed.
func (w *world) committed(n *node, e *raftpb.Entry) {
	top := &w.lines[n.s.disk.line].top
	if n.term < top.term && top.site != n.s.i && e.GetIndex() > top.index {
		w.violation("%s commits entry %d/%d in term %d after %s did in term %d: two writers",
			n.s.name, e.GetIndex(), e.GetTerm(), n.term, w.sites[top.site].name, top.term)
	}
	top.index = max(top.index, e.GetIndex())
	if n.term >= top.term {
		top.term, top.site = n.term, n.s.i
	}
}

// digest is what an entry is.
func digest(e *raftpb.Entry) uint64 {
	h := mix(uint64(e.GetType())+1, uint64(len(e.Data)))
	for _, b := range e.Data {
		h = mix(h, uint64(b))
	}
	return h
}

// checkEntry: whatever is committed in one history are prefixes of one another.
func (w *world) checkEntry(n *node, e *raftpb.Entry) {
	i := e.GetIndex()
	l := link{e.GetTerm(), digest(e), n.s.name}
	h := w.lines[n.state.line]
	switch {
	case i == uint64(len(h.chain)):
		h.chain = append(h.chain, l)
	case i > uint64(len(h.chain)):
		w.violation("%s applies entry %d, nobody applied %d", n.s.name, i, len(h.chain))
	case !h.chain[i].same(l):
		w.violation("%s applies entry %d of term %d, %s applied another one of term %d: two histories",
			n.s.name, i, l.term, h.chain[i].by, h.chain[i].term)
	}
}

// checkSnapshot: a received snapshot is a prefix too.
func (w *world) checkSnapshot(n *node) {
	i := n.state.ci
	if !w.lines[n.state.line].has(arbiter.Position{Index: i, Term: n.state.term}) {
		w.violation("%s takes a snapshot at entry %d of term %d that nobody applied", n.s.name, i, n.state.term)
	}
}
