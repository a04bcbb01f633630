package explore

import (
	"slices"
	"unsafe"

	"twok/arbiter"
)

// g is the rank of a generation. Only their order is ever asked for, and whether one
// follows another directly where both are there.
func (x *encoder) g(v uint64) uint64 {
	if v == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(x.gens, v)
	return uint64(i + 1)
}

// collect gathers the generations that a value holds.
func (x *encoder) collect(p *plan, at unsafe.Pointer) {
	for i := range p.gens {
		l := &p.gens[i]
		q := unsafe.Add(at, l.off)
		switch l.cl {
		case history:
			for h := (*[arbiter.HistoryLen]arbiter.HistoryEntry)(q); len(h) > 0; {
				for k := range h {
					if h[k].First == 0 {
						break
					}
					if !x.forgotten(h, k, (*arbiter.Record)(at)) {
						x.add(h[k].First)
						x.add(h[k].Last)
					}
				}
				break
			}
		case record:
			if rec := (*arbiter.Record)(q); rec.ID != "" && *rec != x.w.Rec {
				x.collect(recordPlan, q)
			}
		case entries: // by hand
		case pointer:
			if t := *(*unsafe.Pointer)(q); t != nil {
				x.collect(l.sub, t)
			}
		default:
			x.add(load(q, l.size))
		}
	}
}

func (x *encoder) add(v uint64) {
	if v != 0 && !slices.Contains(x.gens, v) {
		x.gens = append(x.gens, v)
	}
}

// forgotten says whether no rule will read this part of a history again.
func (x *encoder) forgotten(h *[arbiter.HistoryLen]arbiter.HistoryEntry, k int, rec *arbiter.Record) bool {
	newest := k+1 == arbiter.HistoryLen || h[k+1].First == 0
	return h[k].Last <= x.old && (!newest || rec.WholeGeneration == rec.Generation)
}

// generations finds which history is over, and collects the generations that are left.
func (x *encoder) generations(base *Base) {
	w := x.w
	low := uint64(1 << 40)
	take := func(g uint64) {
		if g != 0 {
			low = min(low, g)
		}
		x.add(g)
	}
	take(base.Tok.Gen)
	for i := range w.Nodes {
		n := &w.Nodes[i]
		if len(n.Log) == 0 {
			continue
		}
		for _, e := range n.Log[x.fold:] {
			take(e.Tok.Gen)
		}
	}
	if w.Txn != nil {
		take(w.Txn.Entry.Tok.Gen)
	}
	take(w.Rec.Generation)
	for i := range w.Sites {
		s := &w.Sites[i]
		take(s.S.Rec.Generation)
		take(s.S.Data.Token.Generation)
		for _, a := range s.Out {
			if a != nil {
				take(a.Record.Generation)
			}
		}
		for _, e := range s.Back {
			if e != nil {
				take(e.Record.Generation)
			}
		}
	}
	x.old = low
	x.collect(recordPlan, unsafe.Pointer(&w.Rec))
	for i := range w.Sites {
		x.collect(sitePlan, unsafe.Pointer(&w.Sites[i]))
	}
	for _, a := range w.Late {
		if !w.stale(a) {
			x.collect(actionPlan, unsafe.Pointer(a))
		}
	}
	slices.Sort(x.gens)
}
