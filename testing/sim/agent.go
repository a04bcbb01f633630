package sim

import (
	"fmt"
	"strconv"

	"twok/arbiter"
	"twok/internal/failover"
)

// agent is one member's agent: the real core, and a shell that answers each
// action as internal/agent does.
type agent struct {
	s       *site
	up      bool
	startAt int
	paused  int // until this tick the agent does nothing
	fuse    int // the agent dies before the n-th next step of an action
	st      failover.State
	jobs    []*job
	locked  bool // the locks are held
	arb     arbState
	rate    int
	phase   int
	carry   uint32

	// Kept beside the data.
	own  failover.Own
	seen map[string]uint64
	home bool // the own peer URLs

	obs     failover.Obs
	swapBad int // how the next swap ends: see swapFault
	failing failover.ActionKind
	side    *job // a token write that the core did not ask for (Off.TokenAnyone)

	claim   forcedClaim
	told    int    // ticks since it read that somebody else was named, while its member leads alone; zero: it has not
	toldInc uint32 // that member's process
	shown   shown  // Off.Fence: the record as it last named this member
}

type arbState uint8

const (
	arbUp arbState = iota
	arbDown
	arbSilent
)

// swapFault is how a swap can go wrong beside a silent or absent arbiter.
const (
	swapFine     = iota
	swapLost     // applied, the reply is lost
	swapLate     // unknown, applied later or never
	swapConflict // applied, but the answer is a conflict: something below repeated it (F29)
	swapNever    // unknown, never applied
	swapFaults
)

func params(cfg config) failover.Params {
	e := uint32(cfg.election)
	p := failover.Params{
		ClaimAfter: 2*e + 2, HeadStart: 3, Election: e, WakeAfter: 4, WakeOther: 12, RecordIdle: 10, RecordAlone: 2, RecordBusy: 2,
		ListEvery: 2, ConfirmEach: 20, MinRun: 12, MaxRun: 60, HoldMax: 12, HoldWindow: 100,
	}
	if cfg.renew {
		p.TokenEach, p.TokenFew = 20, 2
	}
	if cfg.hold {
		p.HoldFirst = 3
	}
	return p
}

func newAgent(s *site) *agent {
	return &agent{s: s, rate: 100, seen: map[string]uint64{}, home: true}
}

// start is a new process of the agent.
func (a *agent) start() {
	w := a.s.w
	a.up, a.jobs, a.carry = true, nil, 0
	a.st = failover.New(params(w.cfg), a.own)
	a.obs = failover.Obs{}
	a.told = 0
	a.peek()
}

// kill ends the agent wherever it is. The kernel gives the locks back.
func (a *agent) kill() {
	w := a.s.w
	a.up, a.jobs, a.side, a.locked = false, nil, nil, false
	a.startAt = w.now + 2 + w.r.IntN(8)
	if a.s.n == nil {
		a.s.startAt = max(a.s.startAt, w.now+w.r.IntN(3))
	}
}

func (a *agent) tick() {
	w := a.s.w
	w.reg.deliver(w.now)
	if !a.up {
		if a.startAt > w.now || a.s.away {
			return
		}
		a.start()
	}
	if a.paused > w.now {
		if a.carry < 5 {
			a.carry++
		}
		return
	}
	a.work()
	if !a.up {
		return
	}
	a.phase += a.rate
	if a.phase < 100 {
		return
	}
	n := uint32(a.phase/100) + a.carry
	a.phase, a.carry = a.phase%100, 0
	if w.r.IntN(8) > 0 {
		a.look()
	}
	o := a.obs
	a.obs.Contact = false
	if a.told > 0 {
		a.told++
	}
	a.step(&failover.Event{Kind: failover.Tick, Ticks: min(n, 5), Obs: o})
	if w.off.TokenAnyone {
		a.sideToken()
	}
	a.work()
}

func (a *agent) step(e *failover.Event) {
	w := a.s.w
	w.nonce++
	e.Stamp = failover.Stamp{Nonce: "n" + strconv.FormatUint(w.nonce, 10), Now: int64(w.now+1) * 100}
	if w.reg.ver == 0 {
		e.RecordID = "rec" + strconv.FormatUint(w.nonce, 10)
	}
	e.Random, e.FreshID = w.r.Uint32(), 1<<40|w.nonce
	before, why := a.st.Phase, a.st.Why
	var acts []failover.Action
	a.st, acts = failover.Step(a.st, *e)
	if w.cover != nil {
		w.cover.note(before, e.Kind)
	}
	for i := range acts {
		j := w.job()
		j.act, j.own, j.due, j.inc = acts[i], a.st.Mine, w.now+w.r.IntN(2), a.inc()
		a.jobs = append(a.jobs, j)
	}
	if w.log != nil && (before != a.st.Phase || why != a.st.Why || interesting(acts)) {
		w.say("%s %s %s: %s -> %s/%s %s", a.s.name, e.Kind, outcomes[e.Outcome], before, a.st.Phase, a.st.Why, describe(acts))
	}
}

