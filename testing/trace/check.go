package trace

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"twok/internal/failover"
)

// Report is what a check has seen.
type Report struct {
	Lines    int
	Hidden   int // hidden moves of the explanation found, in all
	Most     int // for one line
	Frontier int // the most behaviours that were followed at once
	Tried    int // states that were looked at
	Cost     int // of the hidden moves, and of what watchers did not see although it was there
	Moves    []Move
}

// Move is a hidden move of the explanation, made before a line.
type Move struct {
	Line int
	What string
}

func (r Report) String() string {
	return fmt.Sprintf("%d lines, %d hidden moves (at most %d for a line), at most %d behaviours at once, %d states", r.Lines, r.Hidden, r.Most, r.Frontier, r.Tried)
}

// Bounds of the search for one line.
const (
	maxFront  = 24
	perKind   = 3
	slack     = 2
	patience  = 8
	maxTries  = 2000
	maxHidden = 6
)

// ErrRefused is a trace that no behaviour of the model explains.
var ErrRefused = errors.New("the model does not allow this trace")

// ErrUndecided is a trace for which the search came to Options.Limit. Nothing is known about it.
var ErrUndecided = errors.New("whether the model allows this trace was not decided")

// Options widen what may happen between the lines.
type Options struct {
	Users bool // people add and remove members
	Disks bool // disks are replaced, and etcd begins anew on them with the flags of its first start
	Limit int  // states at most, with all bounds widened; zero: as many as it takes, which can be minutes

	wide int // the bounds are so many times as large; zero: once
}

func (o Options) times(bound int) int { return bound * max(o.wide, 1) }

// wider is how much further is looked before a trace is refused: what is followed is a choice, and on a
// machine that was slow the right one may look dear for long.
const wider = 8

// Check looks for a behaviour of the model that explains the lines. The error is ErrRefused with the first
// line that none explains, and what each behaviour so far did instead.
func Check(ls []Line, o Options) (r Report, err error) {
	if err := exact(ls); err != nil {
		return r, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if r, err = inModel(ls, o); !errors.Is(err, ErrRefused) || o.wide > 0 {
		return r, err
	}
	o.wide = wider
	return inModel(ls, o)
}

// inModel is Check without the exact replay.
func inModel(ls []Line, o Options) (r Report, err error) {
	f := gather(ls)
	if f.ids[0] == 0 || f.ids[1] == 0 {
		return r, fmt.Errorf("%w: no line shows the member IDs of both", ErrRefused)
	}
	front := []*cand{newCand(f)}
	for n := range ls {
		l := &ls[n]
		next, tries, whys := explain(f, o, front, n, l)
		r.Tried += tries
		if o.wide > 0 && o.Limit > 0 && r.Tried > o.Limit {
			return r, fmt.Errorf("%w: %d states, at line %d of %d", ErrUndecided, r.Tried, n+1, len(ls))
		}
		if len(next) == 0 {
			return r, refused(ls, n, front, whys)
		}
		r.Lines++
		r.Frontier = max(r.Frontier, len(next))
		r.Most = max(r.Most, next[0].steps)
		front = next
	}
	for t := front[0].trail; t != nil; t = t.prev {
		r.Hidden++
		r.Moves = append(r.Moves, Move{t.line, t.what})
	}
	slices.Reverse(r.Moves)
	r.Cost = front[0].cost
	return r, nil
}

// match gives the line to c.
func (c *cand) match(f *facts, l *Line) (n need, blind int) {
	switch {
	case l.Edit != nil:
		n = c.edit(f, l)
	case l.Start != nil:
		n = c.start(f, l)
	case l.In.Kind == failover.Tick:
		n, blind = c.tick(f, l)
	default:
		n = c.reply(f, l)
	}
	return n, blind
}

// forks says whether what was out before the line may or may not have had its effect.
func (l *Line) forks() bool {
	return l.Start != nil || (l.In != nil && l.In.Kind != failover.Tick && l.In.Outcome == failover.Unknown)
}

// explain finds the behaviours that go on with this line, cheapest first.
func explain(f *facts, o Options, front []*cand, n int, l *Line) (found []*cand, tries int, whys map[string]int) {
	v := &env{facts: f, opt: o, line: n, topTerm: f.topTerm(l.At + staleFor)}
	whys = map[string]int{}
	seen, done := map[uint64]bool{}, map[uint64]bool{}
	var levels [64][]*cand
	base := front[0].cost
	for _, c := range front {
		c.steps, c.price = 0, 0
		base = min(base, c.cost)
	}
	push := func(c *cand, cost int) {
		if cost < len(levels) {
			levels[cost] = append(levels[cost], c)
		}
	}
	// A behaviour that was dearer so far is not given up for that alone.
	level := func(c *cand) int { return max(0, c.cost-base-o.times(patience)) + c.price }
	for _, c := range front {
		push(c, level(c))
	}
	best := -1
	for cost := 0; cost < len(levels); cost++ {
		if best >= 0 && cost > best+o.times(slack) {
			break
		}
		for k := 0; k < len(levels[cost]); k++ {
			c := levels[cost][k]
			if key := c.key(); seen[key] {
				if c.steps > 0 { // the others are the last line's
					c.free()
				}
				continue
			} else {
				seen[key] = true
			}
			if tries++; tries > o.times(maxTries) {
				break
			}
			d := c.clone()
			need, blind := d.match(f, l)
			if !need.any() {
				d.note(l.At)
				d.cost = c.cost + c.price + blind
				if key := d.key(); !done[key] {
					done[key] = true
					found = append(found, d)
				}
				if best < 0 || cost+blind < best {
					best = cost + blind
				}
				if l.forks() {
					v.ends(c, l, func(d *cand) {
						d.note(l.At)
						push(d, level(d))
					})
				}
				if blind == 0 {
					continue
				}
			} else {
				whys[need.why]++
				d.free()
			}
			if c.steps >= maxHidden {
				continue
			}
			v.hidden(c, &need, func(d *cand) {
				d.note(l.At)
				push(d, level(d))
			})
		}
	}
	slices.SortStableFunc(found, func(a, b *cand) int { return cmp.Compare(a.cost, b.cost) })
	return o.thin(found), tries, whys
}

// thin keeps the cheapest behaviours, and of those that differ only in how far logs got, a few.
func (o Options) thin(found []*cand) (kept []*cand) {
	n := map[uint64]int{}
	for _, c := range found {
		if k := c.kind(); n[k] < o.times(perKind) && len(kept) < o.times(maxFront) {
			n[k]++
			kept = append(kept, c)
		}
	}
	return kept
}

func refused(ls []Line, n int, front []*cand, whys map[string]int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", &ls[n])
	if e := ls[n].In; e != nil {
		if raw, err := e.MarshalJSON(); err == nil {
			fmt.Fprintf(&b, "  given %s\n", raw)
		}
	}
	fmt.Fprintf(&b, "the lines before:\n")
	for k := max(0, n-6); k < n; k++ {
		fmt.Fprintf(&b, "  %s\n", &ls[k])
	}
	fmt.Fprintf(&b, "the first of %d behaviours up to there; hidden moves of late: %s\n%s", len(front), front[0].moves(max(0, n-60)), front[0])
	fmt.Fprintf(&b, "instead, in the model:\n")
	keys := slices.SortedFunc(maps.Keys(whys), func(x, y string) int { return whys[y] - whys[x] })
	for _, k := range keys[:min(len(keys), 12)] {
		fmt.Fprintf(&b, "  %5d× needs or finds: %s\n", whys[k], k)
	}
	return fmt.Errorf("%w: %s", ErrRefused, &b)
}
