package failover

import (
	"fmt"
	"slices"
	"strings"

	"twok/arbiter"
)

// world is two agents, their abstract etcds and one register. The etcds are as
// simple as the rules allow: a leader needs every voter of its configuration
// connected, an election is instant, the more up-to-date log wins, a follower's
// commit index lags behind the last write. Everything that was acknowledged is
// remembered, so that every world checks the safety statement after each step.
type world struct {
	sites [2]*site
	now   int
	link  bool
	third bool // a third member, at neither site, is reachable
	slow  bool // the etcds' streams are in TCP backoff: 40 ticks, or until one of them restarts
	until int
	since [2]uint32 // their starts when slow was set

	rec    arbiter.Record
	ver    int // 0: absent
	status RecordStatus
	old    []arbiter.Record // every content the register has had

	ids     uint64          // the last member ID given out
	fresh   uint64          // IDs that agents might give themselves
	lineage uint64          // the term of the last forced append; zero: none
	forks   int             // forced claims that were carried out
	joins   int             // by a removed member
	begun   map[uint64]bool // the terms of all forced appends
	nonces  int
	acked   []int // writes that a client was told of
	writes  int
	late    []lateSwap
	out     strings.Builder
	violate []string
	states  map[State]bool // a State is a map key
	quiet   bool
	seen    map[[2]string]int  // phase and event
	did     map[ActionKind]int // actions
}

type lateSwap struct {
	prev int
	next arbiter.Record
}

type entry struct {
	term  uint64
	write int
	conf  ConfChange
	token Token // Present: a token write
	del   bool  // deletes the token
}

type etcd struct {
	id      uint64
	log     []entry
	commit  int
	from    int // entries that are no longer in the log
	segment uint64
	term    uint64
	leads   bool
	running bool
	dead    bool // was told that it is removed
	start   uint32
	version uint32
}

type site struct {
	w    *world
	name string
	n    int
	s    State
	up   bool // the agent runs
	own  Own  // memory on disk
	seen map[string]uint64

	etcd   etcd
	locked bool
	copied *etcd // what `snapshot` kept
	arb    string
	trust  StoreState
	blind  bool // Obs knows nothing but the state of etcd
	away   bool // etcd is not started by anything
	blank  bool // the disk is new, and etcd is kept from starting on it

	queue []Action
	held  map[ActionKind]bool
	next  map[ActionKind][]string // how the next actions of a kind end
	last  Event
	ready map[ActionKind]Event // carried out already, the answer is under way

	won   bool   // the own claim was applied under the locks held now
	term  uint64 // the fork's, of the last claim that was applied
	added uint64 // the ID of the last learner that was surely added
	aside []Reason
}

const (
	v36 = 3<<16 | 6
	v37 = 3<<16 | 7
)

var testParams = Params{
	ClaimAfter: 10, HeadStart: 4, Election: 2, WakeAfter: 3, WakeOther: 12, RecordIdle: 20, RecordAlone: 6, RecordBusy: 2, ListEvery: 3,
	ConfirmEach: 30, TokenEach: 60, TokenFew: 4, TokenSegs: 2, MinRun: 12, MaxRun: 100, HoldFirst: 5, HoldMax: 20, HoldWindow: 200,
}

func newWorld() *world {
	w := &world{link: true, begun: map[uint64]bool{}, ids: idB, seen: map[[2]string]int{}, did: map[ActionKind]int{}}
	for i, name := range []string{"a", "b"} {
		s := &site{w: w, name: name, n: i, up: true, s: New(testParams, Own{}), seen: map[string]uint64{}, held: map[ActionKind]bool{}, next: map[ActionKind][]string{}, ready: map[ActionKind]Event{}, arb: "up"}
		s.etcd = etcd{id: idA + uint64(i), running: true, start: 1, version: v36, term: 1, log: []entry{{term: 1}}, commit: 1}
		w.sites[i] = s
	}
	w.settle()
	return w
}