// job is a fresh or a used one: they are large.
func (w *world) job() *job {
	if k := len(w.free); k > 0 {
		j := w.free[k-1]
		w.free = w.free[:k-1]
		return j
	}
	return &job{}
}

var outcomes = [...]string{"", "done", "conflict", "failed"}

func interesting(acts []failover.Action) bool {
	for _, x := range acts {
		if x.Kind != failover.ReadRecord && x.Kind != failover.LookAtList {
			return true
		}
	}
	return false
}

func describe(acts []failover.Action) (s string) {
	for _, x := range acts {
		s += " " + x.Kind.String()
		switch x.Kind {
		case failover.Swap:
			s += fmt.Sprintf("(g%d, claim %v)", x.Record.Generation, x.Claim)
		case failover.Append:
			s += fmt.Sprintf("(term %d, remove %x, join %x)", x.Term, x.Remove[0], x.ID)
		case failover.Rewrite:
			s += fmt.Sprintf("(%x, keep %v %s)", x.ID, x.Keep, x.Why)
		case failover.WriteToken:
			s += fmt.Sprintf("(g%d)", x.Generation)
		}
	}
	return s
}

func (a *agent) inc() uint32 {
	if a.s.n == nil {
		return 0
	}
	return a.s.n.inc
}

// look is the watcher: what the agent sees of the own etcd and of the other one.
func (a *agent) look() {
	w, s, o := a.s.w, a.s, &a.obs
	other := w.sites[1-s.i]
	if m, ok := s.disk.db.member(s.disk.id); ok || o.Other == 0 {
		_ = m
		a.neighbour()
	}
	o.Version = 3<<16 | 6
	o.Peer = w.reach(s.i, other.i) && other.running()
	o.Contact = o.Contact || o.Peer
	n := s.n
	if n == nil || s.pausedTo > w.now {
		o.Leader, o.Voters, o.Learner, o.Etcd = 0, failover.Voters{}, false, failover.EtcdAway
		if n == nil {
			o.Start = 0
		}
		return
	}
	o.Start = n.inc
	if !n.open {
		o.Leader, o.Voters, o.Learner, o.Etcd = 0, failover.Voters{}, false, failover.EtcdNoLeader
		return
	}
	o.Etcd = failover.EtcdNoLeader
	if n.lead != 0 {
		o.Etcd = failover.EtcdLed
	}
	if o.Member != n.id {
		o.Voters, o.TokenRead = failover.Voters{}, false
	}
	o.Member, o.Cluster = n.id, clusterID
	o.Leader, o.Term, o.Commit = n.lead, n.appliedT, n.commit
	me, listed := n.state.member(n.id)
	if !listed {
		o.Voters, o.Learner = failover.Voters{}, false
		return
	}
	o.Learner, a.home = me.Learner, true
	o.Voters = n.state.voters()
	o.Token, o.TokenRead = n.state.token, true
	o.Token.EntryTerm = 0
}

// neighbour is the other member as the own data last showed it.
func (a *agent) neighbour() {
	ms := a.s.disk.db.members
	id := a.s.disk.id
	if n := a.s.n; n != nil && n.open {
		ms = n.state.members
	}
	self := urls[a.s.i]
	other, voter := uint64(0), false
	for _, m := range ms {
		if m.ID == id || m.PeerURLs[0] == self {
			continue
		}
		if other == 0 || (!m.Learner && !voter) {
			other, voter = m.ID, !m.Learner
		}
	}
	if other != 0 {
		a.obs.Other = other
	}
}

// peek is what the data directory tells a starting agent.
func (a *agent) peek() {
	d := a.s.disk
	a.obs.Member, a.obs.Cluster = d.id, clusterID
	if a.s.n == nil {
		a.obs.TokenRead, a.obs.Token = true, d.db.token
		a.obs.Token.EntryTerm = 0
	}
	a.neighbour()
}

