package sim

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"twok/internal/failover"
)

// request is a call to one etcd process. After the process is gone it stays not done.
type request struct {
	id    uint64 // of the payload, or of the read
	read  bool
	known bool   // read: index is known
	index uint64 // read
	conf  *toApply
	done  bool
	ok    bool   // applied, and a transaction succeeded, a change was accepted
	res   db     // the state at that moment
	term  uint64 // what the response header says: of the last applied entry
}

func (n *node) propose(p payload) *request {
	w := n.s.w
	q := &request{id: w.pay(p)}
	var err error
	if p.kind == payConf {
		cc := &raftpb.ConfChange{Id: &q.id, NodeId: &p.conf.ID, Context: payBytes(q.id)}
		switch p.conf.Kind {
		case failover.ChangeAddLearner:
			cc.Type = raftpb.ConfChangeAddLearnerNode.Enum()
		case failover.ChangeRemove:
			cc.Type = raftpb.ConfChangeRemoveNode.Enum()
		default:
			cc.Type = raftpb.ConfChangeAddNode.Enum()
		}
		err = n.rn.ProposeConfChange(cc)
	} else {
		err = n.rn.Propose(payBytes(q.id))
	}
	if err != nil {
		q.done = true
		return q
	}
	n.reqs = append(n.reqs, q)
	return q
}

// read is a linearizable read: ReadIndex, then wait for the applied index.
func (n *node) read() *request {
	w := n.s.w
	w.reads++
	q := &request{id: 1<<63 | w.reads, read: true}
	n.reqs = append(n.reqs, q)
	n.rn.ReadIndex(payBytes(q.id))
	return q
}

// finish ends the requests that are due; what nobody waits for any more is dropped.
func (n *node) finish() {
	k := 0
	for _, q := range n.reqs {
		if q.read && q.known && n.applied >= q.index && !q.done {
			q.done, q.ok, q.res, q.term = true, true, n.state, n.appliedT
		}
		if !q.done {
			n.reqs[k] = q
			k++
		}
	}
	clear(n.reqs[k:])
	n.reqs = n.reqs[:k]
	if k > 48 {
		n.reqs = slices.Delete(n.reqs, 0, k-48)
	}
}

// settleConf answers membership calls once raft has advanced (etcd #15528).
func (n *node) settleConf() {
	for _, q := range n.reqs {
		if q.conf != nil && q.conf.advanced {
			q.done = true
		}
	}
}
