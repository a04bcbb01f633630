package sim

import (
	crand "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"twok/internal/failover"
)

// raftRandom replaces crypto/rand.Reader, where raft draws its election timeouts
// from, so that a seed decides them.
type raftRandom struct{ r *rand.Rand }

func (s raftRandom) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.r.Uint32())
	}
	return len(b), nil
}

const (
	idA = uint64(0xaaaa)
	idB = uint64(0xbbbb)
)

// calm is how many ticks a pair has to become whole after the faults end.
const calm = 700

// result is what a run came to.
type result struct {
	violations []string
	end        string // "whole", or the two phases and reasons
	ticks      int    // until whole, after the faults ended
	writes     int    // acknowledged
	reads      int
	generation uint64
	entries    int
	forks      int // histories that a forced claim began
	joins      int // of them by a removed member
	given      int // acknowledged writes that are not of the history that went on
}

func newWorld(seed uint64, off Off) *world {
	w := &world{off: off, r: rand.New(rand.NewPCG(seed, 1)), refused: map[uint64]bool{}, drop: map[raftpb.MessageType]int{}}
	crand.Reader = raftRandom{rand.New(rand.NewPCG(seed, 2))}
	w.cfg = drawConfig(w.r)
	w.cfg.renew = seed%4 < 2 // drawn without the generator, so that older schedules stay
	return w
}

// pairDisks is what etcd leaves after it bootstrapped a pair: two changes, applied.
func (w *world) pair() {
	w.lines = []*history{{chain: make([]link, 1)}}
	w.pays = append(w.pays, payload{kind: payNudge})
	var ents []*raftpb.Entry
	var state db
	for i, id := range []uint64{idA, idB} {
		c := failover.ConfChange{Kind: failover.ChangeAdd, ID: id, PeerURLs: []string{urls[i]}}
		p := w.pay(payload{kind: payConf, conf: c})
		cc := raftpb.ConfChange{Id: ptr(uint64(0)), Type: raftpb.ConfChangeAddNode.Enum(), NodeId: ptr(id), Context: payBytes(p)}
		ents = append(ents, &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Index: ptr(uint64(i + 1)), Term: ptr(uint64(1)), Data: marshal(&cc)})
		accept(&state.members, &state.removed, c)
	}
	state.ci, state.term = 2, 1
	for i, id := range []uint64{idA, idB} {
		s := &site{w: w, i: i, name: string(rune('a' + i)), rate: 100}
		s.disk = &disk{id: id, hs: hardState{term: 1, commit: 2}, ents: slices.Clone(ents), db: state}
		s.disk.saved = s.disk.hs
		s.a = newAgent(s)
		w.sites[i] = s
	}
	// The chain learns them without a node.
	n := &node{s: w.sites[0]}
	for _, e := range ents {
		w.checkEntry(n, e)
	}
}

// run carries out a schedule.
func run(s schedule, off Off, cov *coverage, log func(string, ...any)) result {
	w := newWorld(s.seed, off)
	w.mute = false
	w.begins(s.start)
	w.cover, w.log, w.reg.any = cov, log, off.Swap
	w.ops, w.seq = nil, 1<<20
	if len(w.violations) > 0 {
		return result{violations: w.violations, end: "no start"}
	}
	base := w.now
	initial := w.final()
	if s.forced() {
		w.watchForces()
	}
	next := 0
	for w.now < base+s.steps {
		for next < len(s.events) && s.events[next].at <= w.now-base {
			e := s.events[next]
			next++
			w.say("> %s", e)
			for _, x := range w.sites[:2] {
				if x.n != nil {
					w.pump(x)
				}
			}
			w.guard(w.sites[0], func() { verbs[e.verb].do(w, e.arg) })
		}
		w.tick()
		if len(w.violations) > 0 {
			break
		}
	}
	res := result{end: "violated"}
	if len(w.violations) == 0 {
		res.end, res.ticks = w.calm()
	}
	if s.forced() && res.end != "whole" && len(w.violations) == 0 {
		res.end = w.back(res.end)
	}
	w.judge(initial)
	res.violations = w.violations
	for _, o := range w.ops {
		if o.ret != 0 && o.write {
			res.writes++
		} else if o.ret != 0 {
			res.reads++
		}
	}
	res.generation, res.entries = w.reg.rec.Generation, len(w.lines[0].chain)
	res.forks, res.joins, res.given = len(w.lines)-1, w.joins, w.given
	return res
}

