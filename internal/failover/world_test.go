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

	ids     uint64 // the last member ID given out
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
	blind  bool // Obs knows nothing but the state of etcd
	away   bool // etcd is not started by anything

	queue []Action
	held  map[ActionKind]bool
	next  map[ActionKind][]string // how the next actions of a kind end
	last  Event
	ready map[ActionKind]Event // carried out already, the answer is under way

	won   bool   // the own claim was applied under the locks held now
	added uint64 // the ID of the last learner that was surely added
	aside []Reason
	fails int
}

const (
	v36 = 3<<16 | 6
	v37 = 3<<16 | 7
)

var testParams = Params{
	ClaimAfter: 10, HeadStart: 4, Election: 2, WakeAfter: 3, WakeOther: 12, RecordIdle: 20, RecordBusy: 2, ListEvery: 3,
	ConfirmEach: 30, MinRun: 12, MaxRun: 100, HoldFirst: 5, HoldMax: 20, HoldWindow: 200,
}

func newWorld() *world {
	w := &world{link: true, ids: idB, seen: map[[2]string]int{}, did: map[ActionKind]int{}}
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
	return w.link && !w.slow
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
	if a.etcd.leads && b.etcd.leads {
		w.violation("two leaders")
	}
	for _, s := range w.sites {
		if s.etcd.leads {
			w.replicate(s)
			w.complete(s)
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
			w.acked = append(w.acked, w.writes)
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
	o.Other = s.other().etcd.id
	if s.blind {
		o.Member, o.Cluster, o.TokenRead, o.Token = 0, 0, false, Token{}
	}
	if !s.alive() {
		return o
	}
	o.Etcd = EtcdNoLeader
	o.Term, o.Commit = e.term, uint64(e.commit)
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
		ms, _ := e.conf(e.commit)
		o.Voters = voters(ms)
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
	d.Confs = FoldConfs(e.id, ms, removed, cs)
	d.Token = e.token(e.commit)
	if asked > 0 && asked <= uint64(len(e.log)) {
		d.Asked = e.log[asked-1].term
	}
	return d
}

// step runs one event through the core and checks what must hold of every step.
func (s *site) step(e Event) {
	w := s.w
	w.nonces++
	e.Stamp = Stamp{Nonce: fmt.Sprintf("n%d", w.nonces), Now: int64(w.now)}
	if e.RecordID == "" {
		e.RecordID = fmt.Sprintf("rec%d", w.nonces)
	}
	before := s.s
	after, acts := Step(before, e)
	s.s = after
	if w.states != nil {
		w.states[after] = true
	}
	w.seen[[2]string{before.Phase.String(), e.Kind.String()}]++
	for _, a := range acts {
		w.did[a.Kind]++
	}
	s.check(before, after, acts)
	s.queue = append(s.queue, acts...)
	s.print(e, before, after, acts)
}

func (s *site) print(e Event, before, after State, acts []Action) {
	if s.w.quiet {
		return
	}
	var as []string
	poll := true
	for _, a := range acts {
		n := a.Kind.String()
		switch a.Kind {
		case Swap:
			n = fmt.Sprintf("swap(%s g%d)", purposeNames[after.Purpose], a.Record.Generation)
		case Append:
			n = fmt.Sprintf("append(term %d, remove %s)", a.Term, ids(a.Remove[:]))
		case Rewrite:
			n = fmt.Sprintf("rewrite(%x, keep %v)", a.ID, a.Keep)
			if !a.Keep {
				n = fmt.Sprintf("rewrite(%x, aside for %s)", a.ID, a.Why)
			}
		case RemoveLearner, Compare, Promote:
			n = fmt.Sprintf("%s(%x)", n, a.ID)
		case WriteToken:
			n = fmt.Sprintf("%s(g%d)", n, a.Generation)
		}
		as = append(as, n)
		poll = poll && (a.Kind == ReadRecord || a.Kind == LookAtList || a.Kind == Compare)
	}
	if before.Phase == after.Phase && before.Why == after.Why && poll {
		return
	}
	ev := e.Kind.String()
	if e.Kind != Tick && e.Kind != RecordRead && e.Outcome != Done {
		ev += " " + outcomeNames[e.Outcome]
	}
	line := fmt.Sprintf("%4d %s %s: %s", s.w.now, s.name, ev, after.Phase)
	if after.Why != None {
		line += "/" + after.Why.String()
	}
	if len(as) > 0 {
		line += " -> " + strings.Join(as, ", ")
	}
	s.w.out.WriteString(line + "\n")
}

var (
	outcomeNames = []string{"unknown", "done", "conflict", "failed"}
	purposeNames = []string{"none", "create", "claim", "confirm", "whole", "mark", "reassert"}
)

func ids(l []uint64) string {
	var n []string
	for _, id := range l {
		if id != 0 {
			n = append(n, fmt.Sprintf("%x", id))
		}
	}
	return strings.Join(n, " ")
}

// check is what must hold of every step.
func (s *site) check(before, after State, acts []Action) {
	w := s.w
	slots := map[bool]int{before.Arb != NoAction && after.Arb == before.Arb: 0}
	clear(slots)
	for _, a := range acts {
		slots[a.Kind.onArbiter()]++
		switch a.Kind {
		case Append:
			if !s.won || !s.locked {
				w.violation("%s appends without its own swap under these locks (P7)", s.name)
			}
		case Swap:
			if a.Claim && after.Purpose == ForClaim && (!before.Locked || !s.locked) {
				w.violation("%s claims without the locks (P7)", s.name)
			}
			if a.Claim && after.Mine.Nonces[0] != a.Record.ClaimNonce {
				w.violation("%s claims with a nonce that it will not know again (P1)", s.name)
			}
			if a.Claim != (after.Purpose == ForClaim || after.Purpose == ForReassert) || (!a.Claim && a.Record.Generation != max(1, before.Rec.Generation, after.Rec.Generation)) {
				w.violation("%s changes the generation without a claim (P2)", s.name)
			}
		case Rewrite:
			if a.ID == 0 || a.ID != s.added {
				w.violation("%s rewrites to %x, the survivor added %x (P12)", s.name, a.ID, s.added)
			}
			s.added = 0
		case WriteToken:
			if after.Phase != Leading || a.Generation != after.Rec.Generation || after.RecAge != 0 {
				w.violation("%s writes a token of a generation that was not just read (P14)", s.name)
			}
		case Release:
			if after.Held {
				w.violation("%s releases an etcd that has to stay down (P16)", s.name)
			}
		}
	}
	if slots[true] > 1 || slots[false] > 1 || (before.Arb != NoAction && len(acts) > 0 && slots[true] > 0 && after.Arb == NoAction) {
		w.violation("%s has two actions in one slot", s.name)
	}
	if (after.Arb == NoAction) != (!s.out(true) && slots[true] == 0) || (after.Site == NoAction) != (!s.out(false) && slots[false] == 0) {
		w.violation("%s lost track of what is out", s.name)
	}
	if after.Arb == NoAction && after.Site == NoAction {
		switch after.Phase {
		case Stopping, Deciding, Claiming, Appending, Rechecking, Releasing, Joining, Preparing:
			if next, as := Step(after, Event{Kind: Tick, Obs: after.Obs}); len(as) == 0 && next.Phase == after.Phase {
				w.violation("%s is stuck in %s", s.name, after.Phase)
			}
		}
	}
}

func (s *site) out(arb bool) bool {
	return slices.ContainsFunc(s.queue, func(a Action) bool { return a.Kind.onArbiter() == arb })
}

// pump carries actions out and answers them until none is left that may.
func (s *site) pump() {
	for n := 0; s.up; n++ {
		i := slices.IndexFunc(s.queue, func(a Action) bool { return !s.held[a.Kind] })
		if i < 0 {
			return
		}
		if n > 40 {
			s.w.violation("%s never comes to rest", s.name)
			return
		}
		a := s.queue[i]
		s.queue = slices.Delete(s.queue, i, i+1)
		e, ok := s.ready[a.Kind]
		if !ok {
			e = s.perform(a)
		}
		delete(s.ready, a.Kind)
		s.last = e
		s.w.settle()
		s.step(s.last)
	}
}

// tick is one tick of one agent.
func (s *site) tick() {
	if !s.up {
		return
	}
	s.step(Event{Kind: Tick, Obs: s.obs()})
	s.pump()
}

func (w *world) tick(n int, only string) {
	for range n {
		w.now++
		w.settle()
		for _, s := range w.sites {
			if only == "" || s.name == only {
				s.tick()
			}
		}
	}
}
