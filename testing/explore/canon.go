package explore

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unsafe"

	"twok/arbiter"
	"twok/internal/failover"
)

// The canonical form. Two states that differ only in what follows have one:
//
//   - the sites' names are exchanged;
//   - member IDs, nonces, versions and entry IDs are numbered by first appearance,
//     starts of an etcd by rank (nothing but equality is ever asked of them);
//   - what all logs have, have applied and have on disk is folded into Base, and
//     indices, terms and generations count from there. What lies below is one value: no rule
//     tells apart two indices below everything that is left;
//   - generations that no token or record is at any more, and their history;
//   - late swaps of versions that the record has left;
//   - fields that are written before they are read (codec.go).
type encoder struct {
	w     *World
	b     []byte
	zeros int

	fold     int // entries folded into Base
	first    uint64
	minGen   uint64
	rank     [3][4]uint32 // starts, ascending
	ranks    [3]int
	ctx      int // whose starts are meant
	ids      []uint64
	nonces   []uint32
	vers     []uint32
	uids     []uint32
	live     []uint32 // claim nonces that a record may show
	reassert bool
}

func (x *encoder) put(v uint64) {
	if v == 0 {
		x.zeros++
		return
	}
	x.flush()
	x.b = binary.AppendUvarint(x.b, v)
}

func (x *encoder) flush() {
	for x.zeros > 0 {
		n := min(x.zeros, 255)
		x.b = append(x.b, 0, byte(n))
		x.zeros -= n
	}
}

func number[T comparable](l *[]T, v T) uint64 {
	for i, have := range *l {
		if have == v {
			return uint64(i + 1)
		}
	}
	*l = append(*l, v)
	return uint64(len(*l))
}

func (x *encoder) idx(v uint64) uint64 {
	if v == 0 {
		return 0
	}
	if v <= uint64(x.fold) {
		return 1
	}
	return v - uint64(x.fold)
}

func (x *encoder) trm(v uint64) uint64 {
	switch {
	case v == 0:
		return 0
	case v < x.first:
		return 1
	}
	return v - x.first + 2
}

func (x *encoder) g(v uint64) uint64 {
	switch {
	case v == 0:
		return 0
	case v < x.minGen:
		return 1
	}
	return v - x.minGen + 2
}

func (x *encoder) idOf(v uint64) uint64 {
	if v == 0 {
		return 0
	}
	return number(&x.ids, v)
}

func (x *encoder) value(cl class, v uint64) uint64 {
	switch cl {
	case index:
		return x.idx(v)
	case term:
		return x.trm(v)
	case gen:
		return x.g(v)
	case id:
		return x.idOf(v)
	case uid:
		if v == 0 {
			return 0
		}
		return number(&x.uids, uint32(v))
	case start:
		for i := range x.ranks[x.ctx] {
			if x.rank[x.ctx][i] == uint32(v) {
				return uint64(i)
			}
		}
		return 0
	}
	return v
}

func (x *encoder) walk(p *plan, at unsafe.Pointer) {
	for i := range p.leaves {
		l := &p.leaves[i]
		q := unsafe.Add(at, l.off)
		switch l.cl {
		case history:
			x.past((*[arbiter.HistoryLen]arbiter.HistoryEntry)(q), (*arbiter.Record)(at))
		case record:
			rec := (*arbiter.Record)(q)
			switch {
			case rec.ID == "":
				x.put(0)
			case *rec == x.w.Rec:
				x.put(1)
			default:
				x.put(2)
				x.walk(recordPlan, q)
			}
		case pos:
			x.position((*arbiter.Position)(q))
		case entries:
			x.log(*(*[]Entry)(q))
		case pointer:
			if t := *(*unsafe.Pointer)(q); t == nil {
				x.put(0)
			} else {
				x.put(1)
				x.walk(l.sub, t)
			}
		case ids:
			x.sorted((*[8]uint64)(q)[:l.n:l.n])
		case nonce:
			x.nonce(*(*string)(q))
		case tagged:
			s := *(*string)(q)
			if s == "" {
				x.put(0)
			} else {
				x.put(number(&x.vers, untag(s)))
			}
		case text:
			switch s := *(*string)(q); s {
			case "":
				x.put(0)
			case recordID:
				x.put(1)
			default:
				panic("explore: unexpected text " + s)
			}
		default:
			x.put(x.value(l.cl, load(q, l.size)))
		}
	}
}

// nonce: one that no record shows and no claim of the other kind holds equals nothing.
func (x *encoder) nonce(s string) {
	if s == "" {
		x.put(0)
		return
	}
	n := untag(s)
	if !slices.Contains(x.live, n) {
		x.put(0)
		return
	}
	x.put(number(&x.nonces, n))
}

func (x *encoder) sorted(list []uint64) {
	var v [8]uint64
	n := 0
	for _, m := range list {
		if m != 0 {
			v[n] = x.idOf(m)
			n++
		}
	}
	slices.Sort(v[:n])
	for i := range list {
		x.put(v[i])
	}
}

