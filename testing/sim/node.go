package sim

import (
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
)

// payKind says what an entry does.
type payKind uint8

const (
	payPut payKind = iota
	payNudge
	payPublish
	payToken
	payConf
)

// payload is what an entry carries; the entry itself holds its number.
type payload struct {
	kind   payKind
	key    int
	val    uint64
	tok    failover.Token
	mod    uint64 // token: the mod revision that the transaction compares
	conf   failover.ConfChange
	member uint64 // publication
}

func payBytes(id uint64) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	return b[:]
}

// toApply is what the raft routine hands to the apply routine (etcdserver/raft.go).
type toApply struct {
	ents      []*raftpb.Entry
	snap      *raftpb.Snapshot
	snapDB    db
	pos       int
	persisted bool // notifyc: the WAL holds it
	applied   bool
	advanced  bool
	conf      bool
}

// node is one run of an etcd process.
type node struct {
	s      *site
	id     uint64
	inc    uint32 // changes with every start
	rn     *raft.RawNode
	ms     *raft.MemoryStorage
	state  db // as applied in memory
	v2     []failover.ConfMember
	v2gone []uint64 // 3.5, 3.6: the membership that replayed entries are judged by
	cs     *raftpb.ConfState
	term   uint64
	lead   uint64
	leads  bool
	commit uint64 // as etcd's Status reports it

	rd    *raft.Ready
	ap    *toApply
	stage int
	queue []*toApply

	applied  uint64
	appliedT uint64
	advanced uint64 // raft has been told so
	replay   uint64 // what was known to be committed at the start: it is applied at once
	snapAt   uint64
	snapMsgs []*raftpb.Message
	inflight int // until this tick no compaction, a snapshot is on its way
	received []snapRec

	reqs    []*request
	open    bool // the client port answers
	pub     *request
	pubAt   int
	dieAt   int // removed: the process ends then
	remotes map[uint64]int
	ring    [64]struct{ rev, hash uint64 }
}

func confState(ms []failover.ConfMember) *raftpb.ConfState {
	cs := &raftpb.ConfState{}
	for _, m := range ms {
		if m.Learner {
			cs.Learners = append(cs.Learners, m.ID)
		} else {
			cs.Voters = append(cs.Voters, m.ID)
		}
	}
	return cs
}

// boot starts etcd on what the disk holds (etcdserver/bootstrap.go).
func (s *site) boot() {
	w, d := s.w, s.disk
	if s.n != nil {
		panic("etcd runs already")
	}
	d.recover()
	snap := d.snapshot()
	w.incs++
	n := &node{s: s, id: d.id, inc: w.incs, state: d.db, applied: snap.index, appliedT: snap.term, snapAt: snap.index}
	if d.db.ci < snap.index {
		w.violation("%s: etcd cannot start: database at %d, snapshot at %d", s.name, d.db.ci, snap.index)
		return
	}
	ents, ok := d.after(snap.index)
	if !ok {
		w.violation("%s: etcd cannot start: a gap in the WAL", s.name)
		return
	}
	n.v2, n.v2gone = snap.db.members, snap.db.removed
	n.cs = confState(n.v2)
	if w.cfg.v37 {
		n.cs = confState(d.db.members)
	}
	n.ms = raft.NewMemoryStorage()
	_ = n.ms.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: &snap.index, Term: &snap.term, ConfState: n.cs}})
	hs := d.hs
	if hs != (hardState{}) {
		_ = n.ms.SetHardState(&raftpb.HardState{Term: &hs.term, Vote: &hs.vote, Commit: &hs.commit})
	}
	_ = n.ms.Append(ents)
	s.n = n
	w.guard(s, func() {
		rn, err := raft.NewRawNode(&raft.Config{
			ID: d.id, ElectionTick: w.cfg.election, HeartbeatTick: 1, Storage: n.ms,
			MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 4096 / 8, CheckQuorum: true, PreVote: true, Logger: quietLogger{},
		})
		if err != nil {
			panic(err)
		}
		n.rn = rn
	})
	n.term, n.commit, n.replay = hs.term, hs.commit, hs.commit
	n.pubAt = w.now + 1 + w.r.IntN(3)
	n.ring[n.state.rev%64] = struct{ rev, hash uint64 }{n.state.rev, n.state.hash}
	for i := range w.slow {
		w.slow[i] = 0 // a new process dials anew
	}
}

