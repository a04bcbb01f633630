package explore

import (
	"encoding/binary"
	"unsafe"

	"twok/arbiter"
	"twok/internal/failover"
)

// decoder reads the canonical form back into a World that behaves as the one
// that was written.
type decoder struct {
	b     []byte
	zeros int
	w     *World
	max   [4]uint64 // IDs, nonces, versions, entries
}

func (x *decoder) get() uint64 {
	if x.zeros > 0 {
		x.zeros--
		return 0
	}
	v, n := binary.Uvarint(x.b)
	if n <= 0 {
		panic("explore: a canonical form ends early")
	}
	x.b = x.b[n:]
	if v == 0 {
		x.zeros = int(x.b[0]) - 1
		x.b = x.b[1:]
	}
	return v
}

func (x *decoder) seen(i int, v uint64) uint64 {
	x.max[i] = max(x.max[i], v)
	return v
}

func (x *decoder) walk(p *plan, at unsafe.Pointer) {
	for i := range p.leaves {
		l := &p.leaves[i]
		q := unsafe.Add(at, l.off)
		switch l.cl {
		case history:
			h := (*[arbiter.HistoryLen]arbiter.HistoryEntry)(q)
			for n := 0; x.get() == 1; n++ {
				x.walk(pastPlan, unsafe.Pointer(&h[n]))
			}
		case record:
			switch x.get() {
			case 1:
				*(*arbiter.Record)(q) = x.w.Rec
			case 2:
				x.walk(recordPlan, q)
			}
		case pos, since:
			p := (*arbiter.Position)(q)
			p.Index, p.Term = x.get(), x.get()
		case entries:
			*(*[]Entry)(q) = x.log()
		case pointer:
			if x.get() == 1 {
				*(*unsafe.Pointer)(q) = x.fresh(l.sub)
			}
		case ids:
			for k, d := range (*[8]uint64)(q)[:l.n:l.n] {
				_ = d
				(*[8]uint64)(q)[k] = x.seen(0, x.get())
			}
		case nonce:
			if n := x.get(); n > 0 {
				*(*string)(q) = tag(uint32(x.seen(1, n-1)))
			}
		case tagged:
			if n := x.seen(2, x.get()); n > 0 {
				*(*string)(q) = tag(uint32(n))
			}
		case text:
			if x.get() == 1 {
				*(*string)(q) = recordID
			}
		default:
			v := x.get()
			switch l.cl {
			case id:
				x.seen(0, v)
			case uid:
				x.seen(3, v)
			}
			store(q, l.size, v)
		}
	}
}

// fresh reads a value of its own, so that the garbage collector knows its type.
func (x *decoder) fresh(p *plan) unsafe.Pointer {
	var at unsafe.Pointer
	switch p.t {
	case actionPlan.t:
		at = unsafe.Pointer(new(failover.Action))
	case eventPlan.t:
		at = unsafe.Pointer(new(failover.Event))
	default:
		panic("explore: pointer to " + p.t.String())
	}
	x.walk(p, at)
	return at
}

func (x *decoder) log() []Entry {
	n := int(x.get())
	if n == 0 {
		return nil
	}
	es := make([]Entry, n)
	for i := range es {
		x.walk(entryPlan, unsafe.Pointer(&es[i]))
	}
	return es
}

// decode reads a canonical form.
func decode(b []byte, off Switches, longest int) *World {
	w := &World{Off: off, Max: longest}
	x := decoder{b: b, w: w}
	flags := x.get()
	w.Link, w.Far = flags&2 != 0, [2]bool{flags&4 != 0, flags&8 != 0}
	w.Ver = uint32(x.seen(2, x.get()))
	c := &w.Base.Conf
	c.N = uint8(x.get())
	for i := range c.N {
		x.walk(peerPlan, unsafe.Pointer(&c.Peers[i]))
	}
	for i := range int(x.get()) {
		g := x.seen(0, x.get())
		if i < len(c.Gone) {
			c.Gone[i] = g
		}
	}
	x.walk(tokenPlan, unsafe.Pointer(&w.Base.Tok))
	w.Hist = x.log()
	for i := range w.Nodes {
		x.walk(nodePlan, unsafe.Pointer(&w.Nodes[i]))
	}
	x.walk(recordPlan, unsafe.Pointer(&w.Rec))
	for i := range w.Sites {
		x.walk(sitePlan, unsafe.Pointer(&w.Sites[i]))
		w.Sites[i].S.P = Params
		o := &w.Sites[i].S.Obs
		o.Start, o.Other = w.Nodes[i].Start, w.Nodes[1-i].ID
	}
	for i := range w.Late {
		if x.get() == 1 {
			w.Late[i] = (*failover.Action)(x.fresh(actionPlan))
		}
	}
	if x.get() == 1 {
		w.Txn = &LateToken{}
		x.walk(latePlan, unsafe.Pointer(w.Txn))
	}
	if x.get() != 1 {
		panic("explore: a canonical form does not end where it should")
	}
	w.IDs, w.Nons, w.Vers, w.UIDs = x.max[0], uint32(x.max[1]), uint32(x.max[2]), uint32(x.max[3])
	return w
}