// data is internal/member.Read: what the data directory says under the locks.
func (a *agent) data(asked uint64) failover.Data {
	d, w := a.s.disk, a.s.w
	snap := d.snapshot()
	last, term := d.last()
	out := failover.Data{
		Member: d.id, Cluster: clusterID, Name: a.s.name, Term: d.hs.term, Commit: d.hs.commit, Applied: d.db.ci,
		Snap: snap.index, Last: arbiter.Position{Index: last, Term: term},
	}
	if asked != 0 {
		out.Asked = d.term(asked)
	}
	if d.db.ci > last || snap.index > d.db.ci || d.hs.commit > last {
		out.Problem = failover.DataInsane
		return out
	}
	kept := d.kept()
	if len(kept) > 0 {
		out.First = kept[0].GetIndex()
	}
	out.Token = d.db.token
	var past []failover.PlacedChange
	for _, e := range kept {
		if e.GetIndex() > d.db.ci {
			break
		}
		if c, ok := w.changeOf(e); ok {
			past = append(past, failover.PlacedChange{ConfChange: c, Index: e.GetIndex(), Term: e.GetTerm()})
		}
		if id, p, ok := w.payloadOf(e); ok && out.Token.Present && p.kind == payToken && id == d.db.tokSeq {
			out.TokenIndex = e.GetIndex()
			out.Token.EntryTerm = e.GetTerm()
			if w.off.TokenRedial {
				out.Token.EntryTerm = out.Token.Term
			}
		}
	}
	if !w.off.Past {
		out.Past = failover.FoldPast(d.db.members, d.db.removed, past)
	}
	if w.off.Compacted {
		out.First = 1
		if out.TokenIndex == 0 {
			out.TokenIndex, out.Token.EntryTerm = 1, out.Token.Term
		}
	}
	ents, ok := d.after(d.db.ci)
	if !ok {
		out.Problem = failover.DataInsane
		return out
	}
	var changes []failover.ConfChange
	for _, e := range ents {
		if c, ok := w.changeOf(e); ok {
			changes = append(changes, c)
			continue
		}
		if _, p, ok := w.payloadOf(e); ok && p.kind == payToken {
			out.Tail.Bad = out.Tail.Bad || (out.Tail.Writes && out.Tail.RecordID != p.tok.RecordID)
			out.Tail.Writes, out.Tail.RecordID = true, p.tok.RecordID
			out.Tail.Generation = max(out.Tail.Generation, p.tok.Generation)
		}
	}
	var site []string
	if out.Homeless = !a.home; a.home {
		site = urls[a.s.i : a.s.i+1]
	}
	out.Confs = failover.FoldSite(d.id, site, d.db.members, d.db.removed, changes)
	a.weaken(&out, changes)
	return out
}

// weaken shows the core data from which a rule's evidence was taken away.
func (a *agent) weaken(out *failover.Data, changes []failover.ConfChange) {
	w, d := a.s.w, a.s.disk
	if w.off.Pair && len(changes) > 0 {
		ms, gone := d.db.members, d.db.removed
		for _, c := range changes {
			accept(&ms, &gone, c)
		}
		all := out.Confs
		out.Confs = failover.FoldConfs(d.id, ms, gone, nil)
		out.Confs.Remove = all.Remove // surgery still removes everybody
		if out.Confs.Self {
			// "I am a voter" was the whole test.
			out.Confs.MaxOthers, out.Confs.Others = min(out.Confs.MaxOthers, 1), min(out.Confs.Others, 1)
			out.Confs.Applied, out.Confs.Other = all.Applied, out.Token.Other(d.id)
		}
	}
	if v := out.Confs.Applied; w.off.TokenApplied && v.Count == 2 && w.reg.ver > 0 {
		out.Token = failover.Token{Present: true, RecordID: w.reg.rec.ID, Generation: w.reg.rec.Generation, Cluster: clusterID,
			Members: [2]uint64{min(v.IDs[0], v.IDs[1]), max(v.IDs[0], v.IDs[1])}, Term: 1, EntryTerm: 1}
		out.TokenIndex = max(out.TokenIndex, 1)
		out.Tail = failover.Tail{}
	}
	if w.off.VoidOrder && w.reg.rec.Forced && w.reg.rec.Survivor.ID == d.id {
		out.Token.Generation = min(out.Token.Generation, w.reg.rec.Generation-1)
		out.Tail.Generation = min(out.Tail.Generation, w.reg.rec.Generation-1)
	}
}