func (s *site) url() []string { return []string{"http://" + s.name} }
func (s *site) other() *site  { return s.w.sites[1-s.n] }

func (e *etcd) last() arbiter.Position {
	if len(e.log) == 0 {
		return arbiter.Position{}
	}
	return arbiter.Position{Index: uint64(len(e.log)), Term: e.log[len(e.log)-1].term}
}

// base is the configuration that every log starts from.
func base() []ConfMember {
	return []ConfMember{{ID: idA, PeerURLs: []string{"http://a"}}, {ID: idB, PeerURLs: []string{"http://b"}}}
}

// conf is the configuration after the first n entries, and the removed IDs.
func (e *etcd) conf(n int) (ms []ConfMember, removed []uint64) {
	members, gone := map[uint64]ConfMember{}, map[uint64]bool{}
	for _, m := range base() {
		members[m.ID] = m
	}
	for _, x := range e.log[:n] {
		if x.conf.Kind != ChangeUnknown {
			accept(members, gone, x.conf)
		}
	}
	for _, m := range members {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b ConfMember) int { return int(a.ID) - int(b.ID) })
	for id := range gone {
		removed = append(removed, id)
	}
	return ms, removed
}

func voters(ms []ConfMember) (v Voters) {
	for _, m := range ms {
		if m.Learner {
			v.Learners++
			continue
		}
		if v.Count < 2 {
			v.IDs[v.Count] = m.ID
		}
		v.Count++
	}
	return v
}

func (e *etcd) token(n int) Token {
	for i := n - 1; i >= 0; i-- {
		if e.log[i].del {
			return Token{}
		}
		if t := e.log[i].token; t.Present {
			t.EntryTerm = e.log[i].term
			return t
		}
	}
	return Token{}
}

// joined says whether the etcds talk to each other.
func (w *world) joined() bool {
	w.slow = w.slow && w.now < w.until && w.since == [2]uint32{w.sites[0].etcd.start, w.sites[1].etcd.start}
	return w.link && !w.slow && !w.apart()
}

func (s *site) alive() bool { return s.etcd.running && !s.locked && !s.etcd.dead }

// find is the site whose etcd has this ID, runs and is connected to from.
func (w *world) find(from *site, id uint64) *site {
	for _, s := range w.sites {
		if s.etcd.id == id && s.alive() && (s == from || w.joined()) {
			return s
		}
	}
	return nil
}

// canLead: every voter of its own configuration is connected, itself one.
func (w *world) canLead(s *site) bool {
	if !s.alive() {
		return false
	}
	ms, _ := s.etcd.conf(s.etcd.commit)
	self := false
	for _, m := range ms {
		if m.Learner {
			continue
		}
		self = self || m.ID == s.etcd.id
		if m.ID != s.etcd.id && w.find(s, m.ID) == nil && (m.ID != idThird || !w.third) {
			return false
		}
	}
	return self
}

const idThird = uint64(0x33)

// settle lets the etcds elect, replicate, commit and learn of their removal.
func (w *world) settle() {
	for _, s := range w.sites {
		s.etcd.leads = s.etcd.leads && w.canLead(s)
	}
	a, b := w.sites[0], w.sites[1]
	if w.joined() && w.canLead(a) && w.canLead(b) {
		// One group: the more up-to-date log wins.
		lose := b
		if pa, pb := a.etcd.last(), b.etcd.last(); pb.Term > pa.Term || (pb.Term == pa.Term && (pb.Index > pa.Index || (pb.Index == pa.Index && b.etcd.leads))) {
			lose = a
		}
		w.elect(lose.other())
		lose.etcd.leads = false
	} else {
		w.elect(a)
		w.elect(b)
	}
	if a.etcd.leads && b.etcd.leads && !w.apart() {
		w.violation("two leaders")
	}
	w.terms()
	for _, s := range w.sites {
		if s.etcd.leads {
			w.replicate(s)
			if w.current(s) {
				w.complete(s)
			}
		}
	}
}