func (x *encoder) position(p *arbiter.Position) {
	if p.Index == 0 {
		x.put(0)
		x.put(0)
		return
	}
	x.put(x.idx(p.Index))
	if p.Index <= uint64(x.fold) {
		x.put(2)
	} else {
		x.put(x.trm(p.Term))
	}
}

func (x *encoder) past(h *[arbiter.HistoryLen]arbiter.HistoryEntry, rec *arbiter.Record) {
	for i := range h {
		if h[i].First == 0 {
			break
		}
		old := h[i].Last < x.minGen || h[i].Last == x.minGen
		newest := i+1 == arbiter.HistoryLen || h[i+1].First == 0
		if old && (!newest || rec.WholeGeneration == rec.Generation) {
			continue
		}
		x.put(1)
		x.walk(pastPlan, unsafe.Pointer(&h[i]))
	}
	x.put(0)
}

func (x *encoder) log(es []Entry) {
	if len(es) == 0 {
		x.put(0)
		return
	}
	es = es[x.fold:]
	x.put(uint64(len(es)))
	for i := range es {
		x.entry(&es[i])
	}
}

func (x *encoder) entry(e *Entry) {
	x.walk(entryPlan, unsafe.Pointer(e))
}

// Canonical is the canonical form of w, and whether the sites are exchanged in it.
func Canonical(w *World) (form []byte, flipped bool) {
	a := encode(w)
	f := *w
	f.flip()
	b := encode(&f)
	if bytes.Compare(b, a) < 0 {
		return b, true
	}
	return a, false
}

// flip exchanges the sites.
func (w *World) flip() {
	w.Sites[0], w.Sites[1] = w.Sites[1], w.Sites[0]
	w.Nodes[0], w.Nodes[1] = w.Nodes[1], w.Nodes[0]
	w.Far[0], w.Far[1] = w.Far[1], w.Far[0]
	for i := range w.Nodes {
		m := &w.Nodes[i].Match
		m[0], m[1] = m[1], m[0]
		w.Nodes[i].Log = flipLog(w.Nodes[i].Log)
	}
	w.Hist = flipLog(w.Hist)
	for i := range w.Base.Conf.Peers {
		if p := &w.Base.Conf.Peers[i]; p.ID != 0 && p.Site < 2 {
			p.Site = 1 - p.Site
		}
	}
	if w.Txn != nil {
		t := *w.Txn
		t.Site = 1 - t.Site
		w.Txn = &t
	}
}

func flipLog(es []Entry) []Entry {
	if !slices.ContainsFunc(es, func(e Entry) bool { return (e.Kind == Add || e.Kind == AddLearner) && e.Site < 2 }) {
		return es
	}
	es = slices.Clone(es)
	for i := range es {
		if e := &es[i]; (e.Kind == Add || e.Kind == AddLearner) && e.Site < 2 {
			e.Site = 1 - e.Site
		}
	}
	return es
}

// folded is how many entries every log shares, has applied and has on disk, but one.
func (w *World) folded() int {
	k := len(w.Hist)
	for i := range w.Nodes {
		if n := &w.Nodes[i]; len(n.Log) > 0 {
			k = min(k, n.HS, n.DB, n.Commit, n.Applied)
		}
	}
	// Positions in sections under way are compared with each other.
	for i := range w.Nodes {
		n := &w.Nodes[i]
		for j := 0; len(n.Log) > 0 && j < k; j++ {
			if n.Log[j] != w.Hist[j] {
				k = j
			}
		}
	}
	return max(k-1, 0)
}

func encode(w *World) []byte {
	x := encoder{w: w, b: make([]byte, 0, 640), reassert: w.Off.has(A1)}
	x.fold = w.folded()
	x.first = uint64(w.Hist[x.fold].Term)
	base := w.Base
	if x.fold > 0 {
		n := Node{Log: w.Hist}
		base.Conf, base.Tok = w.conf(&n, x.fold), w.token(&n, x.fold)
	}
	base.Tok.Entry, base.Tok.Term = 0, 0
	x.minGen = w.minGen(&base)
	for i := range w.Nodes {
		x.starts(i)
		if w.Nodes[i].ID != 0 {
			x.idOf(w.Nodes[i].ID)
		}
	}
	x.claims()
	x.number(w)
	x.conf(&base.Conf)
	x.walk(tokenPlan, unsafe.Pointer(&base.Tok))
	x.log(w.Hist)
	for i := range w.Nodes {
		x.ctx = i
		x.walk(nodePlan, unsafe.Pointer(&w.Nodes[i]))
	}
	x.walk(recordPlan, unsafe.Pointer(&w.Rec))
	for i := range w.Sites {
		x.ctx = i
		s := &w.Sites[i]
		if !x.reassert && (s.S.Mine.End.Index|s.S.Mine.Fork.Index|s.Own.End.Index|s.Own.Fork.Index) != 0 {
			c := *s // only a reassertion reads them
			c.S.Mine.End, c.S.Mine.Fork, c.Own.End, c.Own.Fork = arbiter.Position{}, arbiter.Position{}, arbiter.Position{}, arbiter.Position{}
			s = &c
		}
		x.walk(sitePlan, unsafe.Pointer(s))
	}
	for _, a := range w.Late {
		if a == nil || prevOf(a) != w.Ver && !w.Off.has(P1) {
			x.put(0)
			continue
		}
		x.put(1)
		x.walk(actionPlan, unsafe.Pointer(a))
	}
	if w.Txn == nil {
		x.put(0)
	} else {
		x.ctx = int(w.Txn.Site)
		x.put(1)
		x.walk(latePlan, unsafe.Pointer(w.Txn))
	}
	x.put(1) // an end that is not zero
	x.flush()
	return x.b
}

