package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"twok/arbiter"
	"twok/testing/history"
)

func watch(r *Result, h history.History, opt Options) {
	if len(h.Watches) != 2 {
		r.missing("%d sites had a watch, want 2", len(h.Watches))
	}
	var newest int64
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Wrote() {
			newest = max(newest, o.Revision)
		}
	}
	sites := slices.Sorted(maps.Keys(h.Watches))
	streams := map[string]*stream{}
	for _, s := range sites {
		streams[s] = follow(r, h, s, newest, opt)
		for i := range h.Ops {
			o := &h.Ops[i]
			if !o.Wrote() || streams[s].skipped(o.Revision) || h.Final == nil && o.Revision > streams[s].last {
				continue
			}
			for _, w := range o.Writes {
				if w.Delete && !seenPresent(o, w.Key) {
					continue
				}
				if e, ok := streams[s].find(o.Revision, w.Key); !ok || e.Value != w.Value || e.Delete != w.Delete {
					r.bad("the watch of %s does not show %s of %s, acknowledged at revision %d", s, o.Kind, w.Key, o.Revision)
				}
			}
		}
	}
	if len(sites) == 2 {
		a, b := streams[sites[0]], streams[sites[1]]
		for rev, es := range a.at {
			if !b.skipped(rev) && rev <= b.last && !slices.EqualFunc(es, b.at[rev], same) {
				r.bad("the watches of %s and %s differ at revision %d: %s, %s", sites[0], sites[1], rev, words(es), words(b.at[rev]))
			}
		}
		for rev := range b.at {
			if _, ok := a.at[rev]; !ok && !a.skipped(rev) && rev <= a.last {
				r.bad("revision %d is in the watch of %s only", rev, sites[1])
			}
		}
	}
	if h.Final == nil {
		return
	}
	for _, m := range h.Final.Members {
		onDisk := map[int64]map[string]history.Change{}
		for _, c := range m.Disk {
			if onDisk[c.Rev] == nil {
				onDisk[c.Rev] = map[string]history.Change{}
			}
			onDisk[c.Rev][c.Key] = c
		}
		for _, s := range sites {
			for rev, es := range streams[s].at {
				if rev <= m.DiskCompact || len(m.Disk) == 0 {
					continue
				}
				for _, e := range es {
					if c, ok := onDisk[rev][e.Key]; !ok || e.Value != c.Value || e.Delete != c.Delete {
						r.bad("the watch of %s shows %s at revision %d, and the disk of %s does not", s, e.Key, rev, m.Site)
					}
				}
			}
		}
		for _, c := range m.Disk {
			if c.Rev <= m.DiskCompact || c.Rev > newest {
				continue
			}
			for _, s := range sites {
				if streams[s].skipped(c.Rev) {
					continue
				}
				if e, ok := streams[s].find(c.Rev, c.Key); !ok || e.Value != c.Value || e.Delete != c.Delete {
					r.bad("the watch of %s does not show revision %d of %s as it is on the disk of %s", s, c.Rev, c.Key, m.Site)
				}
			}
		}
	}
}

// stream is what a watch received, by revision.
type stream struct {
	at    map[int64][]history.Event
	holes [][2]int64 // revisions that were compacted away: from, up to but not including
	last  int64
}

func (s *stream) skipped(rev int64) bool {
	for _, h := range s.holes {
		if h[0] <= rev && rev < h[1] {
			return true
		}
	}
	return false
}

func (s *stream) find(rev int64, key string) (history.Event, bool) {
	for _, e := range s.at[rev] {
		if e.Key == key {
			return e, true
		}
	}
	return history.Event{}, false
}