// crash ends the process. keep says how many of the unsynced records stay; -1: all, as after
// an orderly end.
func (s *site) crash(keep int) {
	n := s.n
	if n == nil {
		return
	}
	s.n = nil
	if keep < 0 {
		keep = len(s.disk.pend)
		s.disk.db = n.state // backend.Close commits
	}
	s.disk.crash(keep)
	s.startAt = s.w.now + 1 + s.w.r.IntN(4)
	s.pausedTo = 0
}

// pump works off what raft has ready, in etcd's order (etcdserver/raft.go).
func (n *node) pump() {
	for range 40 {
		if n.s.n != n {
			return
		}
		if n.rd == nil {
			if !n.rn.HasReady() {
				break
			}
			rd := n.rn.Ready()
			n.rd, n.stage = &rd, 0
		}
		if !n.advance() {
			break
		}
	}
	if n.s.n == n {
		n.apply()
	}
}

// fused burns the fuse that a schedule lit: etcd dies between two steps.
func (n *node) fused() bool {
	s := n.s
	if s.fuse == 0 {
		return false
	}
	s.fuse--
	if s.fuse == 0 {
		s.crash(s.w.r.IntN(len(s.disk.pend) + 1))
		return true
	}
	return false
}

// advance does one step of the Ready at hand; false: it has to wait.
func (n *node) advance() bool {
	w, s, rd := n.s.w, n.s, n.rd
	if n.fused() {
		return false
	}
	switch n.stage {
	case 0:
		if rd.SoftState != nil {
			n.lead, n.leads = rd.SoftState.Lead, rd.SoftState.RaftState == raft.StateLeader
		}
		if rd.HardState != nil {
			n.term = rd.HardState.GetTerm()
		}
		for _, rs := range rd.ReadStates {
			for _, q := range n.reqs {
				if q.read && q.id == binary.BigEndian.Uint64(rs.RequestCtx) {
					q.known, q.index = true, rs.Index
				}
			}
		}
		ap := &toApply{ents: rd.CommittedEntries}
		if !raft.IsEmptySnap(rd.Snapshot) {
			ap.snap = rd.Snapshot
			n.commit = max(n.commit, rd.Snapshot.GetMetadata().GetIndex())
			for _, r := range n.received {
				if r.index == rd.Snapshot.GetMetadata().GetIndex() {
					ap.snapDB = r.db
				}
			}
		}
		for _, e := range ap.ents {
			ap.conf = ap.conf || e.GetType() == raftpb.EntryConfChange
		}
		if k := len(ap.ents); k > 0 {
			n.commit = max(n.commit, ap.ents[k-1].GetIndex())
			if n.leads {
				w.committed(n, ap.ents[k-1])
			}
		}
		n.ap = ap
		n.queue = append(n.queue, ap)
		if n.leads {
			n.send(rd.Messages)
		} else if w.r.IntN(4) == 0 {
			n.apply() // the apply routine runs beside the WAL
		}
	case 1:
		if s.slowDisk > w.now && w.r.IntN(3) > 0 {
			return false
		}
		if !raft.IsEmptySnap(rd.Snapshot) {
			md := rd.Snapshot.GetMetadata()
			s.disk.write(record{kind: recSnap, snap: snapRec{index: md.GetIndex(), term: md.GetTerm(), db: n.ap.snapDB, received: true}})
			s.disk.sync(len(s.disk.pend))
		}
	case 2:
		n.save(rd.HardState, rd.Entries)
		if n.fused() {
			return false
		}
		must := len(rd.Entries) > 0
		if rd.HardState != nil {
			must = must || rd.HardState.GetTerm() != s.disk.saved.term || rd.HardState.GetVote() != s.disk.saved.vote
			s.disk.saved = hardState{rd.HardState.GetTerm(), rd.HardState.GetVote(), rd.HardState.GetCommit()}
		}
		if w.off.Sync {
			break // until something else syncs
		}
		if must || !raft.IsEmptySnap(rd.Snapshot) {
			s.disk.sync(len(s.disk.pend))
		}
	case 3:
		if !raft.IsEmptySnap(rd.Snapshot) {
			_ = n.ms.ApplySnapshot(rd.Snapshot)
		}
		_ = n.ms.Append(rd.Entries)
		n.ap.persisted = true
	case 4:
		if !n.leads {
			if n.ap.conf && !n.ap.applied {
				n.apply()
				if s.n != n || !n.ap.applied {
					return false
				}
			}
			n.send(rd.Messages)
		}
	case 5:
		n.rn.Advance(*rd)
		n.ap.advanced = true
		if k := len(n.ap.ents); k > 0 {
			n.advanced = n.ap.ents[k-1].GetIndex()
		}
		n.rd, n.ap = nil, nil
		n.settleConf()
		return true
	}
	n.stage++
	return true
}