// fork: a forced claim begins a history of its own. Nothing else that was acknowledged counts from here on.
func (w *world) fork(s *site, term uint64) {
	w.begun[term] = true
	w.lineage, w.forks = term, w.forks+1
	w.forget(s)
}

// forget: what s does not have is given up.
func (w *world) forget(s *site) {
	have := map[int]bool{}
	for _, x := range s.etcd.log {
		have[x.write] = true
	}
	w.acked = slices.DeleteFunc(w.acked, func(id int) bool { return !have[id] })
}

// lineage is the term of the last forced append in this log.
func (w *world) of(s *site) uint64 {
	for _, x := range slices.Backward(s.etcd.log) {
		if w.begun[x.term] {
			return x.term
		}
	}
	return 0
}

// current says whether this log is of the history that goes on.
func (w *world) current(s *site) bool { return len(s.etcd.log) == 0 || w.of(s) == w.lineage }

// apart: one of the members goes on with a history that was given up. Raft does not bring the two together.
func (w *world) apart() bool {
	a, b := w.sites[0], w.sites[1]
	return len(a.etcd.log) > 0 && len(b.etcd.log) > 0 && w.of(a) != w.of(b)
}

// terms is Raft's Log Matching, across all histories: two entries of one index and term are one entry (P18).
func (w *world) terms() {
	a, b := w.sites[0].etcd.log, w.sites[1].etcd.log
	for i := range min(len(a), len(b)) {
		if a[i].term == b[i].term && !sameEntry(a[i], b[i]) {
			w.violation("two entries at %d@%d", i+1, a[i].term)
		}
	}
}

func (w *world) elect(s *site) {
	if !w.canLead(s) || s.etcd.leads {
		return
	}
	e := &s.etcd
	if o := s.other(); w.joined() && o.alive() {
		e.term = max(e.term, o.etcd.term)
		o.etcd.leads = false
	}
	e.term++
	e.log = append(e.log, entry{term: e.term})
	e.leads = true
}

// replicate copies the leader's log to the other site's etcd, if it is a member;
// if it was removed, it learns so.
func (w *world) replicate(s *site) {
	e, o := &s.etcd, s.other()
	e.commit = len(e.log)
	if !w.joined() || !o.alive() {
		return
	}
	ms, removed := e.conf(e.commit)
	switch {
	case slices.ContainsFunc(ms, func(m ConfMember) bool { return m.ID == o.etcd.id }):
		if o.etcd.commit > len(e.log) || !slices.EqualFunc(o.etcd.log[:o.etcd.commit], e.log[:o.etcd.commit], sameEntry) {
			w.violation("committed entries of %s are overwritten", o.name)
		}
		o.etcd.log, o.etcd.term, o.etcd.commit = slices.Clone(e.log), e.term, len(e.log)
	case slices.Contains(removed, o.etcd.id):
		o.etcd.dead = true
	}
}

func sameEntry(a, b entry) bool {
	return a.term == b.term && a.write == b.write && a.conf.ID == b.conf.ID && a.conf.Kind == b.conf.Kind && a.token == b.token
}

// complete: a leader has every acknowledged write.
func (w *world) complete(s *site) {
	have := map[int]bool{}
	for _, x := range s.etcd.log {
		have[x.write] = true
	}
	for _, id := range w.acked {
		if !have[id] {
			w.violation("%s leads without the acknowledged write %d", s.name, id)
			return
		}
	}
}

func (w *world) violation(format string, args ...any) {
	v := fmt.Sprintf("VIOLATION: "+format, args...)
	if len(w.violate) > 0 && w.violate[len(w.violate)-1] == v {
		return
	}
	w.violate = append(w.violate, v)
	fmt.Fprintf(&w.out, "%4d %s\n", w.now, v)
}