// number writes the flags and what the counters must stay above.
func (x *encoder) number(w *World) {
	flags := uint64(1)
	for i, f := range []bool{w.Link, w.Far[0], w.Far[1]} {
		if f {
			flags |= 2 << i
		}
	}
	x.put(flags)
	if w.Ver == 0 {
		x.put(0)
	} else {
		x.put(number(&x.vers, w.Ver))
	}
}

func (x *encoder) conf(c *Conf) {
	d := *c
	slices.SortFunc(d.Peers[:d.N], func(a, b Peer) int { return int(a.Site) - int(b.Site) })
	x.put(uint64(d.N))
	for i := range d.Peers[:d.N] {
		x.walk(peerPlan, unsafe.Pointer(&d.Peers[i]))
	}
	// Removed IDs that nothing else holds are not asked for.
	var gone []uint64
	for _, g := range d.Gone {
		if g != 0 && x.w.mentions(g) {
			gone = append(gone, x.idOf(g))
		}
	}
	slices.Sort(gone)
	x.put(uint64(len(gone)))
	for _, g := range gone {
		x.put(g)
	}
}

func (w *World) mentions(id uint64) bool {
	for i := range w.Nodes {
		if w.Nodes[i].ID == id {
			return true
		}
		for _, e := range w.Nodes[i].Log {
			if e.ID == id {
				return true
			}
		}
	}
	return false
}

func (x *encoder) starts(i int) {
	w := x.w
	vs := []uint32{w.Nodes[i].Start}
	if i < 2 {
		vs = append(vs, w.Sites[i].S.StopStart)
	}
	if w.Txn != nil && int(w.Txn.Site) == i {
		vs = append(vs, w.Txn.Start)
	}
	vs = append(vs, 0)
	slices.Sort(vs)
	vs = slices.Compact(vs)
	x.ranks[i] = copy(x.rank[i][:], vs)
}

// claims collects the claim nonces that a record shows or may come to show.
func (x *encoder) claims() {
	add := func(r *arbiter.Record) {
		if r.ClaimNonce != "" {
			x.live = append(x.live, untag(r.ClaimNonce))
		}
	}
	w := x.w
	add(&w.Rec)
	for i := range w.Sites {
		s := &w.Sites[i]
		add(&s.S.Rec)
		for _, a := range s.Out {
			if a != nil {
				add(&a.Record)
			}
		}
		for _, e := range s.Back {
			if e != nil {
				add(&e.Record)
			}
		}
	}
	for _, a := range w.Late {
		if a != nil {
			add(&a.Record)
		}
	}
}

// minGen is the lowest generation that a token or a record is at.
func (w *World) minGen(base *Base) uint64 {
	low := uint64(1 << 40)
	take := func(g uint64) {
		if g != 0 {
			low = min(low, g)
		}
	}
	if base.Tok.Present {
		take(base.Tok.Gen)
	}
	for i := range w.Nodes {
		for _, e := range w.Nodes[i].Log {
			if e.Kind == TokenWrite {
				take(e.Tok.Gen)
			}
		}
	}
	if w.Txn != nil {
		take(w.Txn.Entry.Tok.Gen)
	}
	take(w.Rec.Generation)
	for i := range w.Sites {
		s := &w.Sites[i]
		take(s.S.Rec.Generation)
		take(s.S.Tok.Generation)
		take(s.S.Obs.Token.Generation)
		for _, a := range s.Out {
			if a != nil {
				take(a.Record.Generation)
				take(a.Generation)
			}
		}
		for _, e := range s.Back {
			if e != nil {
				take(e.Record.Generation)
			}
		}
	}
	for _, a := range w.Late {
		if a != nil {
			take(a.Record.Generation)
		}
	}
	if low == 1<<40 {
		return 0
	}
	return low
}

func prevOf(a *failover.Action) uint32 {
	if !a.Prev.Exists() {
		return 0
	}
	return untag(a.Prev.Tag())
}
