package trace

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/testing/explore"
)

// staleFor is how old what a watcher shows may be. Its looks have deadlines of up to two seconds.
const staleFor = int64(2_500_000_000)

// cand is one behaviour of the model that explains the trace so far: its last state, and what
// was to be seen of it a short while ago.
type cand struct {
	w     explore.World
	cost  int
	steps int // hidden moves for the line at hand
	price int // their cost
	trail *trail

	views  [2][]view
	regs   []reg
	vers   []pair[string, uint32] // of the store, and the model's
	claims []pair[string, string] // nonces of claims, and the model's
	starts [2]struct{ real, model uint32 }
	lists  [2][]failover.List     // shown since LookAtList was asked for
	asked  [2]int64               // when the read that is out was asked for
	from   [2]int                 // what was applied when Sample was asked for
	wrote  [2]failover.Action     // the last Rewrite that was asked for
	added  [2]int                 // how many of facts.later were given out
	last   [2]failover.Obs        // what the agent was shown last
	led    []pair[uint64, uint32] // which member led in which term
	top    [2]int                 // the highest commit index of this site's member
}

type pair[A, B any] struct {
	real  A
	model B
}

// trail is how a candidate came about, newest first.
type trail struct {
	what string
	line int
	prev *trail
}

// view is what a watcher could see, until a moment.
type view struct {
	obs   *failover.Obs
	until int64
}

// reg is what the register held, until a moment.
type reg struct {
	ver    uint32
	rec    *arbiter.Record
	status failover.RecordStatus // of a value that cannot be read; else Readable
	until  int64
}

const forever = int64(1<<63 - 1)

func newCand(f *facts) *cand {
	c := &cand{w: *explore.NewTraced(f.ids)}
	c.regs = []reg{{rec: &arbiter.Record{}, status: failover.Readable, until: forever}}
	c.note(0)
	return c
}

// freed are candidates that led nowhere: most do, and each is large.
var freed = sync.Pool{New: func() any { return new(cand) }}

func (c *cand) clone() *cand {
	d := freed.Get().(*cand)
	views, regs := d.views, d.regs // its own
	*d = *c
	for i := range 2 {
		d.views[i], d.lists[i] = append(views[i][:0], c.views[i]...), slices.Clip(c.lists[i])
	}
	d.regs = append(regs[:0], c.regs...)
	d.vers, d.claims, d.led = slices.Clip(c.vers), slices.Clip(c.claims), slices.Clip(c.led)
	return d
}

// free gives up a candidate that nobody else has.
func (c *cand) free() { freed.Put(c) }

func (c *cand) did(line int, format string, args ...any) {
	c.trail = &trail{fmt.Sprintf(format, args...), line, c.trail}
}

// moves lists the hidden moves of the last lines, oldest first.
func (c *cand) moves(since int) string {
	var out []string
	for t := c.trail; t != nil && t.line >= since; t = t.prev {
		out = append(out, t.what)
	}
	slices.Reverse(out)
	return strings.Join(out, "; ")
}

// note takes in what is to be seen after a step at this moment.
func (c *cand) note(now int64) {
	for i := range c.w.Nodes {
		p := pair[uint64, uint32]{c.w.Nodes[i].ID, c.w.Nodes[i].Term}
		if c.w.Leads(i) && !slices.Contains(c.led, p) {
			c.led = append(c.led, p)
		}
	}
	for i := range 2 {
		o := c.w.Observe(i)
		o.Contact, o.Commit = false, 0
		vs := c.views[i]
		c.top[i] = max(c.top[i], c.w.Nodes[i].Commit)
		if n := len(vs); n > 0 {
			if *vs[n-1].obs == o {
				continue
			}
			vs[n-1].until = now
		}
		k := 0
		for k < len(vs) && vs[k].until < now-staleFor {
			k++
		}
		c.views[i] = append(vs[k:], view{&o, forever})
	}
	for i := range 2 {
		if a := c.w.Sites[i].Out[1]; a != nil && a.Kind == failover.LookAtList {
			c.showList(i)
		}
	}
	if n := len(c.regs); c.regs[n-1].ver != c.w.Ver {
		c.regs[n-1].until = now
		rec := c.w.Rec
		k := 0
		for k < n-1 && c.regs[k].until < now-30*staleFor {
			k++
		}
		c.regs = append(c.regs[k:], reg{c.w.Ver, &rec, failover.Readable, forever})
	}
}

// echo says whether the member of site i may have believed, now or a short while ago, that this one leads, by a message that was
// under way for long: it led in the term that this member is still in. term is that of its last applied entry.
func (c *cand) echo(i int, now int64, leader, term uint64) bool {
	n := &c.w.Nodes[i]
	if n.Leader || leader == n.ID || !slices.Contains(c.led, pair[uint64, uint32]{leader, n.Term}) {
		return false
	}
	return c.w.Alive(i) && c.w.Observe(i).Term == term ||
		c.seen(i, now, func(v *view) bool { return v.obs.Etcd == failover.EtcdNoLeader && v.obs.Term == term })
}