// save is wal.Save: entries first, then the state.
func (n *node) save(hs *raftpb.HardState, ents []*raftpb.Entry) {
	d := n.s.disk
	for _, e := range ents {
		d.write(record{kind: recEntry, ent: e})
		n.s.w.written(n.s, e)
		if c, ok := n.s.w.changeOf(e); ok && c.Kind == failover.ChangePromote && n.leads {
			n.s.spring()
		}
	}
	if !raft.IsEmptyHardState(hs) {
		h := hardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}
		if n.s.w.off.A0 {
			h.commit = d.hs.commit // only a snapshot makes the commit index durable
			if n.ap.snap != nil {
				h.commit = hs.GetCommit()
			}
		}
		d.write(record{kind: recState, hs: h})
	}
}

// spring lets the traps snap.
func (s *site) spring() {
	if s.trap > 0 {
		s.slowApply, s.trap = s.w.now+s.trap, 0
	}
	if s.trapFuse > 0 {
		s.fuse, s.trapFuse = s.trapFuse, 0
	}
}

// send is processMessages and the transport.
func (n *node) send(ms []*raftpb.Message) {
	resp := false
	keep := make([]*raftpb.Message, 0, len(ms))
	for _, m := range slices.Backward(ms) {
		switch {
		case n.state.gone(m.GetTo()):
			continue
		case m.GetType() == raftpb.MsgAppResp:
			if resp {
				continue
			}
			resp = true
		case m.GetType() == raftpb.MsgSnap:
			if len(n.snapMsgs) < 16 {
				n.snapMsgs = append(n.snapMsgs, m)
			}
			continue
		}
		keep = append(keep, m)
	}
	for _, m := range slices.Backward(keep) {
		n.s.w.send(n, m, nil)
	}
}

// peer is the site that an ID's messages go to; -1: not known here.
func (n *node) peer(id uint64) int {
	if m, ok := n.state.member(id); ok && len(m.PeerURLs) > 0 {
		return n.s.w.siteOf(m.PeerURLs[0])
	}
	if i, ok := n.remotes[id]; ok {
		return i
	}
	return -1
}

func (n *node) status() string {
	if n == nil {
		return "down"
	}
	last, _ := n.ms.LastIndex()
	return fmt.Sprintf("%x term %d lead %x applied %d commit %d last %d open %v", n.id, n.term, n.lead, n.applied, n.commit, last, n.open)
}

func unmarshalConf(e *raftpb.Entry) *raftpb.ConfChange {
	cc := &raftpb.ConfChange{}
	if err := proto.Unmarshal(e.Data, cc); err != nil {
		panic(err)
	}
	return cc
}