// follow reads a stream and finds what is out of order or missing. Each revision changes
// something, and the first one of an empty etcd's life is 2.
func follow(r *Result, h history.History, site string, newest int64, opt Options) *stream {
	events := h.Watches[site]
	compacted := int64(math.MaxInt64) // not more than this
	if h.Final != nil && h.Final.HashRevision != 0 {
		compacted = 0
		for _, m := range h.Final.Members {
			compacted = max(compacted, m.Compact, m.DiskCompact)
		}
	}
	s := &stream{at: map[int64][]history.Event{}, last: 1}
	for _, e := range events {
		if e.Compacted {
			if !opt.Compaction {
				r.bad("the watch of %s was told that what follows revision %d is compacted, and nobody compacts here", site, s.last)
			}
			if compacted == math.MaxInt64 {
				r.missing("the watch of %s was told of a compaction at %d, and what the members have compacted is not known", site, e.Rev)
			} else if e.Rev > compacted {
				r.bad("the watch of %s was told that what is below %d is compacted; the members have compacted at %d", site, e.Rev, compacted)
			}
			if e.Rev > s.last+1 {
				s.holes = append(s.holes, [2]int64{s.last + 1, e.Rev})
				s.last = e.Rev - 1
			}
			continue
		}
		r.Checked++
		switch {
		case e.Rev < s.last:
			r.bad("the watch of %s shows revision %d after %d", site, e.Rev, s.last)
		case e.Rev > s.last+1:
			r.bad("the watch of %s shows revision %d after %d, and nothing in between", site, e.Rev, s.last)
		}
		if _, twice := s.find(e.Rev, e.Key); twice {
			r.bad("the watch of %s shows %s at revision %d twice", site, e.Key, e.Rev)
		}
		s.at[e.Rev] = append(s.at[e.Rev], e)
		s.last = max(s.last, e.Rev)
	}
	if h.Final == nil && s.last < newest {
		r.missing("the watch of %s was not waited for", site)
	} else if s.last < newest {
		r.bad("the watch of %s ends at revision %d; %d was acknowledged", site, s.last, newest)
	}
	return s
}

func same(a, b history.Event) bool {
	return a.Rev == b.Rev && a.Key == b.Key && a.Value == b.Value && a.Delete == b.Delete
}

func words(es []history.Event) string {
	var out []string
	for _, e := range es {
		out = append(out, fmt.Sprintf("%s=%s", e.Key, short(e.Value)))
	}
	return "[" + strings.Join(out, " ") + "]"
}

func equal(r *Result, h history.History, _ Options) {
	if h.Final == nil || len(h.Final.Members) != 2 {
		r.missing("both members have to be looked at")
		return
	}
	a, b := &h.Final.Members[0], &h.Final.Members[1]
	for _, m := range []*history.Member{a, b} {
		voters := 0
		for _, s := range m.Members {
			if strings.HasSuffix(s, " voter") {
				voters++
			}
		}
		if voters != 2 || len(m.Members) != 2 {
			r.bad("%s has the members %s, want two voters", m.Site, strings.Join(m.Members, ", "))
		}
		if len(m.Disk) == 0 || len(m.Keys) == 0 {
			r.missing("nothing was read of %s", m.Site)
		}
	}
	if !slices.Equal(a.Members, b.Members) {
		r.bad("the members' lists differ: %s; %s", strings.Join(a.Members, ", "), strings.Join(b.Members, ", "))
	}
	switch {
	case h.Final.HashRevision == 0 || a.Compact != b.Compact:
		r.missing("the key spaces were not hashed at one revision and one compaction (%d; %d, %d)", h.Final.HashRevision, a.Compact, b.Compact)
	case a.Hash != b.Hash:
		r.bad("at revision %d the key spaces hash to %x and %x", h.Final.HashRevision, a.Hash, b.Hash)
	}
	name := func(kv history.KV) string { return kv.Key }
	compare(r, "the linearizable read and "+a.Site+"'s own data", h.Final.Linear, a.Keys, name)
	for _, m := range []*history.Member{a, b} {
		if v := versionsOf(m); len(m.Disk) == 0 || h.Final.HashRevision == 0 {
			continue // it was said
		} else if v.compact > h.Final.HashRevision {
			r.missing("the disk of %s is compacted at %d, and what it held at %d is not known", m.Site, v.compact, h.Final.HashRevision)
		} else {
			compare(r, "the API and the disk of "+m.Site, m.Keys, v.live(h.Final.HashRevision), name)
		}
	}
	compare(r, "over the API", a.Keys, b.Keys, name)
	from, to := max(a.DiskCompact, b.DiskCompact), h.Final.HashRevision
	cut := func(cs []history.Change) (out []history.Change) {
		for _, c := range cs {
			if from < c.Rev && c.Rev <= to {
				out = append(out, c)
			}
		}
		return out
	}
	compare(r, "on disk", cut(a.Disk), cut(b.Disk), func(c history.Change) string { return fmt.Sprintf("revision %d.%d", c.Rev, c.Sub) })
}

