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
	Seeds     []string
	Off       Switches
	Third     bool // a user adds and removes a third member
	Operators bool // drains, removals by hand
	Rare      bool // lost memory, confirmations that become due
	Longest   int  // log entries above what everybody has; zero: 9
	Depth     int  // moves after the seed; zero: no bound
	States    int  // zero: no bound
	Until     time.Time
	Workers   int            // zero: 2
	Stop      string         // end at a violation of this property only; empty: any
	Each      func(w *World) // for every new state, from several goroutines
	Level     func(depth int, r *Result)
}

// Result is what an exploration has seen.
type Result struct {
	States   int
	Steps    int64 // moves made
	Depth    int   // complete levels
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
		m map[key]uint32
	}
	next   atomic.Uint32
	parent []uint32 // by state; roots have themselves
	move   []uint32
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

type item struct {
	id   uint32
	form []byte
}

type edge struct{ id, parent, move uint32 }

// NewSearch prepares an exploration.
func NewSearch(o Options) *Search {
	if o.Workers == 0 {
		o.Workers = 2
	}
	if o.Longest == 0 {
		o.Longest = 9
	}
	if len(o.Seeds) == 0 {
		o.Seeds = SeedNames()
	}
	s := &Search{opt: o, moves: o.moves(), roots: map[uint32]string{}}
	for i := range s.shards {
		s.shards[i].m = map[key]uint32{}
	}
	return s
}

// visit says whether a form is new, and its number.
func (s *Search) visit(form []byte) (uint32, bool) {
	k := hash(form)
	sh := &s.shards[k[0]%64]
	sh.Lock()
	defer sh.Unlock()
	if id, ok := sh.m[k]; ok {
		return id, false
	}
	id := s.next.Add(1) - 1
	sh.m[k] = id
	return id, true
}

// Run explores breadth first.
func (s *Search) Run() (r Result, err error) {
	begin := time.Now()
	var level []item
	for _, name := range s.opt.Seeds {
		w, err := Seed(name, s.opt.Off)
		if err != nil {
			return r, err
		}
		form, _ := Canonical(w)
		id, fresh := s.visit(form)
		if !fresh {
			continue
		}
		s.parent, s.move = append(s.parent, id), append(s.move, 0)
		s.roots[id] = name
		if w.Broken() {
			r.Found = &Script{Head: []string{w.Prop + ": " + w.Text}, Off: s.opt.Off, Seed: name, Ends: w.Prop}
			r.Text = w.Text
			return r, nil
		}
		level = append(level, item{id, form})
	}
	r.Levels = append(r.Levels, len(level))
	for depth := 1; len(level) > 0 && (s.opt.Depth == 0 || depth <= s.opt.Depth); depth++ {
		var next []item
		next = s.expand(level)
		r.States, r.Steps, r.CutOff, r.Took = int(s.next.Load()), s.steps.Load(), s.cut.Load(), time.Since(begin)
		if w := s.found.w; w != nil {
			r.Text = w.Text
			r.Found, err = s.schedule(s.found.from, s.found.move, w)
			return r, err
		}
		if s.stop.Load() {
			return r, nil
		}
		r.Depth = depth
		r.Levels = append(r.Levels, len(next))
		if s.opt.Level != nil {
			s.opt.Level(depth, &r)
		}
		level = next
	}
	r.Complete = len(level) == 0
	return r, nil
}

// expand makes every move in every state of a level.
func (s *Search) expand(level []item) (next []item) {
	var at atomic.Int64
	var g sync.WaitGroup
	outs := make([][]item, s.opt.Workers)
	edges := make([][]edge, s.opt.Workers)
	for n := range s.opt.Workers {
		g.Go(func() {
			for !s.stop.Load() {
				i := int(at.Add(16)) - 16
				if i >= len(level) {
					return
				}
				for _, it := range level[i:min(i+16, len(level))] {
					s.successors(it, func(id uint32, form []byte, m Move) {
						outs[n] = append(outs[n], item{id, form})
						edges[n] = append(edges[n], edge{id, it.id, m.pack()})
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
	s.parent = append(s.parent, make([]uint32, total-len(s.parent))...)
	s.move = append(s.move, make([]uint32, total-len(s.move))...)
	for n := range edges {
		for _, e := range edges[n] {
			s.parent[e.id], s.move[e.id] = e.parent, e.move
		}
		next = append(next, outs[n]...)
	}
	return next
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
		if id, fresh := s.visit(form); fresh {
			if s.opt.Each != nil {
				s.opt.Each(&v)
			}
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
		return w.Late[m.A] != nil
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
