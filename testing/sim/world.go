package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"twok/arbiter"
)

const clusterID = 0xc1

var urls = [3]string{"http://a", "http://b", "http://c"}

// Off switches rules off, one by one, to show that the checks notice. The switches
// work on what the shell does or on the data as the core is shown them; the core
// itself has none.
type Off struct {
	A0           bool // the commit index is not made durable with the entries that need it
	TokenApplied bool // P4 a, P14: the promotion itself counts as the token
	TokenAnyone  bool // P14: any member's agent writes the token, after one linearizable list through its own member
	TokenRedial  bool // P14: the transaction is sent to whatever etcd runs by then; and P4: its entry's term is not looked at
	Port         bool // A0: the client port opens before the own publication was applied
	Pair         bool // P5: only "am I a voter of the last configuration"
	Past         bool // P5: a third voter that came and went after the token was written does not matter
	Compacted    bool // P5: the log need not reach back to the token's entry, or to the claim
	Swap         bool // P1, A1: the register takes every swap, whatever was read
	KeepLog      bool // P13: a loser always keeps its log
	Sync         bool // A2: what etcd syncs is not durable
	NextTerm     bool // P8: the append is made in the term that the log has already
	ForceTerm    bool // P18: a forced append in the next term, as any other
	KeepForced   bool // P13: a forced claim in the history is like any other
	InPlace      bool // P18: a forced append is made in the log itself, where a kill can cut it short
	OrderSwap    bool // P18, P7: one appends on the order, and swaps afterwards
	VoidOrder    bool // P18: an order counts although the pair was whole under it
	Fence        bool // P16: a lone survivor does not look at a record that names somebody else
}

// config is what a schedule draws once.
type config struct {
	v37       bool // restarts as etcd 3.7 does, else as 3.5 and 3.6
	election  int
	snapCount uint64
	catchUp   uint64
	loss      int // per thousand
	dup       int // per thousand
	reorder   int // per thousand
	maxDelay  int
	hold      bool // hold-down
	renew     bool // the token is written again now and then
}

type site struct {
	w    *world
	i    int
	name string
	disk *disk
	n    *node

	startAt   int  // the supervisor starts etcd then
	away      bool // the machine is off
	rate      int  // percent of the world's ticks
	phase     int
	jump      int // ticks that the clock is ahead by
	pausedTo  int
	slowDisk  int
	slowApply int
	dribble   int
	noCommit  int
	fuse      int
	trap      int // a promotion is appended here: the apply lags from then on, for so many ticks
	trapFuse  int // and: the fuse is lit
	trapToken int // the agent is about to send its token: etcd is killed, its apply lags from then on

	a *agent // nil at the third site
}

type letter struct {
	from, to int // sites
	due      int
	m        *raftpb.Message
	db       *db
	inc      uint32 // of the sender
	line     int    // its history
}

type world struct {
	cfg   config
	off   Off
	r     *rand.Rand
	now   int
	sites [3]*site
	net   []letter
	cut   [3][3]bool
	slow  [3]int // per pair (sum of the sites - 1): the streams are in TCP backoff until then
	drop  map[raftpb.MessageType]int

	reg register

	pays    []payload
	refused map[uint64]bool // transactions whose comparison failed
	reads   uint64
	incs    uint32
	nonce   uint64

	lines  []*history
	match  map[arbiter.Position]uint64 // every entry that was ever written to any log; nil: no forced claims
	tokens map[uint64]tokenAt          // P18: where the first token of a generation was applied
	joins  int                         // forced appends by a removed member
	given  int                         // acknowledged writes that are not of the history that goes on
	ops    []*op
	seq    int64
	third  uint64
	free   []*job
	mute   bool // no clients

	violations []string
	cover      *coverage
	log        func(format string, args ...any)
}

func (w *world) violation(format string, args ...any) {
	v := fmt.Sprintf("t%d: ", w.now) + fmt.Sprintf(format, args...)
	if len(w.violations) < 4 {
		w.violations = append(w.violations, v)
	}
	w.say("VIOLATION %s", v)
}

func (w *world) say(format string, args ...any) {
	if w.log != nil {
		w.log("%4d "+format, append([]any{w.now}, args...)...)
	}
}

// guard runs raft code: a panic there is a violation and the process's end.
func (w *world) guard(s *site, f func()) {
	defer func() {
		if p := recover(); p != nil {
			if _, mine := p.(error); mine { // a nil dereference and such: ours
				panic(p)
			}
			w.violation("%s: etcd panics: %v", s.name, p)
			s.n = nil
			s.away = true
		}
	}()
	f()
}

func (w *world) pay(p payload) uint64 {
	w.pays = append(w.pays, p)
	return uint64(len(w.pays) - 1)
}

func (w *world) siteOf(url string) int { return slices.Index(urls[:], url) }

// reach says whether a call from one site to the other's etcd gets there and back.
func (w *world) reach(from, to int) bool {
	return from == to || (!w.cut[from][to] && !w.cut[to][from])
}

func (s *site) running() bool { return s.n != nil && s.pausedTo <= s.w.now }

// send puts a raft message on its way.
func (w *world) send(n *node, m *raftpb.Message, state *db) {
	from, to := n.s.i, n.peer(m.GetTo())
	lost := to < 0 || to == from || w.sites[to] == nil || w.cut[from][to] || w.slow[from+to-1] > w.now ||
		(w.cfg.loss > 0 && w.r.IntN(1000) < w.cfg.loss) || w.drop[m.GetType()] > w.now
	if lost {
		if m.GetType() == raftpb.MsgSnap {
			n.rn.ReportSnapshot(m.GetTo(), raft.SnapshotFailure)
		}
		if w.r.IntN(2) == 0 {
			n.rn.ReportUnreachable(m.GetTo())
		}
		return
	}
	l := letter{from: from, to: to, due: w.now, m: m, db: state, inc: n.inc, line: n.s.disk.line}
	if w.cfg.maxDelay > 0 && w.r.IntN(4) == 0 {
		l.due += w.r.IntN(w.cfg.maxDelay + 1)
	}
	w.net = append(w.net, l)
	if w.cfg.dup > 0 && m.GetType() != raftpb.MsgProp && w.r.IntN(1000) < w.cfg.dup {
		l.due += 1 + w.r.IntN(6) // a proposal is never sent twice: it would be applied twice
		w.net = append(w.net, l)
	}
}

