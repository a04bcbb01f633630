package check

import (
	"cmp"
	"slices"
	"sort"

	"twok/testing/history"
)

// versions is what a database holds of each key, the oldest first.
type versions struct {
	of      map[string][]history.Change
	compact int64
	newest  int64
}

func versionsOf(m *history.Member) versions {
	v := versions{of: map[string][]history.Change{}, compact: m.DiskCompact, newest: m.DiskCompact}
	for _, c := range m.Disk {
		v.of[c.Key] = append(v.of[c.Key], c)
		v.newest = max(v.newest, c.Rev)
	}
	for _, cs := range v.of {
		slices.SortFunc(cs, func(a, b history.Change) int { return cmp.Or(cmp.Compare(a.Rev, b.Rev), cmp.Compare(a.Sub, b.Sub)) })
	}
	return v
}

// at is the key as of a revision, which was not compacted.
func (v versions) at(key string, rev int64) history.KV {
	cs := v.of[key]
	n := sort.Search(len(cs), func(i int) bool { return cs[i].Rev > rev })
	if n == 0 || cs[n-1].Delete {
		return history.KV{Key: key}
	}
	c := cs[n-1]
	return history.KV{Key: key, Value: c.Value, Mod: c.Rev, Create: c.Create, Version: c.Version}
}

// live is every key as of a revision, which was not compacted.
func (v versions) live(rev int64) (out []history.KV) {
	for key := range v.of {
		if kv := v.at(key, rev); kv.Present() {
			out = append(out, kv)
		}
	}
	return out
}

// reads: whatever anybody was shown, serializable reads among it, was there at the revision of the answer. With that and
// the order of revisions (revisions) all operations on all keys are in one order.
func reads(r *Result, h history.History, _ Options) {
	if h.Final == nil || len(h.Final.Members) == 0 {
		r.missing("nobody looked at what is there at the end")
		return
	}
	for i := range h.Final.Members {
		m := &h.Final.Members[i]
		if len(m.Disk) == 0 {
			r.missing("nothing was found on the disk of %s", m.Site)
			continue
		}
		v := versionsOf(m)
		for j := range h.Ops {
			o := &h.Ops[j]
			if o.Outcome != history.OK || o.Kind == history.Grant {
				continue
			}
			at := o.Revision
			if o.Wrote() {
				at-- // Seen is from before
			}
			switch {
			case o.Revision > v.newest:
				r.Checked++
				r.bad("%s of client %d was answered at revision %d; the disk of %s ends at %d", o.Kind, o.Client, o.Revision, m.Site, v.newest)
				continue
			case at < v.compact:
				continue // nobody knows any more
			}
			for _, kv := range o.Seen {
				r.Checked++
				if want := v.at(kv.Key, at); kv != want {
					r.bad("%s of client %d at %s was shown %s at revision %d; on the disk of %s that is %s", o.Kind, o.Client, o.Site, wordsOf(kv), at, m.Site, wordsOf(want))
				}
			}
		}
	}
}
