package explore

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Options bound an exploration.
type Options struct {
	Seeds      []string
	Off        Switches
	Third      bool // a user adds and removes a third member
	Operators  bool // drains, removals by hand
	Rare       bool // lost memory, confirmations that become due
	Compaction bool // logs that are read from a snapshot
	Longest    int  // log entries above what everybody has; zero: 12
	Depth      int  // states up to this cost are expanded, so every schedule of one more is made; zero: no bound
	States     int  // zero: no bound
	Until      time.Time
	Workers    int                       // zero: 2
	Stop       string                    // end at a violation of this property only; empty: any
	Each       func(id uint32, w *World) // for every new state, from several goroutines
	Level      func(depth int, r *Result)
}

// Result is what an exploration has seen.
type Result struct {
	States   int
	Steps    int64 // moves made
	Depth    int   // every schedule of this cost was made
	Complete bool  // nothing was left to explore within the bounds on sizes
	CutOff   int64 // states not entered because a log would have been too long
	Found    *Script
	Text     string
	Levels   []int
	Took     time.Duration
}

type key [16]byte

func hash(form []byte) (k key) {
	h := sha256.Sum256(form)
	copy(k[:], h[:])
	return k
}

// Search is an exploration with what it has visited.
type Search struct {
	opt    Options
	moves  []Move
	shards [64]struct {
		sync.Mutex
		m map[key]seen
	}
	next   atomic.Uint32
	parent []uint32 // by state; roots have themselves
	move   []uint32
	cost   []uint8
	roots  map[uint32]string
	steps  atomic.Int64
	cut    atomic.Int64
	stop   atomic.Bool
	found  struct {
		sync.Mutex
		from uint32
		move Move
		w    *World
	}
}

type seen struct {
	id   uint32
	cost uint8
}

type item struct {
	id   uint32
	cost uint8
	form []byte
}

type edge struct {
	id, parent, move uint32
	cost             uint8
}

// NewSearch prepares an exploration.
func NewSearch(o Options) *Search {
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Longest == 0 {
		o.Longest = 12
	}
	if len(o.Seeds) == 0 {
		o.Seeds = SeedNames()
	}
	s := &Search{opt: o, moves: o.moves(), roots: map[uint32]string{}}
	for i := range s.shards {
		s.shards[i].m = map[key]seen{}
	}
	return s
}

// visit says whether a form is new, or reached at a lower cost, and its number.
func (s *Search) visit(form []byte, cost uint8) (id uint32, fresh, cheaper bool) {
	k := hash(form)
	sh := &s.shards[k[0]%64]
	sh.Lock()
	defer sh.Unlock()
	have, ok := sh.m[k]
	if ok && have.cost <= cost {
		return have.id, false, false
	}
	if !ok {
		have.id = s.next.Add(1) - 1
	}
	have.cost = cost
	sh.m[k] = have
	return have.id, !ok, true
}

// current says whether the state is still known at no lower cost.
func (s *Search) current(it item) bool {
	k := hash(it.form)
	sh := &s.shards[k[0]%64]
	sh.Lock()
	defer sh.Unlock()
	return sh.m[k].cost == it.cost
}

// cost of a move: the calm ones, of which a pair's life consists, take one; what
// disturbs it takes two. So a bound on the cost allows long schedules with few disturbances.
func (m Move) cost() uint8 {
	switch m.Op {
	case Run, Go, Sync, Lead, Put, Tick, Cut, Heal, StepDown, Learn:
		return 1
	case Do:
		if m.How == OK {
			return 1
		}
	}
	return 2
}

// Run explores in the order of cost.
func (s *Search) Run() (r Result, err error) {
	begin := time.Now()
	var level [3][]item // of this cost, one more, two more
	for _, name := range s.opt.Seeds {
		w, err := Seed(name, s.opt.Off)
		if err != nil {
			return r, err
		}
		form, _ := Canonical(w)
		id, fresh, _ := s.visit(form, 0)
		if !fresh {
			continue
		}
		s.parent, s.move, s.cost = append(s.parent, id), append(s.move, 0), append(s.cost, 0)
		s.roots[id] = name
		if w.Broken() {
			r.Found = &Script{Head: []string{w.Prop + ": " + w.Text}, Off: s.opt.Off, Seed: name, Ends: w.Prop}
			r.Text = w.Text
			return r, nil
		}
		level[0] = append(level[0], item{id, 0, form})
	}
	depth := 0
	for ; len(level[0])+len(level[1]) > 0 && (s.opt.Depth == 0 || depth <= s.opt.Depth); depth++ {
		s.expand(&level)
		r.States, r.Steps, r.CutOff, r.Took = int(s.next.Load()), s.steps.Load(), s.cut.Load(), time.Since(begin)
		if w := s.found.w; w != nil {
			r.Text = w.Text
			r.Found, err = s.schedule(s.found.from, s.found.move, w)
			return r, err
		}
		if s.stop.Load() {
			return r, nil
		}
		r.Depth = depth + 1 // every schedule of this cost was made
		r.Levels = append(r.Levels, len(level[0]))
		if s.opt.Level != nil {
			s.opt.Level(r.Depth, &r)
		}
		level = [3][]item{level[1], level[2], nil}
	}
	r.Complete = len(level[0])+len(level[1]) == 0
	return r, nil
}