// deliver hands over what is due, for a few rounds, since answers come at once.
func (w *world) deliver() {
	for range 6 {
		any := false
		batch := w.net
		w.net = nil
		for i, l := range batch {
			if w.cfg.reorder > 0 && i+1 < len(batch) && w.r.IntN(1000) < w.cfg.reorder {
				batch[i+1], l = l, batch[i+1]
			}
			if l.due > w.now {
				w.net = append(w.net, l)
				continue
			}
			any = w.arrive(l) || any
		}
		if !any {
			return
		}
		for _, s := range w.sites {
			w.pump(s)
		}
	}
}

func (w *world) pump(s *site) {
	if s != nil && s.running() {
		w.guard(s, s.n.pump)
	}
}

// arrive delivers one message; false: it stays, or it went nowhere. The sender of a
// snapshot always learns how that ended (rafthttp: snapshotSender).
func (w *world) arrive(l letter) bool {
	before := len(w.net)
	ok := w.hand(l)
	if n := w.sites[l.from].n; l.db != nil && n != nil && n.inc == l.inc && len(w.net) == before {
		status := raft.SnapshotFailure
		if ok && w.reach(l.from, l.to) {
			status = raft.SnapshotFinish
		}
		n.rn.ReportSnapshot(l.m.GetTo(), status)
	}
	return ok
}

func (w *world) hand(l letter) bool {
	s, from := w.sites[l.to], w.sites[l.from]
	if w.cut[l.from][l.to] {
		// The connection stalls; what it holds comes later or is lost with it.
		if w.r.IntN(3) == 0 {
			l.due = w.now + 1 + w.r.IntN(8)
			w.net = append(w.net, l)
		}
		return false
	}
	if s == nil || s.n == nil {
		return false
	}
	if s.pausedTo > w.now {
		l.due = s.pausedTo
		w.net = append(w.net, l)
		return false
	}
	n := s.n
	m := l.m
	if n.state.gone(m.GetFrom()) {
		// 403, 410: "the member has been permanently removed".
		if from.n != nil && from.n.inc == l.inc && from.n.id == m.GetFrom() && from.n.dieAt == 0 && w.reach(l.to, l.from) {
			from.n.dieAt = w.now + 1 + w.r.IntN(6)
		}
		return false
	}
	if m.GetTo() != n.id {
		return false
	}
	if n.remotes == nil {
		n.remotes = map[uint64]int{}
	}
	n.remotes[m.GetFrom()] = l.from
	if l.db != nil {
		md := m.Snapshot.GetMetadata()
		n.received = append(n.received, snapRec{index: md.GetIndex(), term: md.GetTerm(), db: *l.db})
		if len(n.received) > 3 {
			n.received = n.received[1:]
		}
	}
	if len(w.lines) > 1 {
		w.sent(from.n, n, m, l.line)
	}
	w.guard(s, func() { _ = n.rn.Step(m) })
	return true
}

// tick is one tick of the world.
func (w *world) tick() {
	w.now++
	order := w.r.IntN(2)
	for k := range w.sites {
		i := k
		if order == 1 {
			i = len(w.sites) - 1 - k
		}
		s := w.sites[i]
		if s == nil {
			continue
		}
		w.supervise(s)
		if s.running() {
			n := s.n
			s.phase += s.rate
			for s.phase >= 100 || s.jump > 0 {
				if s.phase >= 100 {
					s.phase -= 100
				} else {
					s.jump--
				}
				w.guard(s, n.rn.Tick)
			}
			n.publish()
			if w.r.IntN(3) == 0 && s.noCommit <= w.now {
				s.disk.db = n.state
			}
			w.pump(s)
		}
	}
	w.deliver()
	for _, s := range w.sites[:2] {
		s.a.tick()
	}
	w.clients()
	w.deliver()
}

// supervise is kubelet or systemd, and etcd's own end after it was removed.
func (w *world) supervise(s *site) {
	if n := s.n; n != nil && n.dieAt != 0 && n.dieAt <= w.now && s.pausedTo <= w.now {
		s.crash(-1)
		return
	}
	locked := s.a != nil && s.a.locked
	if s.n == nil && !s.away && !locked && s.startAt <= w.now {
		s.boot()
	}
}

// publish registers the member's attributes; the client port opens when that was applied.
func (n *node) publish() {
	if n.open {
		return
	}
	w := n.s.w
	if (n.pub != nil && n.pub.done && n.pub.ok) || (w.off.Port && n.lead != 0) {
		n.open = true
		return
	}
	if n.lead == 0 || n.pubAt > w.now {
		return
	}
	n.pubAt = w.now + 6
	n.pub = n.propose(payload{kind: payPublish, member: n.id})
}

// leader is the one that clients would find: of the highest term.
func (w *world) leader() *node {
	var best *node
	for _, s := range w.sites {
		if s != nil && s.running() && s.n.leads && (best == nil || s.n.term > best.term) {
			best = s.n
		}
	}
	return best
}

func (w *world) randomID() uint64 {
	for {
		id := uint64(w.r.Uint32())
		if id > 255 {
			return id
		}
	}
}