func (c *cand) showList(i int) {
	if l, ok := c.w.List(i); ok && !slices.Contains(c.lists[i], l) {
		c.lists[i] = append(c.lists[i], l)
	}
}

// seen says whether a watcher of site i could see this, a short while ago or now.
func (c *cand) seen(i int, now int64, ok func(*view) bool) bool {
	for k := range c.views[i] {
		if v := &c.views[i][k]; v.until >= now-staleFor && ok(v) {
			return true
		}
	}
	return false
}

var seed = maphash.MakeSeed()

// key is the same for candidates of which one is enough.
func (c *cand) key() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	put := func(vs ...any) {
		for _, v := range vs {
			maphash.WriteComparable(&h, v)
		}
	}
	w := &c.w
	for i := range w.Nodes {
		n := &w.Nodes[i]
		put(n.ID, n.Term, n.HS, n.DB, n.Snap, n.Commit, n.Applied, n.Leader, n.Up, n.Dead, n.Start, n.Match, n.Pending, len(n.Log))
		for k := range n.Log {
			e := &n.Log[k]
			if e.Kind != explore.Write {
				put(k, e.Kind, e.ID, e.Tok.Gen)
			}
			if k == 0 || n.Log[k-1].Term != e.Term {
				put(k, e.Term)
			}
		}
	}
	put(w.Link, w.Far, bare(w.Rec), w.Late[0] == nil, w.Late[1] == nil, w.Txn == nil, len(w.Hist))
	for i := range w.Sites {
		s := &w.Sites[i]
		put(s.S.Phase, s.S.Why, s.S.Arb, s.S.Site, s.Locked, s.Won, s.Added, s.Own.Generation, s.Seen)
		for k := range 2 {
			put(s.Out[k] == nil, s.Back[k] == nil)
			if b := s.Back[k]; b != nil {
				put(b.Outcome)
			}
		}
		put(c.starts[i], c.added[i])
	}
	return h.Sum64()
}

// kind is the same for candidates that differ in the lengths of logs only, and in what lags behind.
func (c *cand) kind() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	put := func(vs ...any) {
		for _, v := range vs {
			maphash.WriteComparable(&h, v)
		}
	}
	w := &c.w
	put(w.Link, w.Ver, w.Late[0] == nil, w.Late[1] == nil, w.Txn == nil)
	for i := range w.Nodes {
		n := &w.Nodes[i]
		put(n.ID, n.Term, n.Leader, n.Up, n.Dead)
		for k := range n.Log {
			if e := &n.Log[k]; e.Kind != explore.Write && e.Kind != explore.Empty {
				put(e.Kind, e.ID, e.Tok.Gen)
			}
		}
	}
	for i := range w.Sites {
		s := &w.Sites[i]
		put(s.Locked, s.Added, s.Own.Generation, s.Seen)
		for k := range 2 {
			put(s.Out[k] == nil, s.Back[k] == nil)
		}
	}
	return h.Sum64()
}

// String is the state, for people.
func (c *cand) String() string {
	var b strings.Builder
	w := &c.w
	for i := range w.Nodes {
		n := &w.Nodes[i]
		if n.ID == 0 {
			continue
		}
		role := "follows"
		switch {
		case n.Dead:
			role = "removed"
		case !n.Up:
			role = "down"
		case w.Leads(i):
			role = "leads"
		}
		last := 0
		if len(n.Log) > 0 {
			last = int(n.Log[len(n.Log)-1].Term)
		}
		fmt.Fprintf(&b, "  member %s %016x: %s, term %d, log to %d@%d, commit %d (disk %d), applied %d (disk %d), log from %d\n",
			string("abc"[i]), n.ID, role, n.Term, len(n.Log), last, n.Commit, n.HS, n.Applied, n.DB, n.Snap+1)
	}
	for i := range w.Sites {
		s := &w.Sites[i]
		fmt.Fprintf(&b, "  agent %s: %s (%s)", string("ab"[i]), s.S.Phase, s.S.Why)
		for k, name := range []string{"arbiter", "site"} {
			if a := s.Out[k]; a != nil {
				fmt.Fprintf(&b, ", %s asked of the %s", a.Kind, name)
			}
			if e := s.Back[k]; e != nil {
				fmt.Fprintf(&b, ", %s under way", e.Kind)
			}
		}
		if s.Locked {
			b.WriteString(", holds the locks")
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "  link %t, record: generation %d names %016x, whole at %d, confirmed %d@%d\n",
		w.Link, w.Rec.Generation, w.Rec.Survivor.ID, w.Rec.WholeGeneration, w.Rec.Confirmed.Index, w.Rec.Confirmed.Term)
	return b.String()
}
