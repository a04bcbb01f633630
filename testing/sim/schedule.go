package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/raft/v3/raftpb"

	"twok/internal/failover"
)

// schedule is everything that a run depends on: a seed for what is drawn along
// the way, where it begins, and the events. Its text form is what a failure prints.
type schedule struct {
	seed   uint64
	start  start
	steps  int
	events []event
}

// event is one thing that happens at a tick.
type event struct {
	at   int
	verb string
	arg  []int
}

// start is the state that a run begins in.
type start int

const (
	fresh     start = iota // two voters, no record
	whole                  // a whole pair
	alone                  // one survivor, the other member down since the cut
	joining                // the survivor has added the learner, the loser's WAL is the old one
	rewritten              // the loser's WAL carries the new ID
	learning               // the learner runs
	promoted               // the promotion is in the survivor's log
	pending                // a voter again, the token not yet written
	starts
)

var startNames = [starts]string{"fresh", "whole", "alone", "joining", "rewritten", "learning", "promoted", "pending"}

func (s start) String() string { return startNames[s] }

func (e event) String() string {
	f := []string{fmt.Sprintf("%d:%s", e.at, e.verb)}
	for _, a := range e.arg {
		f = append(f, strconv.Itoa(a))
	}
	return strings.Join(f, ",")
}

// String is the compact form: seed start steps event event ...
func (s schedule) String() string {
	f := []string{strconv.FormatUint(s.seed, 10), s.start.String(), strconv.Itoa(s.steps)}
	for _, e := range s.events {
		f = append(f, e.String())
	}
	return strings.Join(f, " ")
}

// parse reads what String wrote.
func parse(text string) (schedule, error) {
	f := strings.Fields(text)
	if len(f) < 3 {
		return schedule{}, fmt.Errorf("schedule %q: want seed, start, steps, events", text)
	}
	var s schedule
	var err error
	if s.seed, err = strconv.ParseUint(f[0], 10, 64); err != nil {
		return s, err
	}
	i := slices.Index(startNames[:], f[1])
	if i < 0 {
		return s, fmt.Errorf("schedule: no start %q", f[1])
	}
	s.start = start(i)
	if s.steps, err = strconv.Atoi(f[2]); err != nil {
		return s, err
	}
	for _, t := range f[3:] {
		at, rest, ok := strings.Cut(t, ":")
		if !ok {
			return s, fmt.Errorf("schedule: event %q", t)
		}
		var e event
		if e.at, err = strconv.Atoi(at); err != nil {
			return s, err
		}
		parts := strings.Split(rest, ",")
		e.verb = parts[0]
		for _, p := range parts[1:] {
			n, err := strconv.Atoi(p)
			if err != nil {
				return s, err
			}
			e.arg = append(e.arg, n)
		}
		v, ok := verbs[e.verb]
		if !ok || len(e.arg) != v.args {
			return s, fmt.Errorf("schedule: event %q", t)
		}
		s.events = append(s.events, e)
	}
	return s, nil
}

type verb struct {
	args   int
	weight int
	draw   func(r *rand.Rand) []int
	do     func(w *world, a []int)
}

func two(r *rand.Rand) int { return r.IntN(2) }

// verbs are all events. A site is 0, 1, or 2 for the third; n is in ticks.
var verbs map[string]verb

// verbNames fixes the order in which they are drawn.
var verbNames []string

var dropTypes = []raftpb.MessageType{raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp,
	raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp, raftpb.MsgSnap, raftpb.MsgProp,
	raftpb.MsgReadIndex, raftpb.MsgReadIndexResp, raftpb.MsgTimeoutNow}

