package sim

import (
	"encoding/binary"

	"go.etcd.io/raft/v3/raftpb"

	"twok/arbiter"
	"twok/internal/failover"
)

// job is an action that is being carried out. Each stage of it is one point at
// which the world can change: a process can die, a link can break, a reply can be lost.
type job struct {
	act   failover.Action
	own   failover.Own
	due   int
	end   int // deadline
	stage int
	inc   uint32 // the etcd that ran when the job began
	req   *request
	e     failover.Event
	bytes []byte // Swap: the encoded record

	members []failover.ConfMember // WriteToken: the list
	term    uint64
	mod     uint64
	rev     uint64 // Compare
	side    bool   // nobody waits for the answer
}

func (w *world) payloadOf(e *raftpb.Entry) (uint64, *payload, bool) {
	if e.GetType() != raftpb.EntryNormal || len(e.Data) != 8 {
		return 0, nil, false
	}
	id := binary.BigEndian.Uint64(e.Data)
	return id, &w.pays[id], true
}

func (w *world) changeOf(e *raftpb.Entry) (failover.ConfChange, bool) {
	if e.GetType() != raftpb.EntryConfChange {
		return failover.ConfChange{}, false
	}
	cc := unmarshalConf(e)
	if len(cc.Context) == 8 {
		return w.pays[binary.BigEndian.Uint64(cc.Context)].conf, true
	}
	return failover.ConfChange{Kind: failover.ChangeRemove, ID: cc.GetNodeId()}, true
}

// work moves every job on by as many stages as are due.
func (a *agent) work() {
	w := a.s.w
	for i := 0; i < len(a.jobs); i++ {
		j := a.jobs[i]
		for j.due <= w.now {
			if a.fuse > 0 {
				if a.fuse--; a.fuse == 0 {
					a.kill()
					return
				}
			}
			if j.end == 0 {
				j.end = w.now + 8
				if j.act.Kind == failover.Compare {
					j.end = w.now + 14
				}
				j.e.Kind = j.act.Kind.Reply()
			}
			if !a.stage(j) {
				if j.due <= w.now {
					j.due = w.now + 1
				}
				continue
			}
			a.jobs = append(a.jobs[:i], a.jobs[i+1:]...)
			i--
			if !j.side {
				a.step(&j.e)
			} else {
				a.side = nil
			}
			*j = job{}
			w.free = append(w.free, j)
			break
		}
		if !a.up {
			return
		}
	}
}

// wait lets a job go on after up to n ticks.
func (j *job) wait(w *world, n int) bool {
	j.stage++
	j.due = w.now + w.r.IntN(n+1)
	return false
}

func (j *job) ends(o failover.Outcome, why failover.Reason) bool {
	j.e.Outcome, j.e.Why = o, why
	return true
}

func (j *job) done() bool   { return j.ends(failover.Done, failover.None) }
func (j *job) failed() bool { return j.ends(failover.Failed, failover.None) }

// stage carries out one stage; true: the action has ended and j.e is its answer.
func (a *agent) stage(j *job) bool {
	w := a.s.w
	if a.failing == j.act.Kind && j.stage == 0 {
		a.failing = failover.NoAction
		if j.act.Kind == failover.ReadRecord {
			j.e.Status = failover.Unavailable
		}
		return j.failed()
	}
	switch j.act.Kind {
	case failover.ReadRecord:
		return a.readRecord(j)
	case failover.Swap:
		return a.swap(j)
	case failover.Preflight, failover.Tidy:
		return j.done()
	case failover.Stop:
		return a.stop(j)
	case failover.ReadData:
		if !a.locked {
			return j.failed()
		}
		j.e.Data = a.data(j.act.Index)
		return j.done()
	case failover.Append:
		return a.append(j)
	case failover.Release:
		a.locked = false
		if a.s.n == nil && !a.s.away {
			a.s.startAt = w.now
			a.s.boot()
		}
		return j.done()
	case failover.Restart:
		if j.stage == 0 {
			a.s.crash(w.r.IntN(len(a.s.disk.pend)+2) - 1)
			return j.wait(w, 1)
		}
		if a.s.n == nil && !a.s.away {
			a.s.boot()
		}
		return j.done()
	case failover.Rewrite:
		return a.rewrite(j)
	case failover.Sample:
		return a.sample(j)
	case failover.WriteToken:
		return a.writeToken(j)
	}
	return a.remote(j)
}

