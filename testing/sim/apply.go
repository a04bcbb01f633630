package sim

import (
	"encoding/binary"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
)

// apply is etcd's apply routine: applySnapshot, applyEntries, then, when the
// raft routine has written the WAL, a snapshot and the messages that wait for one.
func (n *node) apply() {
	w, s := n.s.w, n.s
	for len(n.queue) > 0 {
		ap := n.queue[0]
		if s.slowApply > w.now && ap.snap != nil {
			return
		}
		if !ap.applied {
			if ap.snap != nil && ap.pos == 0 {
				if !ap.persisted {
					return
				}
				n.applySnapshot(ap)
				ap.snap = nil
			}
			for ap.pos < len(ap.ents) {
				e := ap.ents[ap.pos]
				if s.slowApply > w.now && e.GetIndex() > n.replay {
					n.finish()
					return
				}
				ap.pos++
				if e.GetIndex() <= n.applied {
					continue
				}
				if e.GetIndex() != n.applied+1 {
					panic("unexpected committed entry index")
				}
				n.applyEntry(ap, e)
				if w.r.IntN(6) == 0 && s.noCommit <= w.now {
					s.disk.db = n.state
				}
				if s.dribble > w.now && ap.pos < len(ap.ents) { // one entry at a time
					n.finish()
					return
				}
			}
			ap.applied = true
			n.finish()
		}
		if !ap.persisted {
			return
		}
		n.queue = n.queue[1:]
		n.snapshot()
		if len(n.snapMsgs) > 0 {
			n.sendSnapshot()
		}
	}
	n.finish()
}

func (n *node) applySnapshot(ap *toApply) {
	md := ap.snap.GetMetadata()
	if md.GetIndex() <= n.applied {
		panic("unexpected leader snapshot from outdated index")
	}
	n.state = ap.snapDB
	n.s.disk.db = ap.snapDB // snap.db becomes db
	n.v2, n.v2gone = n.state.members, n.state.removed
	n.applied, n.appliedT, n.snapAt = md.GetIndex(), md.GetTerm(), md.GetIndex()
	n.cs = md.GetConfState()
	n.note()
	n.s.w.checkSnapshot(n)
}

// note keeps the hash of the newest revisions.
func (n *node) note() {
	n.ring[n.state.rev%64] = struct{ rev, hash uint64 }{n.state.rev, n.state.hash}
}

func (n *node) hashAt(rev uint64) (uint64, bool) {
	if r := n.ring[rev%64]; r.rev == rev {
		return r.hash, true
	}
	return 0, false
}

func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15 + h<<6 + h>>2
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// applyEntry applies one entry; what the database holds already is only replayed.
func (n *node) applyEntry(ap *toApply, e *raftpb.Entry) {
	w := n.s.w
	index, term := e.GetIndex(), e.GetTerm()
	v3 := index > n.state.ci
	if v3 {
		w.follow(n)
	}
	w.checkEntry(n, e)
	if e.GetType() == raftpb.EntryConfChange {
		n.applyConf(ap, e, v3)
	} else if len(e.Data) == 8 && v3 {
		n.applyNormal(binary.BigEndian.Uint64(e.Data), index)
	}
	if v3 {
		n.state.ci, n.state.term = index, term
	}
	n.applied, n.appliedT = index, term
	if len(e.Data) == 8 && e.GetType() == raftpb.EntryNormal && v3 {
		n.answer(binary.BigEndian.Uint64(e.Data), term)
	}
}

