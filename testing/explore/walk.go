package explore

import (
	"fmt"
	"math/rand"
	"sync"
	"time"
)

// Walk is a random exploration beyond the bounds of Search: from a start, or from
// a state reached before whose kind was seen least, weighted moves are made. What it finds is shortened.
type Walk struct {
	Options
	RandSeed int64
	Length   int   // moves of one walk; zero: 60
	Steps    int64 // at most this many moves in all; zero: until Until
	Live     bool  // check liveness where each walk ends
}

// cell is a kind of state, with one example and the way to it.
type cell struct {
	form   []byte
	root   string
	moves  []Move // absolute
	flip   bool
	visits int
}

type cellKey struct {
	phase [2]uint8
	bits  uint32
}

func (w *World) kind() (k cellKey) {
	for i := range 2 {
		n, s := &w.Nodes[i], &w.Sites[i]
		k.phase[i] = uint8(s.S.Phase)
		for b, f := range []bool{n.Leader, n.Dead, s.Locked, n.Applied < n.Commit, n.DB < n.Applied, s.Out[0] != nil, s.Out[1] != nil, s.Back[0] != nil || s.Back[1] != nil, w.Rec.Survivor.ID == n.ID} {
			if f {
				k.bits |= 1 << (b + 10*i)
			}
		}
	}
	c := w.conf(&w.Nodes[0], w.Nodes[0].Applied)
	k.bits |= uint32(c.voters()) << 20
	for b, f := range []bool{w.Link, w.Late[0] != nil, w.Txn != nil, w.Rec.WholeGeneration == w.Rec.Generation, w.Rec.Drain, w.Nodes[2].ID != 0} {
		if f {
			k.bits |= 1 << (24 + b)
		}
	}
	return k
}

// WalkResult is what walks have seen.
type WalkResult struct {
	Steps, Walks int64
	Cells        int
	Found        *Script
	Text         string
}

// Run walks until a violation, the time, or the number of steps.
func (o Walk) Run() (r WalkResult, err error) {
	if o.Length == 0 {
		o.Length = 60
	}
	if o.Longest == 0 {
		o.Longest = 12
	}
	if o.Workers == 0 {
		o.Workers = 2
	}
	if len(o.Seeds) == 0 {
		o.Seeds = SeedNames()
	}
	var mu sync.Mutex
	var g sync.WaitGroup
	for n := range o.Workers {
		g.Go(func() {
			res, e := o.one(o.RandSeed*int64(o.Workers)+int64(n), func() bool {
				mu.Lock()
				defer mu.Unlock()
				return r.Found != nil || err != nil
			})
			mu.Lock()
			defer mu.Unlock()
			r.Steps += res.Steps
			r.Walks += res.Walks
			r.Cells = max(r.Cells, res.Cells)
			if e != nil && err == nil {
				err = e
			}
			if res.Found != nil && (r.Found == nil || len(res.Found.Moves) < len(r.Found.Moves)) {
				r.Found, r.Text = res.Found, res.Text
			}
		})
	}
	g.Wait()
	return r, err
}