func (a *agent) readRecord(j *job) bool {
	w, e := a.s.w, &j.e
	if j.stage == 0 {
		return j.wait(w, 1)
	}
	switch {
	case a.arb != arbUp:
		if a.arb == arbSilent && j.stage == 1 {
			j.stage, j.due = 2, w.now+3
			return false
		}
		e.Status = failover.Unavailable
		return j.ends(failover.Unknown, failover.None)
	case w.reg.ver == 0:
		e.Status = failover.Absent
	case w.reg.err != nil:
		w.violation("%s wrote a record that does not decode: %v", a.s.name, w.reg.err)
		e.Status = failover.Garbage
	default:
		e.Status, e.Record, e.Version = failover.Readable, w.reg.rec, w.reg.version()
		e.Seen = a.seen[e.Record.ID]
		a.tell(&e.Record)
		if a.unfenced(e) {
			break
		}
		a.seen[e.Record.ID] = max(e.Seen, e.Record.Generation)
		if w.off.VoidOrder && e.Record.Forced && e.Record.Survivor.ID == a.s.disk.id && (a.s.n == nil || a.s.n.lead == 0) {
			e.Record.WholeGeneration = 0
		}
	}
	return j.done()
}

func (a *agent) swap(j *job) bool {
	w, b := a.s.w, j.bytes
	switch j.stage {
	case 0:
		var err error
		if j.act.Claim {
			a.claims(&j.act.Record)
		}
		if j.bytes, err = arbiter.Encode(j.act.Record); err != nil {
			w.violation("%s cannot encode: %v", a.s.name, err)
			return j.ends(failover.Failed, failover.RecordGarbage)
		}
		if j.act.Claim {
			a.own = j.own
		}
		return j.wait(w, 1)
	case 1:
		if w.off.OrderSwap && j.act.Claim && a.claim.fork.Index != 0 {
			a.claim.prev, a.claim.next = j.act.Prev, b // after the append
			return j.done()
		}
		fault := a.swapBad
		a.swapBad = swapFine
		switch {
		case a.arb == arbDown:
			return j.ends(failover.Failed, failover.RecordUnavailable)
		case a.arb == arbSilent:
			if w.r.IntN(2) == 0 {
				fault = swapLate
			} else {
				fault = swapNever
			}
		}
		switch fault {
		case swapFine:
			if w.reg.swap(j.act.Prev, b) {
				w.note(j.act.Record)
				return j.done()
			}
			return j.ends(failover.Conflict, failover.None)
		case swapLost:
			w.reg.swap(j.act.Prev, b)
		case swapConflict:
			w.reg.swap(j.act.Prev, b)
			return j.ends(failover.Conflict, failover.None)
		case swapLate:
			w.reg.late = append(w.reg.late, lateSwap{w.now + w.r.IntN(12), j.act.Prev, b})
		}
		j.stage, j.due = 2, w.now+1+w.r.IntN(3)
		return false
	}
	return j.ends(failover.Unknown, failover.None)
}

func (w *world) note(r arbiter.Record) {
	w.say("record: generation %d, survivor %x, whole %d", r.Generation, r.Survivor.ID, r.WholeGeneration)
}

func (a *agent) stop(j *job) bool {
	w, s := a.s.w, a.s
	if a.locked {
		return j.done()
	}
	if j.stage == 0 {
		return j.wait(w, 2)
	}
	// SIGTERM or SIGKILL; the queued lock keeps the next start out.
	keep := -1
	if w.r.IntN(2) == 0 {
		keep = w.r.IntN(len(s.disk.pend) + 1)
	}
	s.crash(keep)
	a.locked = true
	return j.done()
}

