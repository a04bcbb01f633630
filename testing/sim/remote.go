package sim

import (
	"google.golang.org/protobuf/proto"

	"twok/arbiter"
	"twok/internal/failover"
)

func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// client is the etcd that answers at a site's client port for a caller at another
// site (or the same); nil: nobody does.
func (w *world) client(from, to int) *node {
	s := w.sites[to]
	if s == nil || !s.running() || !s.n.open || !w.reach(from, to) {
		return nil
	}
	return s.n
}

// remote are the actions that ask the other member (rejoin.Survivor).
func (a *agent) remote(j *job) bool {
	w, s := a.s.w, a.s
	far := 1 - s.i
	n := w.client(s.i, far)
	if j.stage == 0 {
		if n == nil {
			if w.now < j.end-5 {
				j.due = w.now + 1 // a dial that waits
				return false
			}
			return a.lost(j)
		}
		if !a.ask(j, n) {
			return j.failed()
		}
		j.inc = n.inc
		return j.wait(w, 1)
	}
	if w.now > j.end || n == nil || n.inc != j.inc {
		return a.lost(j)
	}
	if j.req != nil && !j.req.done {
		j.due = w.now + 1
		return false
	}
	return a.answered(j, n)
}

// lost: no answer. For a call that changes something that means unknown.
func (a *agent) lost(j *job) bool {
	switch j.act.Kind {
	case failover.RemoveLearner, failover.AddLearner, failover.Promote:
		return j.ends(failover.Unknown, failover.None)
	}
	return j.failed()
}

func (a *agent) ask(j *job, n *node) bool {
	w, s := a.s.w, a.s
	switch j.act.Kind {
	case failover.LookAtList:
		j.req = n.read()
	case failover.RemoveLearner:
		j.req = n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeRemove, ID: j.act.ID}})
	case failover.AddLearner:
		j.e.ID = w.randomID()
		j.req = n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeAddLearner, ID: j.e.ID, PeerURLs: []string{urls[s.i]}}})
	case failover.Promote:
		if n.applied < n.commit || !n.learnerReady(j.act.ID) {
			return false
		}
		j.req = n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangePromote, ID: j.act.ID}})
	case failover.Compare:
		if s.disk.id != j.act.ID {
			return false
		}
		j.req = n.propose(payload{kind: payNudge})
	}
	return true
}

// learnerReady is etcd's isLearnerReady: the leader's view of the match index.
func (n *node) learnerReady(id uint64) bool {
	if !n.leads {
		return false
	}
	pr := n.rn.Status().Progress
	p, ok := pr[id]
	return ok && float64(p.Match) >= 0.9*float64(pr[n.id].Match)
}

func (a *agent) answered(j *job, n *node) bool {
	w, s := a.s.w, a.s
	switch j.act.Kind {
	case failover.LookAtList:
		if !j.req.ok || n.lead == 0 {
			return j.failed()
		}
		j.e.List = a.list(j.req.res.members, n.lead)
		return j.done()
	case failover.RemoveLearner, failover.AddLearner, failover.Promote:
		if !j.req.ok {
			j.e.ID = 0
			return j.ends(failover.Unknown, failover.None) // the list tells
		}
		if w.r.IntN(25) == 0 {
			j.e.ID = 0
			return j.ends(failover.Unknown, failover.None) // the answer is lost
		}
		return j.done()
	}
	// Compare: the own member has to reach the survivor's revision.
	if j.rev == 0 {
		if !j.req.ok {
			return j.failed()
		}
		j.rev = j.req.res.rev
	}
	if !s.running() {
		return j.failed()
	}
	mine, ok1 := s.n.hashAt(j.rev)
	theirs, ok2 := n.hashAt(j.rev)
	if !ok1 || !ok2 {
		j.due = w.now + 1
		if s.n.state.rev > j.rev || w.r.IntN(4) == 0 {
			j.rev, j.stage, j.req = 0, 0, nil // a newer one
		}
		return false
	}
	j.e.Equal = mine == theirs
	if !j.e.Equal {
		w.violation("%s: the key spaces differ at revision %d", s.name, j.rev)
	}
	return j.done()
}

func (a *agent) list(ms []failover.ConfMember, lead uint64) failover.List {
	s := a.s
	l := failover.List{OK: true, Leader: lead, Cluster: clusterID, Version: 3<<16 | 6, Voters: votersOf(ms)}
	for _, m := range ms {
		switch {
		case m.ID == s.disk.id && m.Learner:
			l.Self = failover.ListedLearner
		case m.ID == s.disk.id:
			l.Self = failover.ListedVoter
		case m.Learner && m.PeerURLs[0] == urls[s.i]:
			l.Leftover = m.ID
		case m.Learner:
			l.Stranger = m.ID
		}
	}
	return l
}