// calm ends every fault and waits for the pair to become whole.
func (w *world) calm() (string, int) {
	w.say("> calm")
	w.cut, w.slow = [3][3]bool{}, [3]int{}
	clear(w.drop)
	w.cfg.loss, w.cfg.reorder, w.cfg.dup = 0, 0, 0
	for i, s := range w.sites {
		if s == nil {
			continue
		}
		s.away, s.fuse, s.rate = false, 0, 100
		s.slowApply, s.slowDisk, s.dribble, s.noCommit = 0, 0, 0, 0
		if i < 2 {
			s.a.arb, s.a.fuse, s.a.failing, s.a.swapBad, s.a.rate = arbUp, 0, failover.NoAction, swapFine, 100
		}
	}
	from := w.now
	var seen [2]map[string]int // what each agent said in the last third
	for i := range seen {
		seen[i] = map[string]int{}
	}
	for w.now < from+calm {
		w.tick()
		if w.now > from+calm*2/3 {
			for i := range seen {
				st := &w.sites[i].a.st
				seen[i][st.Phase.String()+"/"+st.Why.String()]++
			}
		}
		if len(w.violations) > 0 {
			return "violated", 0
		}
		if w.third != 0 && w.now%16 == 0 {
			w.guard(w.sites[0], w.removeThird)
			w.removeEverywhere()
		}
		if w.whole() {
			w.given = w.givenUp(w.sites[0].n.state.line)
			return "whole", w.now - from
		}
	}
	// Retries make a state flicker: what was said most of the time counts.
	var ends []string
	for i := range seen {
		most := ""
		for _, k := range slices.Sorted(maps.Keys(seen[i])) {
			if most == "" || seen[i][k] > seen[i][most] {
				most = k
			}
		}
		ends = append(ends, most)
	}
	slices.Sort(ends)
	for _, x := range w.sites[:2] {
		if (x.n == nil || x.n.lead == 0) && x.behindRemoval() {
			w.say("%s", w.show())
			return "etcd-behind-removal", calm
		}
	}
	w.say("%s", w.show())
	return ends[0] + "+" + ends[1], calm
}

// whole: both agents say so, one leads, both have applied the same, and hashes are equal.
func (w *world) whole() bool {
	a, b := w.sites[0], w.sites[1]
	if !a.a.st.Whole() || !b.a.st.Whole() || a.n == nil || b.n == nil || (a.a.st.Phase == failover.Leading) == (b.a.st.Phase == failover.Leading) {
		return false
	}
	if w.reg.rec.WholeGeneration != w.reg.rec.Generation || a.n.state.ci != b.n.state.ci || !a.n.open || !b.n.open || !a.a.up || !b.a.up {
		return false
	}
	if a.n.state.hash != b.n.state.hash || a.n.state.rev != b.n.state.rev {
		w.violation("the pair is whole and its key spaces differ")
	}
	if a.n.state.line != b.n.state.line {
		w.violation("the pair is whole and its members are of two histories")
	}
	if a.n.state.voters().Count != 2 {
		return false // somebody has just removed one
	}
	if a.n.state.voters() != b.n.state.voters() {
		w.violation("the pair is whole and its members differ: %v, %v", a.n.state.members, b.n.state.members)
	}
	return true
}

// begins brings the world to a start. The way there has no faults; the state is
// kept and used again.
func (w *world) begins(st start) {
	w.pair()
	if st == fresh {
		return
	}
	key := prefabKey{st, w.cfg.v37, w.r.IntN(2)}
	p, ok := prefabs[key]
	if !ok {
		p = build(key)
		prefabs[key] = p
	}
	p.into(w)
}

type prefabKey struct {
	st   start
	v37  bool
	side int // the survivor
}

// prefab is a world at rest: disks, record, memories, and what was committed.
type prefab struct {
	disks [2]disk
	own   [2]failover.Own
	seen  [2]map[string]uint64
	reg   register
	pays  []payload
	chain []link // of the only history
	ref   map[uint64]bool
	nonce uint64
	incs  uint32
	bad   string
}

var prefabs = map[prefabKey]*prefab{}