// append operates (P8): three writes, each synced before the next, and a kill
// between any two of them leaves the log as it is then. A forced claim's append is made in a copy, which takes the
// log's place in one exchange, under the new ID of a member that was removed (P18): a kill leaves nothing of it, or all.
func (a *agent) append(j *job) bool {
	w, d := a.s.w, a.s.disk
	if !a.locked {
		return j.failed()
	}
	forced := a.claim.fork.Index != 0
	if j.act.ID != 0 && d.id != j.act.ID && w.off.InPlace {
		d.id = j.act.ID
		a.reread()
		j.due = w.now + w.r.IntN(2)
		return false
	}
	last, lastTerm := d.last()
	switch j.stage {
	case 0:
		term := max(d.hs.term, lastTerm) + 1
		if term > j.act.Term || last == 0 || (term < j.act.Term && !forced) {
			return j.failed()
		}
		if !w.off.ForceTerm {
			term = j.act.Term
		}
		if w.off.NextTerm {
			term--
		}
		j.term = term
		if forced && !w.off.InPlace {
			return j.wait(w, 1) // in the copy
		}
		a.vote(j)
		return j.wait(w, 1)
	case 1:
		whole := forced && !w.off.InPlace
		if whole {
			if j.act.ID != 0 && d.id != j.act.ID {
				d.id = j.act.ID
				a.reread()
			}
			a.vote(j)
		}
		if forced {
			w.birth(a, arbiter.Position{Index: last + 1, Term: j.term})
		}
		for _, e := range a.changes(j, last) {
			w.written(a.s, e)
			d.entry(e)
		}
		if whole {
			a.commit()
		}
		return j.wait(w, 1)
	case 2:
		if d.hs.commit != last {
			a.commit()
		}
		if a.claim.next != nil { // Off.OrderSwap
			w.reg.swap(a.claim.prev, a.claim.next)
			a.claim.next = nil
		}
		w.say("%s operated: log ends at %d/%d", a.s.name, last, lastTerm)
	}
	return j.done()
}

// vote is the append's first write.
func (a *agent) vote(j *job) {
	d := a.s.disk
	d.hs = hardState{j.term, d.id, d.hs.commit}
}

// commit is its last one.
func (a *agent) commit() {
	d := a.s.disk
	d.hs.commit, _ = d.last()
	d.saved = d.hs
}

// changes are the entries of an append, in etcd's order (walsurgery/join.go).
func (a *agent) changes(j *job, last uint64) (ents []*raftpb.Entry) {
	w, act := a.s.w, &j.act
	place := func() (index, term *uint64) { return ptr(last + 1 + uint64(len(ents))), ptr(j.term) }
	for i, id := range act.Remove {
		if act.ID != 0 && i == int(act.Twins) {
			index, term := place()
			p := w.pay(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeAdd, ID: act.ID, PeerURLs: []string{urls[a.s.i]}}})
			cc := raftpb.ConfChange{Id: ptr(uint64(0)), Type: raftpb.ConfChangeAddNode.Enum(), NodeId: ptr(act.ID), Context: payBytes(p)}
			ents = append(ents, &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Index: index, Term: term, Data: marshal(&cc)})
		}
		if id != 0 {
			index, term := place()
			ents = append(ents, removal(*index, *term, id))
		}
	}
	if len(ents) == 0 {
		index, term := place()
		ents = append(ents, &raftpb.Entry{Type: raftpb.EntryNormal.Enum(), Index: index, Term: term})
	}
	return ents
}

func ptr[T any](v T) *T { return &v }

func removal(index, term, id uint64) *raftpb.Entry {
	cc := raftpb.ConfChange{Id: ptr(uint64(0)), Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: ptr(id)}
	return &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Index: ptr(index), Term: ptr(term), Data: marshal(&cc)}
}

// rewrite is walsurgery.RewriteID or rejoin.Reset: one exchange, before it the old
// directory, after it the new one.
func (a *agent) rewrite(j *job) bool {
	w, s := a.s.w, a.s
	if !a.locked {
		return j.failed()
	}
	if j.stage == 0 {
		return j.wait(w, 2)
	}
	if j.stage == 1 {
		if j.act.Keep || w.off.KeepLog || a.keeps() {
			a.kept()
			s.disk.id = j.act.ID
		} else {
			s.disk = &disk{id: j.act.ID}
		}
		a.reread()
		return j.wait(w, 1)
	}
	if w.r.IntN(20) == 0 {
		return j.failed() // after the exchange
	}
	return j.done()
}

func (a *agent) reread() {
	o := a.obs
	a.obs = failover.Obs{Etcd: failover.EtcdAway, Member: a.s.disk.id, Cluster: clusterID, Version: o.Version, Other: o.Other, Peer: o.Peer}
}