// sample takes an applied position of the lone leader (P10).
func (a *agent) sample(j *job) bool {
	w, s := a.s.w, a.s
	n := w.client(s.i, s.i)
	if n == nil || n.lead != n.id || w.now > j.end {
		return j.failed()
	}
	if j.stage == 0 {
		j.inc, j.term = n.inc, n.appliedT
		j.req = n.propose(payload{kind: payNudge})
		return j.wait(w, 1)
	}
	if n.inc != j.inc {
		return j.failed()
	}
	if !j.req.done {
		j.due = w.now + 1
		return false
	}
	if !j.req.ok || n.appliedT != j.term {
		return j.failed()
	}
	j.e.Position = arbiter.Position{Index: n.applied, Term: n.appliedT}
	return j.done()
}

func pairOf(ms []failover.ConfMember) (p [2]uint64, ok bool) {
	v := votersOf(ms)
	if v.Count != 2 || v.Learners != 0 {
		return p, false
	}
	return [2]uint64{min(v.IDs[0], v.IDs[1]), max(v.IDs[0], v.IDs[1])}, true
}

// writeToken is P14, stage by stage as internal/agent/token.go does it.
func (a *agent) writeToken(j *job) bool {
	w, s := a.s.w, a.s
	n := w.client(s.i, s.i)
	sent := j.stage >= 4
	patience := 4
	if w.off.TokenRedial {
		patience = 24
	}
	switch {
	case w.now > j.end+patience || (n == nil && !w.off.TokenRedial):
		if sent {
			return j.ends(failover.Unknown, failover.None)
		}
		return j.failed()
	case n == nil:
		j.due = w.now + 1
		return false
	case j.stage > 0 && n.inc != j.inc && !w.off.TokenRedial:
		if sent {
			return j.ends(failover.Unknown, failover.None)
		}
		return j.failed()
	case j.stage == 0:
		j.inc = n.inc
		j.req = n.read()
		return j.wait(w, 0)
	case j.stage != 3 && !j.req.done:
		j.due = w.now + 1
		return false
	}
	switch j.stage {
	case 1: // the linearizable list
		j.members, j.term = j.req.res.members, j.req.term
		if !j.side && n.lead != n.id {
			return j.failed()
		}
		pair, ok := pairOf(j.members)
		if !ok || (pair[0] != n.id && pair[1] != n.id) {
			return j.failed()
		}
		if !j.side && !a.showPair(n, pair) {
			return j.failed()
		}
		j.req = n.read()
		return j.wait(w, 1)
	case 2: // the key's mod revision
		old := j.req.res.token
		if old.Present && !old.Bad && (old.RecordID != j.act.RecordID || old.Generation > j.act.Generation) {
			return j.failed()
		}
		j.mod = j.req.res.tokMod
		return j.wait(w, 3) // it may be on its way for long
	case 3:
		if s.trapToken > 0 {
			s.slowApply, s.trapToken = w.now+s.trapToken, 0
			s.crash(0)
			s.startAt = w.now
			return false
		}
		pair, _ := pairOf(j.members)
		j.e.Token = failover.Token{Present: true, RecordID: j.act.RecordID, Generation: j.act.Generation, Cluster: clusterID, Members: pair, Term: j.term}
		j.req = n.propose(payload{kind: payToken, tok: j.e.Token, mod: j.mod})
		j.inc = n.inc
		return j.wait(w, 0)
	}
	if !j.req.ok {
		return j.failed()
	}
	j.e.Token.EntryTerm = j.req.term
	w.say("%s wrote the token: g%d %x term %d entry %d", s.name, j.act.Generation, j.e.Token.Members, j.term, j.req.term)
	if j.e.Token.EntryTerm != j.e.Token.Term {
		j.e.Token = failover.Token{}
		return j.ends(failover.Conflict, failover.None)
	}
	a.obs.Token, a.obs.TokenRead = j.e.Token, true
	return j.done()
}

// showPair asks both members, at their own client ports, for their local lists.
func (a *agent) showPair(own *node, pair [2]uint64) bool {
	w, s := a.s.w, a.s
	var other *node
	for i := range w.sites {
		if n := w.client(s.i, i); n != nil && n.id != own.id && (n.id == pair[0] || n.id == pair[1]) {
			other = n
		}
	}
	if other == nil {
		return false
	}
	published := false
	for _, id := range own.state.pubs {
		published = published || id == other.id
	}
	p, ok := pairOf(own.state.members)
	q, ok2 := pairOf(other.state.members)
	return published && ok && ok2 && p == pair && q == pair
}

// sideToken is the token written by whoever sees a pair (Off.TokenAnyone).
func (a *agent) sideToken() {
	w, s := a.s.w, a.s
	n := w.client(s.i, s.i)
	rec := &a.st.Rec
	if a.side != nil || n == nil || n.lead == 0 || !a.st.RecKnown || a.arb != arbUp || n.state.voters().Count != 2 {
		return
	}

	if t := n.state.token; t.Present && t.Generation == w.reg.rec.Generation && t.Names(n.state.voters().IDs[0], n.state.voters().IDs[1]) {
		return
	}
	a.side = &job{act: failover.Action{Kind: failover.WriteToken, Generation: w.reg.rec.Generation, RecordID: rec.ID}, due: w.now, side: true}
	a.jobs = append(a.jobs, a.side)
}
