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
//     generations by rank, an earlier start of an etcd is as good as any other;
//   - what all logs have, have applied and have on disk is folded into Base, and
//     indices and terms count from there. What lies below is one value: no rule
//     tells apart two indices below everything that is left;
//   - the history of generations that no token and no record is at any more;
//   - late swaps of versions that the record has left;
//   - fields that are written before they are read (codec.go).
type encoder struct {
	w     *World
	b     []byte
	zeros int

	fold     int // entries folded into Base
	first    uint64
	old      uint64   // generations up to this one are history
	gens     []uint64 // all that are left, ascending
	rec      []byte   // the record of the register, as it was written
	ctx      int      // whose starts are meant
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
	case above:
		return v - min(v, uint64(x.fold))
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
		if v != 0 && uint32(v) == x.w.Nodes[x.ctx].Start {
			return 1
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
				x.flush()
				mark := len(x.b)
				x.put(2)
				x.walk(recordPlan, q)
				x.flush()
				if bytes.Equal(x.b[mark+1:], x.rec) { // equal but for what is dead
					x.b = x.b[:mark]
					x.put(1)
				}
			}
		case pos:
			x.position((*arbiter.Position)(q))
		case since:
			p := *(*arbiter.Position)(q)
			if p.Index <= uint64(x.fold) {
				p = arbiter.Position{} // before every entry that is left
			}
			x.position(&p)
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

// nonce: one that no record shows equals none of theirs, nor the empty one.
func (x *encoder) nonce(s string) {
	if s == "" {
		x.put(0)
		return
	}
	n := untag(s)
	if !slices.Contains(x.live, n) {
		x.put(1)
		return
	}
	x.put(number(&x.nonces, n) + 1)
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
		if x.forgotten(h, i, rec) {
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
	switch w.order() {
	case -1:
		return encode(w), false
	case 1:
		f := *w
		f.flip()
		return encode(&f), true
	}
	a := encode(w)
	f := *w
	f.flip()
	if b := encode(&f); bytes.Compare(b, a) < 0 {
		return b, true
	}
	return a, false
}

// folded is how many entries every log shares, has applied and has on disk, but one.
func (w *World) folded() int {
	k := len(w.Hist)
	for i := range w.Nodes {
		if n := &w.Nodes[i]; len(n.Log) > 0 {
			k = min(k, n.HS, n.DB, n.Commit, n.Applied)
		}
	}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		for j := 0; len(n.Log) > 0 && j < k; j++ {
			if n.Log[j] != w.Hist[j] {
				k = j
			}
		}
	}
	if end := w.claimEnd(); end > 0 {
		k = min(k, end)
	}
	k = max(k-1, 0)
	// What came after the token, or without one of this generation after the claim, is asked for (P5).
	n := Node{Log: w.Hist}
	if t := w.token(&n, min(k+1, len(w.Hist))); t.Present {
		for j, e := range w.Hist[:min(k+1, len(w.Hist))] {
			if e.UID == t.UID {
				return max(j-1, 0) // what is folded stays below the token
			}
		}
	}
	return k
}

// claimEnd is the end of the named survivor's log when it claimed, if that log no longer reaches
// back to it and none holds this generation's token (P5); else zero.
func (w *World) claimEnd() int {
	end := int(w.Rec.ClaimEnd.Index)
	if end >= len(w.Hist) || !slices.ContainsFunc(w.Nodes[:2], func(n Node) bool { return n.ID == w.Rec.Survivor.ID && n.ID != 0 && n.Snap > end }) {
		return 0
	}
	for _, e := range w.Hist[end:] {
		if e.Kind == TokenWrite && e.Tok.Gen == w.Rec.Generation {
			return 0
		}
	}
	return end
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
	x.generations(&base)
	for i := range w.Nodes {
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
	x.flush()
	mark := len(x.b)
	x.walk(recordPlan, unsafe.Pointer(&w.Rec))
	x.flush()
	x.rec = bytes.Clone(x.b[mark:])
	for i := range w.Sites {
		x.ctx = i
		s := &w.Sites[i]
		c := *s
		if !x.reassert { // only a reassertion reads them
			c.S.Mine.End, c.S.Mine.Fork, c.Own.End, c.Own.Fork = arbiter.Position{}, arbiter.Position{}, arbiter.Position{}, arbiter.Position{}
		}
		if c.S.StopStart != w.Nodes[i].Start { // etcd was started since
			c.S.StopVer = arbiter.Version{}
		}
		if c.S.Phase != failover.Joining && c.S.Phase != failover.Preparing {
			c.S.List = failover.List{}
		}
		x.walk(sitePlan, unsafe.Pointer(&c))
	}
	for _, a := range w.Late {
		if w.stale(a) {
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
		if g != 0 && x.w.mentions(g, x.fold) {
			gone = append(gone, x.idOf(g))
		}
	}
	slices.Sort(gone)
	x.put(uint64(len(gone)))
	for _, g := range gone {
		x.put(g)
	}
}

func (w *World) mentions(id uint64, fold int) bool {
	for i := range w.Nodes {
		if w.Nodes[i].ID == id {
			return true
		}
		for _, e := range w.Nodes[i].Log[min(fold, len(w.Nodes[i].Log)):] {
			if e.ID == id {
				return true
			}
		}
	}
	return false
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
		if w.Off.any() { // a switch may put a nonce into a record
			for _, n := range append(s.S.Mine.Nonces[:], s.Own.Nonces[:]...) {
				add(&arbiter.Record{ClaimNonce: n})
			}
		}
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
		if !w.stale(a) {
			add(&a.Record)
		}
	}
}

// stale: no store will apply this swap any more.
func (w *World) stale(a *failover.Action) bool {
	return a == nil || (prevOf(a) != w.Ver && !w.Off.has(P1))
}

func prevOf(a *failover.Action) uint32 {
	if !a.Prev.Exists() {
		return 0
	}
	return untag(a.Prev.Tag())
}