func build(k prefabKey) *prefab {
	saved := crand.Reader
	defer func() { crand.Reader = saved }()
	w := &world{r: rand.New(rand.NewPCG(uint64(k.st)*4+uint64(k.side), 7)), refused: map[uint64]bool{}, drop: map[raftpb.MessageType]int{}}
	crand.Reader = raftRandom{rand.New(rand.NewPCG(9, 9))}
	w.cfg, w.mute = config{v37: k.v37, election: 5, snapCount: 1 << 30, catchUp: 4}, true
	w.pair()
	until := func(f func() bool) bool {
		for range 600 {
			if f() {
				return true
			}
			w.tick()
		}
		return false
	}
	p := &prefab{}
	surv, lost := w.sites[k.side], w.sites[1-k.side]
	ok := until(w.whole)
	if ok && k.st > whole {
		lost.a.arb = arbDown
		w.setCut(0, 1, true)
		w.setCut(1, 0, true)
		ok = until(func() bool { return surv.a.st.Phase == failover.Alone && w.reg.rec.Confirmed.Index != 0 })
		for range 10 {
			w.tick()
		}
	}
	if ok && k.st > alone {
		lost.a.arb = arbUp
		w.setCut(0, 1, false)
		w.setCut(1, 0, false)
		ok = until(func() bool {
			if surv.n == nil {
				return false
			}
			m, listed := surv.n.state.member(lost.disk.id)
			switch k.st {
			case joining:
				return surv.n.state.voters().Learners == 1
			case rewritten:
				return listed && m.Learner
			case learning:
				return listed && m.Learner && lost.n != nil && lost.n.applied > 3
			case promoted:
				surv.noCommit = w.now + 100 // in the log, not in the database
				return listed && surv.n.state.voters().Count == 2 && w.hasPromotion(surv)
			}
			return listed && surv.n.state.voters().Count == 2
		})
	}
	if !ok {
		p.bad = fmt.Sprintf("start %s was not reached: %s", k.st, w.show())
	}
	for i := range 2 {
		s := w.sites[i]
		s.crash(0)
		p.disks[i], p.own[i], p.seen[i] = *s.disk, s.a.own, maps.Clone(s.a.seen)
	}
	p.reg, p.pays, p.chain, p.ref, p.nonce, p.incs = w.reg, w.pays, w.lines[0].chain, w.refused, w.nonce, w.incs
	p.reg.late = nil
	return p
}

// behindRemoval: the database has applied a removal that HardState.Commit does not cover.
// etcd 3.5 and 3.6 then restart Raft with the members before it, while the transport follows the
// database and knows them no more: the last member cannot elect itself. Plain etcd's, but for who may claim.
func (s *site) behindRemoval() bool {
	d := s.disk
	v := d.db.voters()
	if s.w.cfg.v37 || v.Count != 1 || v.IDs[0] != d.id {
		return false
	}
	ents, _ := d.after(d.hs.commit)
	for _, e := range ents {
		if c, ok := s.w.changeOf(e); ok && c.Kind == failover.ChangeRemove && e.GetIndex() <= d.db.ci {
			return true
		}
	}
	return false
}

// hasPromotion says whether a promotion is in the log beyond the database.
func (w *world) hasPromotion(s *site) bool {
	ents, _ := s.disk.after(s.disk.db.ci)
	for _, e := range ents {
		if c, ok := w.changeOf(e); ok && c.Kind == failover.ChangePromote {
			return true
		}
	}
	return false
}

func (p *prefab) into(w *world) {
	if p.bad != "" {
		w.violation("%s", p.bad)
		return
	}
	for i := range 2 {
		s := w.sites[i]
		d := p.disks[i]
		d.ents, d.snaps = slices.Clone(d.ents), slices.Clone(d.snaps)
		s.disk = &d
		s.a.own, s.a.seen = p.own[i], maps.Clone(p.seen[i])
		s.startAt = w.r.IntN(4)
		s.a.startAt = w.r.IntN(6)
	}
	w.reg = p.reg
	w.pays, w.lines = slices.Clone(p.pays), []*history{{chain: slices.Clone(p.chain)}}
	w.refused, w.nonce, w.incs = maps.Clone(p.ref), p.nonce, p.incs
	w.reads = 1 << 32
}

func (w *world) show() string {
	out := ""
	for _, s := range w.sites {
		if s == nil {
			continue
		}
		out += fmt.Sprintf("\n  %s: etcd %s, disk id %x hs %v db %d", s.name, s.n.status(), s.disk.id, s.disk.hs, s.disk.db.ci)
		if s.a != nil {
			out += fmt.Sprintf(", agent %v %s/%s locked %v site %s arb %s", s.a.up, s.a.st.Phase, s.a.st.Why, s.a.locked, s.a.st.Site, s.a.st.Arb)
		}
	}
	return out + fmt.Sprintf("\n  record g%d survivor %x whole %d", w.reg.rec.Generation, w.reg.rec.Survivor.ID, w.reg.rec.WholeGeneration)
}