// expand makes every move in every state of a cost.
func (s *Search) expand(level *[3][]item) {
	var at atomic.Int64
	var g sync.WaitGroup
	outs := make([][3][]item, s.opt.Workers)
	edges := make([][]edge, s.opt.Workers)
	for n := range s.opt.Workers {
		g.Go(func() {
			for !s.stop.Load() {
				i := int(at.Add(16)) - 16
				if i >= len(level[0]) {
					return
				}
				for k := i; k < min(i+16, len(level[0])); k++ {
					it := level[0][k]
					level[0][k].form = nil
					if !s.current(it) {
						continue
					}
					s.successors(it, func(id uint32, form []byte, m Move) {
						c := m.cost()
						outs[n][c] = append(outs[n][c], item{id, it.cost + c, form})
						edges[n] = append(edges[n], edge{id, it.id, m.pack(), it.cost + c})
					})
				}
				if (s.opt.States > 0 && int(s.next.Load()) > s.opt.States) || (!s.opt.Until.IsZero() && time.Now().After(s.opt.Until)) {
					s.stop.Store(true)
				}
			}
		})
	}
	g.Wait()
	total := int(s.next.Load())
	for len(s.parent) < total {
		s.parent, s.move, s.cost = append(s.parent, 0), append(s.move, 0), append(s.cost, 255)
	}
	for n := range edges {
		for _, e := range edges[n] {
			if e.cost < s.cost[e.id] {
				s.parent[e.id], s.move[e.id], s.cost[e.id] = e.parent, e.move, e.cost
			}
		}
		for c := 1; c < 3; c++ {
			level[c] = append(level[c], outs[n][c]...)
		}
	}
}

func (s *Search) successors(it item, emit func(uint32, []byte, Move)) {
	w := decode(it.form, s.opt.Off, s.opt.Longest)
	var v World
	for _, m := range s.moves {
		if !w.may(m) {
			continue
		}
		v = *w
		if !v.Apply(m) {
			continue
		}
		s.steps.Add(1)
		if v.Broken() && (s.opt.Stop == "" || s.opt.Stop == v.Prop) {
			s.found.Lock()
			if s.found.w == nil {
				c := v
				s.found.from, s.found.move, s.found.w = it.id, m, &c
			}
			s.found.Unlock()
			s.stop.Store(true)
			return
		}
		if v.Broken() || v.tooLong(s.opt.Longest) {
			s.cut.Add(1)
			continue
		}
		form, _ := Canonical(&v)
		id, fresh, cheaper := s.visit(form, it.cost+m.cost())
		if fresh && s.opt.Each != nil {
			s.opt.Each(id, &v)
		}
		if cheaper {
			emit(id, form, m)
		}
	}
}

func (w *World) tooLong(n int) bool {
	k := w.folded()
	for i := range w.Nodes {
		if len(w.Nodes[i].Log)-k > n {
			return true
		}
	}
	return false
}

// may is a cheap test before the copy of a world.
func (w *World) may(m Move) bool {
	switch m.Op {
	case Cut:
		return w.Link
	case Heal:
		return !w.Link
	case Elect, Lead, ElectLost:
		return !w.Nodes[m.A].Leader && w.alive(int(m.A))
	case Send, SendAll, Rep, StepDown, Put, AddThird, DropThird, DropOther:
		return w.Nodes[m.A].Leader
	case Apply:
		return w.Nodes[m.A].Applied < w.Nodes[m.A].Commit
	case Do:
		return w.Sites[m.A].Out[m.B] != nil
	case Go:
		s := &w.Sites[m.A]
		return s.Out[0] != nil || s.Out[1] != nil || s.Back[0] != nil || s.Back[1] != nil
	case Deliver:
		return w.Sites[m.A].Back[m.B] != nil
	case Arrive:
		return w.Txn != nil
	case Apply1:
		return !w.stale(w.Late[m.A])
	}
	return true
}

// path is the way from a root, in canonical orientation.
func (s *Search) path(id uint32) (root string, ms []Move) {
	for {
		if name, ok := s.roots[id]; ok && s.parent[id] == id {
			root = name
			break
		}
		ms = append(ms, unpack(s.move[id]))
		id = s.parent[id]
	}
	for i, j := 0, len(ms)-1; i < j; i, j = i+1, j-1 {
		ms[i], ms[j] = ms[j], ms[i]
	}
	return root, ms
}

// schedule rebuilds the way to a violation and replays it in a world that is never
// rewritten: a canonical form that hides a difference shows here.
func (s *Search) schedule(from uint32, last Move, bad *World) (*Script, error) {
	root, ms := s.path(from)
	script, err := s.absolute(root, append(ms, last))
	if err != nil {
		return nil, err
	}
	script.Ends = bad.Prop
	w, err := script.Replay(nil)
	if err != nil {
		return script, fmt.Errorf("the schedule does not replay: %w\n%s", err, script)
	}
	if w.Prop != bad.Prop {
		return script, fmt.Errorf("the schedule replays to %q instead of %q\n%s", w.Prop, bad.Prop, script)
	}
	script.Head = []string{w.Prop + ": " + w.Text}
	return script, nil
}

// Way is the schedule to a state, after Run.
func (s *Search) Way(id uint32) (*Script, error) {
	root, ms := s.path(id)
	return s.absolute(root, ms)
}

func (s *Search) absolute(root string, ms []Move) (*Script, error) {
	w, err := Seed(root, s.opt.Off)
	if err != nil {
		return nil, err
	}
	script := &Script{Off: s.opt.Off, Seed: root}
	form, flip := Canonical(w)
	for i, m := range ms {
		w = decode(form, s.opt.Off, s.opt.Longest)
		if !w.Apply(m) {
			return nil, fmt.Errorf("move %d of the path is not possible", i+1)
		}
		if flip {
			script.Moves = append(script.Moves, m.flip())
		} else {
			script.Moves = append(script.Moves, m)
		}
		if i+1 < len(ms) {
			var f bool
			form, f = Canonical(w)
			flip = flip != f
		}
	}
	return script, nil
}