func (o Walk) one(seed int64, enough func() bool) (r WalkResult, err error) {
	rnd := rand.New(rand.NewSource(seed))
	moves := o.moves()
	var weights []int
	total := 0
	for _, m := range moves {
		total += weight(m)
		weights = append(weights, total)
	}
	cells := map[cellKey]*cell{}
	l := NewLiveness(o.Off)
	l.ByHand = o.Operators
	var keys []cellKey
	for {
		if (o.Steps > 0 && r.Steps >= o.Steps/int64(o.Workers)) || (!o.Until.IsZero() && time.Now().After(o.Until)) || enough() {
			r.Cells = len(cells)
			return r, nil
		}
		r.Walks++
		var c cell
		if len(keys) > 0 && rnd.Intn(4) > 0 {
			best := cells[keys[rnd.Intn(len(keys))]]
			for range 3 {
				if d := cells[keys[rnd.Intn(len(keys))]]; d.visits < best.visits {
					best = d
				}
			}
			best.visits++
			c = *best
			c.moves = c.moves[:len(c.moves):len(c.moves)]
		} else {
			c.root = o.Seeds[rnd.Intn(len(o.Seeds))]
			w, err := Seed(c.root, o.Off)
			if err != nil {
				return r, err
			}
			c.form, c.flip = Canonical(w)
		}
		var last *World
		for range o.Length {
			w := decode(c.form, o.Off, o.Longest)
			var v World
			var m Move
			for ok := false; !ok; ok = v.Apply(m) {
				x := rnd.Intn(total)
				k := 0
				for weights[k] <= x {
					k++
				}
				m = moves[k]
				for !w.may(m) {
					k = rnd.Intn(len(moves))
					m = moves[k]
				}
				v = *w
			}
			r.Steps++
			abs := m
			if c.flip {
				abs = m.flip()
			}
			c.moves = append(c.moves, abs)
			if !v.Broken() && v.tooLong(o.Longest) {
				c.moves = c.moves[:len(c.moves)-1]
				break
			}
			if v.Broken() && (o.Stop == "" || o.Stop == v.Prop) {
				s := &Script{Off: o.Off, Seed: c.root, Moves: c.moves, Ends: v.Prop}
				w, err := s.Replay(nil)
				if err != nil || w.Prop != v.Prop {
					return r, fmt.Errorf("a walk does not replay: %q instead of %q, %v\n%s", w.Prop, v.Prop, err, s)
				}
				s.shrink()
				w, _ = s.Replay(nil)
				s.Head = []string{w.Prop + ": " + w.Text}
				r.Found, r.Text = s, w.Text
				r.Cells = len(cells)
				return r, nil
			}
			if v.Broken() {
				break
			}
			if o.Live {
				x := v
				last = &x
			}
			form, f := Canonical(&v)
			c.form, c.flip = form, c.flip != f
			k := v.kind()
			have := cells[k]
			if have == nil {
				keys = append(keys, k)
			}
			if have == nil || len(have.moves) > len(c.moves) {
				d := c
				d.moves = append([]Move(nil), c.moves...)
				if have != nil {
					d.visits = have.visits
				}
				cells[k] = &d
			}
		}
		if last == nil {
			continue
		}
		l.Check(0, last)
		if len(l.Bad) > 0 {
			s := &Script{Off: o.Off, Seed: c.root, Moves: c.moves, Ends: l.Bad[0].Prop}
			text := l.Bad[0].Text
			w, err := s.Replay(nil)
			if err != nil {
				return r, err
			}
			if fresh := NewLiveness(o.Off); !fresh.bites(w, s.Ends) {
				return r, fmt.Errorf("a walk does not replay: %s: %s\n%s", s.Ends, text, s)
			}
			s.shrink()
			s.Head = []string{s.Ends + ": " + text}
			r.Found, r.Text, r.Cells = s, text, len(cells)
			return r, nil
		}
	}
}

// bites says whether a state violates this liveness property.
func (l *Liveness) bites(w *World, prop string) bool {
	l.Check(0, w)
	for _, b := range l.Bad {
		if b.Prop == prop {
			return true
		}
	}
	return false
}

func weight(m Move) int {
	switch m.Op {
	case Run, Go, Sync, Tick, Put:
		return 6
	case Lead, Heal, Learn, StepDown, Apply:
		return 4
	case Cut:
		return 3
	case Do:
		if m.How == OK {
			return 6
		}
	}
	return 1
}

// shrink leaves out what the violation does not need. Moves that become impossible
// are left out too.
func (s *Script) shrink() {
	try := func(ms []Move) ([]Move, bool) {
		w, err := Seed(s.Seed, s.Off)
		if err != nil {
			return nil, false
		}
		w.Max = 1 << 20
		var did []Move
		for _, m := range ms {
			v := *w
			if !v.Apply(m) {
				continue
			}
			did = append(did, m)
			if v.Broken() {
				return did, v.Prop == s.Ends
			}
			w = &v
		}
		if s.Ends[0] == 'L' && NewLiveness(s.Off).bites(w, s.Ends) {
			return did, true
		}
		return nil, false
	}
	for n := max(len(s.Moves)/2, 1); n > 0; n /= 2 {
		for again := true; again; {
			again = false
			for i := 0; i+n <= len(s.Moves); i++ {
				ms := append(append([]Move(nil), s.Moves[:i]...), s.Moves[i+n:]...)
				if did, ok := try(ms); ok && len(did) < len(s.Moves) {
					s.Moves, again = did, true
					i--
				}
			}
			if n == 1 && !again { // pairs that only go together
				for i := 0; i < len(s.Moves) && !again; i++ {
					for j := i + 1; j < len(s.Moves); j++ {
						ms := append(append([]Move(nil), s.Moves[:i]...), s.Moves[i+1:j]...)
						ms = append(ms, s.Moves[j+1:]...)
						if did, ok := try(ms); ok && len(did) < len(s.Moves) {
							s.Moves, again = did, true
							break
						}
					}
				}
			}
		}
	}
}