func init() {
	kinds := failover.ActionKinds()
	site := func(r *rand.Rand) []int { return []int{two(r)} }
	siteN := func(n int) func(r *rand.Rand) []int {
		return func(r *rand.Rand) []int { return []int{two(r), 1 + r.IntN(n)} }
	}
	none := func(*rand.Rand) []int { return nil }
	verbs = map[string]verb{
		"cut":  {0, 12, none, func(w *world, _ []int) { w.setCut(0, 1, true); w.setCut(1, 0, true) }},
		"cut1": {1, 4, site, func(w *world, a []int) { w.setCut(a[0], 1-a[0], true) }},
		"heal": {1, 16, func(r *rand.Rand) []int { return []int{r.IntN(3) / 2 * r.IntN(30)} }, func(w *world, a []int) {
			w.cut = [3][3]bool{}
			w.slow[0] = w.now + a[0]
		}},
		"isolate": {1, 3, site, func(w *world, a []int) { // from the arbiter and the other member
			w.setCut(0, 1, true)
			w.setCut(1, 0, true)
			w.sites[a[0]].a.arb = arbDown
		}},
		"isle": {1, 4, site, func(w *world, a []int) { // from both other members
			for i := range w.sites {
				w.setCut(a[0], i, true)
				w.setCut(i, a[0], true)
			}
		}},
		"crash":   {1, 5, site, func(w *world, a []int) { w.power(w.sites[a[0]]) }},
		"off":     {1, 2, site, func(w *world, a []int) { w.power(w.sites[a[0]]); w.sites[a[0]].away = true }},
		"on":      {1, 6, site, func(w *world, a []int) { w.sites[a[0]].away = false }},
		"kill":    {1, 6, site, func(w *world, a []int) { s := w.sites[a[0]]; s.crash(w.r.IntN(len(s.disk.pend) + 1)) }},
		"term":    {1, 2, site, func(w *world, a []int) { w.sites[a[0]].crash(-1) }},
		"agent":   {1, 6, site, func(w *world, a []int) { w.sites[a[0]].a.kill() }},
		"pause":   {2, 4, siteN(25), func(w *world, a []int) { w.sites[a[0]].pausedTo = w.now + a[1] }},
		"hang":    {2, 3, siteN(25), func(w *world, a []int) { w.sites[a[0]].a.paused = w.now + a[1] }},
		"arb":     {2, 8, func(r *rand.Rand) []int { return []int{two(r), r.IntN(3)} }, func(w *world, a []int) { w.sites[a[0]].a.arb = arbState(a[1]) }},
		"arbup":   {0, 8, none, func(w *world, _ []int) { w.sites[0].a.arb, w.sites[1].a.arb = arbUp, arbUp }},
		"swap":    {2, 8, func(r *rand.Rand) []int { return []int{two(r), 1 + r.IntN(swapFaults-1)} }, func(w *world, a []int) { w.sites[a[0]].a.swapBad = a[1] }},
		"fail":    {2, 6, func(r *rand.Rand) []int { return []int{two(r), r.IntN(len(kinds))} }, func(w *world, a []int) { w.sites[a[0]].a.failing = kinds[a[1]] }},
		"drop":    {2, 8, func(r *rand.Rand) []int { return []int{r.IntN(len(dropTypes)), 1 + r.IntN(30)} }, func(w *world, a []int) { w.drop[dropTypes[a[0]]] = w.now + a[1] }},
		"disk":    {2, 4, siteN(20), func(w *world, a []int) { w.sites[a[0]].slowDisk = w.now + a[1] }},
		"apply":   {2, 6, siteN(20), func(w *world, a []int) { w.sites[a[0]].slowApply = w.now + a[1] }},
		"dribble": {2, 4, siteN(30), func(w *world, a []int) { w.sites[a[0]].dribble = w.now + a[1] }},
		"batch":   {2, 6, siteN(40), func(w *world, a []int) { w.sites[a[0]].noCommit = w.now + a[1] }},
		"jump":    {2, 3, siteN(20), func(w *world, a []int) { w.sites[a[0]].jump += a[1]; w.sites[a[0]].a.carry += uint32(a[1]) }},
		"rate": {3, 3, func(r *rand.Rand) []int { return []int{two(r), 40 + r.IntN(150), 40 + r.IntN(150)} }, func(w *world, a []int) {
			w.sites[a[0]].rate, w.sites[a[0]].a.rate = a[1], a[2]
		}},
		"fuse":      {2, 8, siteN(60), func(w *world, a []int) { w.sites[a[0]].fuse = a[1] }},
		"afuse":     {2, 10, siteN(40), func(w *world, a []int) { w.sites[a[0]].a.fuse = a[1] }},
		"trap":      {2, 4, siteN(30), func(w *world, a []int) { w.sites[a[0]].trap = a[1] }},
		"trapfuse":  {2, 3, siteN(40), func(w *world, a []int) { w.sites[a[0]].trapFuse = a[1] }},
		"traptoken": {2, 3, siteN(30), func(w *world, a []int) { w.sites[a[0]].trapToken = a[1] }},
		"move": {0, 3, none, func(w *world, _ []int) {
			if n := w.leader(); n != nil && n.state.voters().Count == 2 {
				for _, id := range n.state.voters().IDs {
					if id != n.id {
						n.rn.TransferLeader(id)
					}
				}
			}
		}},
		"burst": {1, 6, func(r *rand.Rand) []int { return []int{1 + r.IntN(24)} }, func(w *world, a []int) {
			if n := w.leader(); n != nil {
				for range a[0] {
					n.propose(payload{kind: payNudge})
				}
			}
		}},
		"third":  {0, 2, none, func(w *world, _ []int) { w.addThird() }},
		"third-": {0, 3, none, func(w *world, _ []int) { w.removeThird() }},
		"remove": {1, 1, site, func(w *world, a []int) { w.removeMember(a[0]) }},
		"force":  {1, 0, site, func(w *world, a []int) { w.order(a[0]) }}, // drawn by drawForced only
		// For scripts.
		"skew": {2, 0, nil, func(w *world, a []int) { w.setCut(a[0], a[1], true) }},
		"mend": {2, 0, nil, func(w *world, a []int) { w.setCut(a[0], a[1], false) }},
		"wipe": {1, 1, site, func(w *world, a []int) { // the agent's memory is lost (F9)
			g := w.sites[a[0]].a
			g.kill()
			g.own, g.seen, g.home = failover.Own{}, map[string]uint64{}, false
		}},
	}
	for name := range verbs {
		verbNames = append(verbNames, name)
	}
	slices.Sort(verbNames)
}

