package explore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"twok/internal/failover"
)

// Liveness decides from single states whether the pair gets out of them, by good
// days: everything is up, every message arrives, every agent gets its turn. One good schedule
// is enough, what has to hold is that a way exists.
type Liveness struct {
	ByHand bool // people remove members
	off    Switches
	mu     sync.Mutex
	known  map[key]bool   // canonical states from which the pair becomes whole
	Stuck  map[string]int // ends that are not whole, with the number of states that led there
	Alone  map[string]int // what a single member that does not lead says
	Whole  int
	Leads  int
	Bad    []Bad
	rounds int
}

// Bad is a state that violates a liveness property.
type Bad struct {
	ID         uint32 // in the search
	Prop, Text string
	World      World
}

// NewLiveness prepares the check.
func NewLiveness(off Switches) *Liveness {
	return &Liveness{off: off, known: map[key]bool{}, Stuck: map[string]int{}, Alone: map[string]int{}, rounds: 80}
}

// operator are the reasons that say that a person has to do something.
var operator = map[failover.Reason]bool{
	failover.ClaimEnd: true, failover.WholeUnknown: true, failover.RolledBack: true, failover.Clone: true,
	failover.RemovedByHand: true, failover.AloneUnclaimed: true, failover.Drained: true, failover.Paused: true,
	failover.ThirdVoter: true, failover.ForeignLearner: true, failover.RecordOld: true, failover.RecordAbsent: true,
}

// byHand says whether a person made this end, by a removal while the pair had no token of the
// record's generation: the one that is left stops for good if the record names the removed one
// (P16), and a member that removed itself ends before the other one knows that this is committed (etcd waits a
// second then, the model does not). Nobody serves: safety before availability.
func byHand(end string) bool {
	return strings.Contains(end, "fenced/overridden") || strings.Contains(end, "leaderless/etcd-down")
}

// Check looks at one state: L1, from everything up, and L2, from one site alone.
func (l *Liveness) Check(id uint32, w *World) {
	if end := l.good(w); end != "" {
		l.mu.Lock()
		l.Stuck[end]++
		if !named(end) && !(l.ByHand && byHand(end)) {
			l.bad(id, "L1", "the pair stays in "+end, w)
		}
		l.mu.Unlock()
	} else {
		l.mu.Lock()
		l.Whole++
		l.mu.Unlock()
	}
	for i := range 2 {
		l.single(id, w, i)
	}
}

func (l *Liveness) bad(id uint32, prop, text string, w *World) {
	for _, b := range l.Bad {
		if b.Prop == prop && b.Text == text {
			return
		}
	}
	l.Bad = append(l.Bad, Bad{id, prop, text, *w})
}

// named: one of the two agents says what only a person can do.
func named(end string) bool {
	for _, f := range strings.Fields(end) {
		_, why, _ := strings.Cut(f, "/")
		for r := range operator {
			if r.String() == why {
				return true
			}
		}
	}
	return false
}

// day is one good round: the link, the store and the other side are there. The turns
// vary with n, so that the schedule is not what keeps the pair in a circle.
func (w *World) day(n int) {
	w.Link, w.Far = true, [2]bool{true, true}
	for i := range w.Late {
		if w.Late[i] != nil {
			w.apply(Move{Op: Apply1, A: uint8(i)}, i, 0)
		}
	}
	w.arrive()
	for i := range 2 {
		if w.Nodes[i].Dead {
			w.boot(i) // whoever runs etcd starts it again
		}
	}
	w.sync()
	led := false
	for i := range w.Nodes {
		led = led || (w.Nodes[i].Leader && w.alive(i) && w.reaches(i))
	}
	for i := range w.Nodes {
		if !led {
			w.applyAll(i)
			led = w.elect(i, false)
		}
	}
	w.sync()
	for _, i := range [][]int{{0, 1}, {1, 0}, {0}, {1}}[n%4] {
		w.tick(i)
		w.run(i)
		w.sync()
	}
}

func (w *World) whole() bool {
	a, b := &w.Sites[0].S, &w.Sites[1].S
	return a.Whole() && b.Whole() && (a.Phase == failover.Leading) != (b.Phase == failover.Leading) && w.Ver != 0 &&
		w.Rec.WholeGeneration == w.Rec.Generation
}

// turn is a state with the turns that are due.
type turn struct {
	k key
	n int
}

// good returns where good days end: "" for whole.
func (l *Liveness) good(from *World) string {
	w := *from
	w.Max = 1 << 20
	var path []key
	end, seen := "", map[turn]bool{}
	for n := 0; ; n++ {
		if w.whole() {
			break
		}
		form, _ := Canonical(&w)
		k := hash(form)
		l.mu.Lock()
		ok := l.known[k]
		l.mu.Unlock()
		if ok {
			break
		}
		if seen[turn{k, n % 4}] || n > l.rounds || w.Broken() {
			end = w.end()
			if w.Broken() {
				end = w.Prop + ": " + w.Text
			} else if n > l.rounds {
				end += " (never comes to rest)"
			}
			break
		}
		seen[turn{k, n % 4}] = true
		path = append(path, k)
		w.day(n)
	}
	l.mu.Lock()
	for _, k := range path {
		if end == "" {
			l.known[k] = true
		}
	}
	l.mu.Unlock()
	return end
}

// end names a state by its agents' phases and reasons, in no order of sites.
func (w *World) end() string {
	var f []string
	for i := range 2 {
		f = append(f, fmt.Sprintf("%s/%s", w.Sites[i].S.Phase, w.Sites[i].S.Why))
	}
	slices.Sort(f)
	return strings.Join(f, " ")
}

// single: only site i and the store stay. If its member may claim by the rules, it leads.
func (l *Liveness) single(id uint32, from *World, i int) {
	w := *from
	w.Max = 1 << 20
	w.Link, w.Far = false, [2]bool{}
	w.Nodes[1-i].Up, w.Nodes[2].Up = false, false
	w.Txn = nil
	for k := range w.Late {
		if w.Late[k] != nil {
			w.apply(Move{Op: Apply1, A: uint8(k)}, k, 0)
		}
	}
	for range 12 {
		if w.Nodes[i].Dead {
			w.boot(i)
		}
		w.sync()
		w.applyAll(i)
		w.elect(i, false)
		w.sync()
		if w.Nodes[i].Leader && w.reaches(i) {
			l.mu.Lock()
			l.Leads++
			l.mu.Unlock()
			return
		}
		w.tick(i)
		w.run(i)
		if w.Broken() {
			break
		}
	}
	_, why := failover.Eligible(w.Rec, w.data(i, w.Rec.Confirmed.Index), w.Sites[i].Seen)
	s := &w.Sites[i].S
	text := fmt.Sprintf("%s/%s: %s", s.Phase, s.Why, why)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Alone[text]++
	if w.Broken() {
		l.bad(id, "L2", w.Prop+": "+w.Text, from)
	}
	if why == failover.None && !s.Held {
		l.bad(id, "L2", "a member may claim and does not: "+text, from)
	}
}

// Ends lists what stays for an operator, for the golden file.
func (l *Liveness) Ends() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(l.Stuck)) {
		fmt.Fprintf(&b, "pair   %s\n", k)
	}
	for _, k := range slices.Sorted(maps.Keys(l.Alone)) {
		fmt.Fprintf(&b, "single %s\n", k)
	}
	return b.String()
}