// write is n client writes through the leader. The follower has them in its log,
// and does not know yet that they are committed.
func (w *world) write(n int) string {
	for _, s := range w.sites {
		if !s.etcd.leads {
			continue
		}
		e, o := &s.etcd, s.other()
		follows := false
		if ms, _ := e.conf(e.commit); w.joined() && o.alive() {
			follows = slices.ContainsFunc(ms, func(m ConfMember) bool { return m.ID == o.etcd.id }) && len(o.etcd.log) == len(e.log)
		}
		for range n {
			w.writes++
			x := entry{term: e.term, write: w.writes}
			e.log = append(e.log, x)
			if follows {
				o.etcd.log = append(o.etcd.log, x)
			}
			if w.current(s) {
				w.acked = append(w.acked, w.writes)
			}
		}
		e.commit = len(e.log)
		return fmt.Sprintf("%d writes acknowledged by %s", n, s.name)
	}
	return "no leader: nothing acknowledged"
}

func (s *site) obs() Obs {
	w, e := s.w, &s.etcd
	o := Obs{Etcd: EtcdAway, Start: e.start, Version: e.version, Member: e.id, Cluster: clusterID, TokenRead: true, Token: e.token(e.commit)}
	o.Token.EntryTerm = 0
	o.Peer = w.link && s.other().alive()
	o.Contact = o.Peer
	o.Other, o.Store = s.other().etcd.id, s.trust
	o.Blank = s.blank
	if s.blind || s.blank {
		o.Member, o.Cluster, o.TokenRead, o.Token = 0, 0, false, Token{}
	}
	if !s.alive() {
		return o
	}
	o.Etcd = EtcdNoLeader
	o.Term, o.Commit, o.Segment = e.term, uint64(e.commit), e.segment
	for _, l := range w.sites {
		if !l.etcd.leads || (l != s && !w.joined()) {
			continue
		}
		ms, _ := l.etcd.conf(l.etcd.commit)
		for _, m := range ms {
			if m.ID == e.id {
				o.Etcd, o.Leader, o.Learner = EtcdLed, l.etcd.id, m.Learner
			}
		}
	}
	if o.Etcd == EtcdLed {
		o.Member, o.Cluster = e.id, clusterID
		if ms, _ := e.conf(e.commit); !o.Learner { // a learner refuses to show its list
			o.Voters = voters(ms)
		}
	}
	return o
}

func (s *site) data(asked uint64) Data {
	e := &s.etcd
	ms, removed := e.conf(e.commit)
	d := Data{Member: e.id, Cluster: clusterID, Name: s.name, Term: e.term, Commit: uint64(e.commit), Applied: uint64(e.commit), Last: e.last()}
	if len(e.log) == 0 {
		d.Last.Index = 0
	}
	var cs []ConfChange
	for _, x := range e.log[e.commit:] {
		if x.conf.Kind != ChangeUnknown {
			cs = append(cs, x.conf)
		}
		switch {
		case x.del:
			d.Tail.Bad = true
		case x.token.Present:
			d.Tail.Bad = d.Tail.Bad || (d.Tail.Writes && d.Tail.RecordID != x.token.RecordID)
			d.Tail.Writes, d.Tail.RecordID, d.Tail.Generation = true, x.token.RecordID, max(d.Tail.Generation, x.token.Generation)
		}
	}
	d.Confs = FoldSite(e.id, s.url(), ms, removed, cs)
	d.Token = e.token(e.commit)
	if e.from < len(e.log) {
		d.First = uint64(e.from + 1)
	}
	var past []PlacedChange
	for i, x := range e.log[:e.commit] {
		switch {
		case i < e.from:
		case x.conf.Kind != ChangeUnknown:
			past = append(past, PlacedChange{ConfChange: x.conf, Index: uint64(i + 1), Term: x.term})
		case x.token.Present:
			d.TokenIndex = uint64(i + 1)
		case x.del:
			d.TokenIndex = 0
		}
	}
	d.Past = FoldPast(ms, removed, past)
	if d.TokenIndex == 0 {
		d.Token.EntryTerm = 0
	}
	if asked > 0 && asked <= uint64(len(e.log)) {
		d.Asked = e.log[asked-1].term
	}
	return d
}