// compare finds what one has and the other has not, or has otherwise.
func compare[T comparable](r *Result, where string, a, b []T, name func(T) string) {
	mb := map[string]T{}
	for _, x := range b {
		mb[name(x)] = x
	}
	for _, x := range a {
		r.Checked++
		n := name(x)
		if y, ok := mb[n]; !ok {
			r.bad("%s: %s is at the first one only", where, n)
		} else if x != y {
			r.bad("%s: %s differs: %.200v, %.200v", where, n, fmt.Sprint(x), fmt.Sprint(y))
		}
		delete(mb, n)
	}
	for _, n := range slices.Sorted(maps.Keys(mb)) {
		r.bad("%s: %s is at the second one only", where, n)
	}
}

func record(r *Result, h history.History, _ Options) {
	if h.Final == nil || h.Final.Record == nil {
		r.missing("the record was not read")
		return
	}
	rec := h.Final.Record
	if len(h.Final.IDs) != 2 {
		r.missing("the traces do not show the member IDs of both sites")
		return
	}
	siteOf := map[uint64]string{}
	for s, ids := range h.Final.IDs {
		for _, id := range ids {
			if t := siteOf[id]; t != "" && t != s {
				r.bad("member %x was at both sites", id)
			}
			siteOf[id] = s
		}
	}
	r.Checked++
	if rec.Generation == 0 {
		r.bad("the record is of generation 0")
	}
	claims := slices.SortedFunc(slices.Values(h.Final.Claims), func(a, b history.Claim) int { return cmp.Compare(a.Generation, b.Generation) })
	won, asked := map[uint64]string{}, map[uint64][]string{}
	for _, c := range claims {
		r.Checked++
		asked[c.Generation] = append(asked[c.Generation], c.Site)
		if !c.Won {
			continue
		}
		if s := won[c.Generation]; s != "" && s != c.Site {
			r.bad("both sites won generation %d", c.Generation)
		}
		won[c.Generation] = c.Site
		if c.Generation > rec.Generation {
			r.bad("%s won generation %d, and the record is of generation %d", c.Site, c.Generation, rec.Generation)
			continue
		}
		named := ""
		for _, x := range rec.Reigns {
			if x.First <= c.Generation && c.Generation <= x.Last {
				named = siteOf[x.Survivor]
				if named == "" {
					named = fmt.Sprintf("member %x, of neither site", x.Survivor)
				}
			}
		}
		if named != c.Site {
			r.bad("%s won generation %d; the record has %q", c.Site, c.Generation, named)
		}
	}
	next := uint64(2) // 1 is the record's creation, by no claim
	if len(rec.Reigns) == arbiter.HistoryLen {
		next = rec.Reigns[0].First // the record forgets older ones
	}
	for _, x := range rec.Reigns {
		if x.First != next || x.Last < x.First {
			r.bad("the record's history has generations %d to %d where %d begins", x.First, x.Last, next)
		}
		next = x.Last + 1
		for g := x.First; g <= x.Last; g++ {
			r.Checked++
			if !slices.Contains(asked[g], siteOf[x.Survivor]) {
				r.bad("the record has generation %d for %s (%x), whose agent's trace does not show that claim", g, siteOf[x.Survivor], x.Survivor)
			}
		}
	}
	if next != rec.Generation+1 {
		r.bad("the record is of generation %d, its history ends at %d", rec.Generation, next-1)
	}
}