func (w *world) setCut(i, j int, on bool) { w.cut[i][j] = on }

// power takes a machine's power away: every process, and what was not synced.
func (w *world) power(s *site) {
	if s.a != nil && s.a.up {
		s.a.kill()
	}
	s.crash(w.r.IntN(len(s.disk.pend) + 1))
	s.startAt = w.now + 2 + w.r.IntN(5)
}

// draw makes a schedule from a seed.
func draw(seed uint64, steps int) schedule { return drawFocus(seed, steps, -1) }

// drawFocus is draw with the events of one focus in front; -1: of any or none.
func drawFocus(seed uint64, steps, kind int) schedule {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	s := schedule{seed: seed, steps: steps, start: start(r.IntN(int(starts)))}
	total := 0
	for _, n := range verbNames {
		total += verbs[n].weight
	}
	at := r.IntN(10)
	mean := 3 + r.IntN(20)
	if r.IntN(2) == 0 || kind >= 0 {
		s.events, at = focus(r, kind), 60+r.IntN(40)
	}
	for at < steps {
		k := r.IntN(total)
		for _, n := range verbNames {
			v := verbs[n]
			if k -= v.weight; k < 0 {
				s.events = append(s.events, event{at, n, v.draw(r)})
				break
			}
		}
		at += r.IntN(mean + 1)
	}
	slices.SortStableFunc(s.events, func(a, b event) int { return a.at - b.at })
	return s
}

const focuses = 8

