package check

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"
	"time"

	"twok/testing/history"
)

func revisions(r *Result, h history.History, _ Options) {
	var ops []*history.Op
	at := map[int64]*history.Op{}
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Outcome != history.OK || o.Kind == history.Grant {
			continue
		}
		if o.Revision <= 0 {
			r.bad("%s of client %d was acknowledged with revision %d", o.Kind, o.Client, o.Revision)
			continue
		}
		ops = append(ops, o)
		if !o.Wrote() {
			continue
		}
		if p := at[o.Revision]; p != nil {
			r.bad("revision %d was acknowledged to %s of client %d and to %s of client %d", o.Revision, p.Kind, p.Client, o.Kind, o.Client)
		}
		at[o.Revision] = o
	}
	late := happened(h) // what was found of writes without an answer
	calls := slices.SortedFunc(slices.Values(append(slices.Clone(ops), slices.Collect(maps.Keys(late))...)), func(a, b *history.Op) int { return cmp.Compare(a.Call, b.Call) })
	returns := slices.SortedFunc(slices.Values(ops), func(a, b *history.Op) int { return cmp.Compare(a.Return, b.Return) })
	var acked int64              // the highest revision of what had returned
	member := map[string]int64{} // the same, by whom answered
	n := 0
	for _, o := range calls {
		for ; n < len(returns) && returns[n].Return < o.Call; n++ {
			p := returns[n]
			member[p.Site] = max(member[p.Site], p.Revision)
			acked = max(acked, p.Revision)
		}
		r.Checked++
		rev, unanswered := late[o]
		switch {
		case unanswered:
			if rev <= acked {
				r.bad("%s of client %d, which had no answer, is at revision %d; somebody had got %d before it was asked for", o.Kind, o.Client, rev, acked)
			}
		case o.Kind == history.StaleGet:
			if o.Revision < member[o.Site] {
				r.bad("the member of %s answered client %d with revision %d, after it had answered somebody with %d", o.Site, o.Client, o.Revision, member[o.Site])
			}
		case o.Wrote() && o.Revision <= acked:
			r.bad("%s of client %d got revision %d, after somebody had got %d", o.Kind, o.Client, o.Revision, acked)
		case o.Revision < acked:
			r.bad("%s of client %d got revision %d, after somebody had got %d", o.Kind, o.Client, o.Revision, acked)
		}
	}
}

// happened are the writes of unknown outcome that are on a disk, with their revisions.
func happened(h history.History) map[*history.Op]int64 {
	at := map[string]int64{} // by value
	if h.Final != nil {
		for _, m := range h.Final.Members {
			for _, c := range m.Disk {
				if rev, ok := at[c.Value]; !c.Delete && (!ok || c.Rev < rev) {
					at[c.Value] = c.Rev
				}
			}
		}
	}
	out := map[*history.Op]int64{}
	for i := range h.Ops {
		o := &h.Ops[i]
		for _, w := range o.Writes {
			if rev, ok := at[w.Value]; ok && o.Outcome == history.Unknown && !w.Delete {
				out[o] = rev
			}
		}
	}
	return out
}

// stale counts serializable reads that missed a write which was acknowledged before they began.
func stale(h history.History) map[string]Stale {
	type write struct{ rev, ret int64 }
	var ws []write
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Wrote() {
			ws = append(ws, write{o.Revision, o.Return})
		}
	}
	slices.SortFunc(ws, func(a, b write) int { return cmp.Compare(a.rev, b.rev) })
	first := make([]int64, len(ws)+1) // the first answer to a write of at least this revision
	first[len(ws)] = math.MaxInt64
	for i := len(ws) - 1; i >= 0; i-- {
		first[i] = min(first[i+1], ws[i].ret)
	}
	out := map[string]Stale{}
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Kind != history.StaleGet || o.Outcome != history.OK {
			continue
		}
		s := out[o.Site]
		s.Reads++
		k := sort.Search(len(ws), func(i int) bool { return ws[i].rev > o.Revision })
		if first[k] < o.Call {
			s.Stale++
			s.Oldest = max(s.Oldest, time.Duration(o.Call-first[k]))
		}
		out[o.Site] = s
	}
	return out
}