func (n *node) applyNormal(id, index uint64) {
	w, st := n.s.w, &n.state
	p := &w.pays[id]
	switch p.kind {
	case payPut:
		st.rev++
		st.vals[p.key] = p.val
		st.hash = mix(st.hash, id)
	case payNudge:
		st.rev++
		st.hash = mix(st.hash, id)
	case payPublish:
		if !slices.Contains(st.pubs, p.member) {
			st.pubs = append(slices.Clone(st.pubs), p.member)
		}
	case payToken:
		if st.tokMod != p.mod {
			w.refused[id] = true
			return
		}
		st.rev++
		st.tokMod, st.tokSeq = st.rev, id
		st.token = p.tok
		st.token.Present = true
		w.tokenApplied(p.tok.Generation, tokenAt{st.line, index})
		st.hash = mix(st.hash, id)
	}
	n.note()
}

// answer triggers the request that waits for a payload (etcdserver: w.Trigger).
func (n *node) answer(id, term uint64) {
	for _, q := range n.reqs {
		if q.id == id && !q.done {
			q.done, q.ok, q.res, q.term = true, !n.s.w.refused[id], n.state, term
		}
	}
}

func (n *node) applyConf(ap *toApply, e *raftpb.Entry, v3 bool) {
	w := n.s.w
	cc := unmarshalConf(e)
	change := failover.ConfChange{Kind: failover.ChangeRemove, ID: cc.GetNodeId()}
	if len(cc.Context) == 8 {
		change = w.pays[binary.BigEndian.Uint64(cc.Context)].conf
	}
	ok := false
	if v3 {
		ok = accept(&n.state.members, &n.state.removed, change)
		n.v2, n.v2gone = n.state.members, n.state.removed
	} else if !w.cfg.v37 {
		ok = accept(&n.v2, &n.v2gone, change)
	}
	switch {
	case !ok && (v3 || !w.cfg.v37):
		cc = proto.Clone(cc).(*raftpb.ConfChange)
		cc.NodeId = proto.Uint64(0)
		n.rn.ApplyConfChange(cc)
	case ok:
		n.cs = n.rn.ApplyConfChange(cc)
	}
	if ok && change.Kind == failover.ChangeRemove && change.ID == n.id && n.dieAt == 0 {
		n.dieAt = w.now + 1 + w.r.IntN(4)
	}
	if id := cc.GetId(); id != 0 {
		for _, q := range n.reqs {
			if q.id == id {
				q.conf, q.ok, q.res, q.term = ap, ok, n.state, e.GetTerm()
			}
		}
	}
}

// snapshot is snapshotIfNeededAndCompactRaftLog.
func (n *node) snapshot() {
	w, d := n.s.w, n.s.disk
	if n.applied-n.snapAt <= w.cfg.snapCount {
		return
	}
	d.db = n.state // KV().Commit()
	if _, err := n.ms.CreateSnapshot(n.applied, n.cs, nil); err != nil {
		return
	}
	n.snapAt = n.applied
	// Membership at the index, as ConfState holds it.
	d.write(record{kind: recSnap, snap: snapRec{index: n.applied, term: n.appliedT, db: db{members: n.state.members, removed: n.state.removed}}})
	if w.off.A0 { // else the snapshot would not be valid
		d.write(record{kind: recState, hs: hardState{d.saved.term, d.saved.vote, max(n.applied, d.hs.commit)}})
	}
	d.sync(len(d.pend))
	d.purge()
	if n.inflight > w.now {
		return
	}
	// etcd's 5,000 entries for slow followers keep compaction behind what raft has advanced to; fewer do not.
	if to := min(n.applied, n.advanced); to > w.cfg.catchUp {
		_ = n.ms.Compact(to - w.cfg.catchUp)
	}
}

// sendSnapshot is createMergedSnapshotMessage and sendMergedSnap.
func (n *node) sendSnapshot() {
	w := n.s.w
	m := n.snapMsgs[0]
	n.snapMsgs = n.snapMsgs[1:]
	n.s.disk.db = n.state
	index, term := n.applied, n.appliedT
	m.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: &index, Term: &term, ConfState: proto.Clone(n.cs).(*raftpb.ConfState)}}
	n.inflight = w.now + 20
	state := n.state
	w.send(n, m, &state)
}