// focus draws events that belong together: what random events seldom bring about.
func focus(r *rand.Rand, kind int) (es []event) {
	if kind < 0 {
		kind = r.IntN(focuses)
	}
	t, a := r.IntN(25), two(r)
	add := func(verb string, arg ...int) { es = append(es, event{t, verb, arg}) }
	switch kind {
	case 7: // a token on its way when its etcd is restarted with an old database
		n := 10 + r.IntN(20)
		add("batch", 0, 60)
		add("batch", 1, 60)
		add("traptoken", 0, n)
		add("traptoken", 1, n)
		t += 8 + r.IntN(24)
		add("burst", 1+r.IntN(6))
		add("cut1", a)
		add("burst", 1+r.IntN(6))
		t += 1 + r.IntN(8)
		add("cut")
	case 6: // the survivor's apply lags behind a promotion
		n := 10 + r.IntN(25)
		add("trap", 0, n)
		add("trap", 1, n)
		if r.IntN(2) == 0 {
			add("batch", a, 60)
		}
		t += 4 + r.IntN(24)
		add("burst", 1+r.IntN(6))
		add("cut1", a)
		add("burst", 1+r.IntN(6))
		t += 1 + r.IntN(8)
		add("cut")
	case 0, 1: // one apply lags, writes go on, then the link breaks
		add("apply", a, 10+r.IntN(30))
		t += r.IntN(12)
		if r.IntN(2) == 0 {
			add("batch", a, 40)
		}
		add("burst", 1+r.IntN(12))
		t += r.IntN(6)
		add("cut1", a)
		add("burst", 1+r.IntN(12))
		t += r.IntN(8)
		add("cut")
	case 2: // a third voter whose addition one member has not applied
		add("apply", a, 10+r.IntN(20))
		add("third")
		t += r.IntN(10)
		add("isle", a)
		if r.IntN(2) == 0 { // and its removal, which only the other one sees
			t += 8 + r.IntN(40)
			add("third-")
			t += r.IntN(6)
			if r.IntN(2) == 0 {
				add("kill", 1-a)
			}
			t += 20 + r.IntN(30)
			add("off", 1-a)
			add("heal", 0)
		}
	case 3: // a leader is restarted with an old database
		add("batch", a, 60)
		t += r.IntN(25)
		add("kill", a)
		add("apply", a, 5+r.IntN(20))
		t += r.IntN(10)
		add("burst", 1+r.IntN(12))
		t += r.IntN(6)
		add("cut")
	case 4: // two agents that see nothing of each other
		add("cut")
		t += r.IntN(20)
		add("swap", a, 1+r.IntN(swapFaults-1))
		add("swap", 1-a, 1+r.IntN(swapFaults-1))
		t += r.IntN(30)
		add("heal", r.IntN(10))
	case 5: // deaths in the middle of a section
		add("cut")
		t += 8 + r.IntN(8)
		add("afuse", a, 1+r.IntN(20))
		add("afuse", 1-a, 1+r.IntN(20))
		t += r.IntN(20)
		add("heal", r.IntN(10))
		add("afuse", a, 1+r.IntN(30))
	}
	return es
}

// drawConfig is the part of the seed that sets the world up.
func drawConfig(r *rand.Rand) config {
	c := config{v37: r.IntN(2) == 0, election: 5 + r.IntN(2)*5, snapCount: 1 << 30, catchUp: 4}
	if r.IntN(2) == 0 {
		c.snapCount, c.catchUp = uint64(8+r.IntN(40)), uint64(r.IntN(12))
	}
	if r.IntN(2) == 0 {
		c.loss = r.IntN(60)
	}
	if r.IntN(3) == 0 {
		c.dup = r.IntN(60)
	}
	if r.IntN(3) == 0 {
		c.reorder = r.IntN(120)
	}
	c.maxDelay = r.IntN(3) * r.IntN(3)
	c.hold = r.IntN(2) == 0
	return c
}

// A leader that has not applied what it committed would take a second change on top of
// the first: raft's guard looks at what raft handed out, not at what etcd has applied. Two members
// that did apply both can then elect each other beside it. That is etcd's own, with or without
// twok; users here wait.

// addThird is a user's member add of a voter at a third site.
func (w *world) addThird() {
	n := w.leader()
	if n == nil || w.third != 0 || n.applied != n.commit {
		return
	}
	w.third = w.randomID()
	n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeAdd, ID: w.third, PeerURLs: []string{urls[2]}}})
	w.sites[2] = &site{w: w, i: 2, name: "c", rate: 100, disk: &disk{id: w.third}, startAt: w.now + w.r.IntN(6)}
	w.pump(n.s)
}

// removeThird is a user's member remove of it.
func (w *world) removeThird() {
	if n := w.leader(); n != nil && w.third != 0 && n.applied == n.commit {
		n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeRemove, ID: w.third}})
		w.pump(n.s)
	}
}

// removeMember is a user's member remove of a pair's member (F33).
func (w *world) removeMember(i int) {
	if n := w.leader(); n != nil && n.s.i != i && n.s.i < 2 && n.applied == n.commit {
		n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeRemove, ID: w.sites[i].disk.id}})
		w.pump(n.s)
	}
}
