package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/testing/history"
)

// store is an etcd that does everything right, and what everybody saw of it.
type store struct {
	h    history.History
	now  int64
	rev  int64
	keys map[string]history.KV
	disk []history.Change
	n    int
}

func (s *store) value() string { s.n++; return fmt.Sprintf("0.%d", s.n) }

// do makes an operation and returns its place in the history. Every second one overlaps the next.
func (s *store) do(o history.Op) *history.Op {
	o.ID, o.Client, o.Outcome, o.Applied = len(s.h.Ops), s.n%4, history.OK, true
	o.Site = []string{"a", "b"}[s.n%2]
	if c := o.If; c != nil {
		kv := s.keys[c.Key]
		o.Applied = c.Absent && !kv.Present() || !c.Absent && kv.Value == c.Value && kv.Present()
	}
	if o.Group != "" {
		for _, k := range []string{"v", "x", "y", "z"} {
			if key := o.Group + "/" + k; (k == "v") == (o.Group[0] == 'r') {
				kv := s.keys[key]
				kv.Key = key
				o.Seen = append(o.Seen, kv)
			}
		}
	}
	if o.Applied && len(o.Writes) > 0 {
		s.apply(o.Writes)
	}
	o.Revision = s.rev
	o.Call = s.now + 1
	o.Return = s.now + 10 + int64(len(s.h.Ops)%2)*10
	s.now += 10 + 3
	s.h.Ops = append(s.h.Ops, o)
	return &s.h.Ops[len(s.h.Ops)-1]
}

func (s *store) apply(ws []history.Write) {
	changed := false
	for i, w := range ws {
		old := s.keys[w.Key]
		if w.Delete && !old.Present() {
			continue
		}
		if !changed {
			s.rev++
		}
		changed = true
		kv := history.KV{Key: w.Key, Value: w.Value, Mod: s.rev, Create: old.Create, Version: old.Version + 1}
		if !old.Present() {
			kv.Create = s.rev
		}
		c := history.Change{Rev: s.rev, Sub: int64(i), Key: w.Key, Value: w.Value, Delete: w.Delete, Create: kv.Create, Version: kv.Version}
		if w.Delete {
			c.Create, c.Version = 0, 0
			delete(s.keys, w.Key)
		} else {
			s.keys[w.Key] = kv
		}
		s.disk = append(s.disk, c)
	}
}

// good is a history with nothing wrong in it.
func good(seed uint64) history.History {
	s := &store{rev: 1, keys: map[string]history.KV{}}
	rng := rand.New(rand.NewPCG(seed, 0))
	put := func(key string) []history.Write { return []history.Write{{Key: key, Value: s.value()}} }
	leases := []int64{}
	for i := range 300 {
		r, g := fmt.Sprintf("r%d", rng.IntN(2)), fmt.Sprintf("t%d", rng.IntN(2))
		switch rng.IntN(10) {
		case 0:
			s.do(history.Op{Kind: history.Put, Group: r, Writes: put(r + "/v")})
		case 1, 2:
			c := &history.Cond{Key: r + "/v", Value: s.keys[r+"/v"].Value}
			c.Absent = c.Value == ""
			if rng.IntN(3) == 0 {
				c.Value, c.Absent = "other", false
			}
			s.do(history.Op{Kind: history.CAS, Group: r, If: c, Writes: put(r + "/v")})
		case 3:
			s.do(history.Op{Kind: history.Delete, Group: r, Writes: []history.Write{{Key: r + "/v", Delete: true}}})
		case 4:
			s.do(history.Op{Kind: history.Txn, Group: g, Writes: append(put(g+"/x"), put(g+"/z")...)})
		case 5:
			s.do(history.Op{Kind: history.Get, Group: g})
		case 6:
			s.do(history.Op{Kind: history.StaleGet, Group: g})
		case 7:
			s.do(history.Op{Kind: history.Grant, Lease: int64(i)})
			key := fmt.Sprintf("l/0/%d", i)
			s.do(history.Op{Kind: history.LeasePut, Lease: int64(i), Writes: put(key)})
			if n := len(s.h.Ops); rng.IntN(4) == 0 {
				s.apply([]history.Write{{Key: key, Delete: true}})
				s.do(history.Op{Kind: history.Revoke, Lease: int64(i)})
				s.h.Ops[n].Writes = []history.Write{{Key: key, Delete: true}} // as the workload notes it
			} else {
				leases = append(leases, int64(i))
			}
		case 8:
			// Its answer never came. Half of them happened.
			w := put(g + "/y")
			o := *s.do(history.Op{Kind: history.Get, Group: g})
			if i%2 == 0 {
				s.apply(w)
			}
			s.h.Ops[o.ID] = history.Op{ID: o.ID, Client: o.Client, Site: o.Site, Kind: history.Txn, Group: g, Writes: w, Call: o.Call, Outcome: history.Unknown}
		default:
			s.do(history.Op{Kind: history.Unique, Writes: put(fmt.Sprintf("u/0/%d", i))})
		}
	}
	for _, r := range []string{"r0", "r1"} {
		s.do(history.Op{Kind: history.Put, Group: r, Writes: put(r + "/v")})
		s.do(history.Op{Kind: history.Get, Group: r})
	}
	var live []history.KV
	for _, kv := range s.keys {
		live = append(live, kv)
	}
	slices.SortFunc(live, func(a, b history.KV) int { return strings.Compare(a.Key, b.Key) })
	s.h.Watches = map[string][]history.Event{}
	s.h.Final = &history.Final{
		HashRevision: s.rev, Linear: slices.Clone(live),
		Record:  &history.Record{Generation: 4, Reigns: []history.Reign{{First: 2, Last: 3, Survivor: 0xa}, {First: 4, Last: 4, Survivor: 0xb2}}},
		IDs:     map[string][]uint64{"a": {0xa}, "b": {0xb, 0xb2}},
		Claims:  []history.Claim{{Site: "a", Generation: 2, Won: true}, {Site: "b", Generation: 2}, {Site: "a", Generation: 3}, {Site: "b", Generation: 4, Won: true}},
		Returns: []history.Return{{Site: "b", ID: 0xb2}, {Site: "b", ID: 0xb3, Kept: true}, {Site: "a", ID: 0xa2}},
	}
	for _, site := range []string{"a", "b"} {
		for _, c := range s.disk {
			s.h.Watches[site] = append(s.h.Watches[site], history.Event{Rev: c.Rev, Key: c.Key, Value: c.Value, Delete: c.Delete})
		}
		s.h.Final.Members = append(s.h.Final.Members, history.Member{
			Site: site, Keys: slices.Clone(live), Revision: s.rev, Members: []string{"a a voter", "b2 b voter"}, Hash: 7, Compact: 0, Disk: slices.Clone(s.disk),
			Leases: slices.Clone(leases), DiskLeases: slices.Clone(leases),
			Replaced: map[string]int{"wal.before-b2": 2, "member.set-aside-log-diverged-20260101T000000Z": 1},
		})
	}
	return s.h
}

// verdicts are the checks that are not OK.
func verdicts(r Report) map[string]Verdict {
	m := map[string]Verdict{}
	for _, x := range r.Results {
		if x.Verdict != OK {
			m[x.Name] = x.Verdict
		}
	}
	return m
}

// A history with nothing wrong passes, on several seeds, also when some revisions are compacted.
//
// Rules: none (the harness).
func TestGood(t *testing.T) {
	for seed := range uint64(20) {
		h := good(seed)
		if r := Run(h, Options{}); !r.OK() {
			t.Fatalf("seed %d: %+v", seed, r)
		}
		// b's watch was away while everything below 100 was compacted, on both disks.
		h.Watches["b"] = slices.Concat(upTo(h.Watches["b"], 50), []history.Event{{Rev: 100, Compacted: true}}, from(h.Watches["b"], 100))
		if r := Run(h, Options{}); verdicts(r)["watch"] != Violated || len(verdicts(r)) != 1 {
			t.Errorf("seed %d, compacted although nobody compacts: %s", seed, r)
		}
		if r := Run(h, Options{Compaction: true}); verdicts(r)["watch"] != Violated {
			t.Errorf("seed %d, a watch was told of a compaction that no member has made: %s", seed, r)
		}
		unknown := *h.Final
		unknown.HashRevision = 0
		if r := Run(history.History{Ops: h.Ops, Watches: h.Watches, Final: &unknown}, Options{Compaction: true}); verdicts(r)["watch"] != NotChecked {
			t.Errorf("seed %d, a watch was told of a compaction, and nobody knows what the members made: %s", seed, r)
		}
		for i := range h.Final.Members {
			m := &h.Final.Members[i]
			m.Compact, m.DiskCompact = 100, 100
		}
		if r := Run(h, Options{Compaction: true}); !r.OK() {
			t.Errorf("seed %d, compacted: %s", seed, r)
		}
	}
}

func upTo(es []history.Event, rev int64) (out []history.Event) {
	for _, e := range es {
		if e.Rev <= rev {
			out = append(out, e)
		}
	}
	return out
}

func from(es []history.Event, rev int64) (out []history.Event) {
	for _, e := range es {
		if e.Rev >= rev {
			out = append(out, e)
		}
	}
	return out
}

// find is the n-th operation that matches.
func find(h *history.History, n int, match func(*history.Op) bool) *history.Op {
	for i := range h.Ops {
		if match(&h.Ops[i]) {
			if n == 0 {
				return &h.Ops[i]
			}
			n--
		}
	}
	panic("the history has no such operation")
}

func is(kinds ...history.Kind) func(*history.Op) bool {
	return func(o *history.Op) bool {
		return slices.Contains(kinds, o.Kind) && o.Outcome == history.OK && o.Applied
	}
}

// again makes a write once more, at the end, as everybody sees it.
func again(h *history.History, w history.Write) {
	h.Final.HashRevision++
	rev := h.Final.HashRevision
	next := func(kvs []history.KV) []history.KV {
		kvs = slices.Clone(kvs)
		for i := range kvs {
			if kv := &kvs[i]; kv.Key == w.Key {
				kv.Value, kv.Mod, kv.Version = w.Value, rev, kv.Version+1
				return kvs
			}
		}
		panic("the key is not there")
	}
	h.Final.Linear = next(h.Final.Linear)
	for i := range h.Final.Members {
		m := &h.Final.Members[i]
		m.Keys, m.Revision = next(m.Keys), rev
		kv := m.Keys[slices.IndexFunc(m.Keys, func(kv history.KV) bool { return kv.Key == w.Key })]
		m.Disk = append(m.Disk, history.Change{Rev: rev, Key: w.Key, Value: w.Value, Create: kv.Create, Version: kv.Version})
		h.Watches[m.Site] = append(h.Watches[m.Site], history.Event{Rev: rev, Key: w.Key, Value: w.Value})
	}
}

// kept is the n-th write under a lease that nobody revoked.
func kept(h *history.History, n int) history.Op {
	return *find(h, n, func(o *history.Op) bool {
		return o.Kind == history.LeasePut && !slices.ContainsFunc(h.Ops, func(p history.Op) bool { return p.Kind == history.Revoke && p.Lease == o.Lease })
	})
}

func drop[T any](s *[]T, match func(T) bool) {
	n := len(*s)
	*s = slices.DeleteFunc(slices.Clone(*s), match)
	if len(*s) == n {
		panic("nothing was dropped")
	}
}

// Each check finds each of these, and says so itself.
//
// Rules: none (the harness).
func TestBad(t *testing.T) {
	key := func(h *history.History, n int) string { return find(h, n, is(history.Unique)).Writes[0].Key }
	kvOf := func(k string) func(history.KV) bool { return func(kv history.KV) bool { return kv.Key == k } }
	type bad struct {
		check   string
		verdict Verdict
		name    string
		spoil   func(*history.History)
	}
	m := func(h *history.History, i int) *history.Member { return &h.Final.Members[i] }
	for _, b := range []bad{
		{"acknowledged", Violated, "an acknowledged write is lost at one member", func(h *history.History) { drop(&m(h, 1).Keys, kvOf(key(h, 3))) }},
		{"acknowledged", Violated, "it is lost in the linearizable read", func(h *history.History) { drop(&h.Final.Linear, kvOf(key(h, 3))) }},
		{"acknowledged", Violated, "it is lost on one disk only", func(h *history.History) {
			k := key(h, 0)
			drop(&m(h, 0).Disk, func(c history.Change) bool { return c.Key == k })
		}},
		{"acknowledged", Violated, "it is lost everywhere, as after an unsafe recovery", func(h *history.History) {
			k := key(h, 5)
			drop(&h.Final.Linear, kvOf(k))
			for i := range h.Final.Members {
				drop(&m(h, i).Keys, kvOf(k))
				drop(&m(h, i).Disk, func(c history.Change) bool { return c.Key == k })
			}
			for s, w := range h.Watches {
				drop(&w, func(e history.Event) bool { return e.Key == k })
				h.Watches[s] = w
			}
		}},
		{"acknowledged", Violated, "its value is another", func(h *history.History) {
			k := key(h, 2)
			i := slices.IndexFunc(m(h, 0).Keys, kvOf(k))
			m(h, 0).Keys[i].Value = "0.1"
		}},
		{"acknowledged", Violated, "its revision is another", func(h *history.History) {
			k := key(h, 2)
			i := slices.IndexFunc(h.Final.Linear, kvOf(k))
			h.Final.Linear[i].Mod++
		}},
		{"acknowledged", Violated, "it was applied twice", func(h *history.History) {
			i := slices.IndexFunc(h.Final.Linear, kvOf(key(h, 2)))
			h.Final.Linear[i].Version = 2
		}},
		{"acknowledged", Violated, "a register has an old value", func(h *history.History) {
			i := slices.IndexFunc(h.Final.Linear, kvOf("r0/v"))
			h.Final.Linear[i].Mod--
		}},
		{"acknowledged", Violated, "a register is gone", func(h *history.History) { drop(&h.Final.Linear, kvOf("r0/v")) }},
		{"acknowledged", Violated, "an old value of a register is missing in the history of a disk", func(h *history.History) {
			o := find(h, 1, is(history.Put, history.CAS))
			drop(&m(h, 0).Disk, func(c history.Change) bool { return c.Rev == o.Revision })
		}},
		{"acknowledged", Violated, "a delete is missing on a disk", func(h *history.History) {
			o := find(h, 0, func(o *history.Op) bool { return o.Kind == history.Delete && o.Wrote() })
			drop(&m(h, 1).Disk, func(c history.Change) bool { return c.Rev == o.Revision })
		}},
		{"acknowledged", Violated, "one key of a transaction is missing on a disk", func(h *history.History) {
			o := find(h, 0, is(history.Txn))
			drop(&m(h, 1).Disk, func(c history.Change) bool { return c.Rev == o.Revision && c.Key == o.Writes[0].Key })
		}},
		{"acknowledged", Violated, "a key that nobody wrote", func(h *history.History) {
			h.Final.Linear = append(h.Final.Linear, history.KV{Key: "u/9/9", Value: "9.9", Mod: 5, Create: 5, Version: 1})
		}},
		{"acknowledged", Violated, "a write that was refused is there", func(h *history.History) {
			find(h, 4, is(history.Unique)).Outcome = history.Failed
		}},
		{"acknowledged", Violated, "a write whose condition did not hold is there", func(h *history.History) {
			find(h, 1, is(history.CAS)).Applied = false
		}},
		{"acknowledged", Violated, "a lease is unknown", func(h *history.History) {
			o := find(h, 1, is(history.LeasePut))
			o.Outcome, o.Error = history.Failed, "etcdserver: requested lease not found"
		}},
		{"acknowledged", Violated, "a key outlives its revoked lease", func(h *history.History) {
			o := kept(h, 1)
			h.Ops = append(h.Ops, history.Op{Kind: history.Revoke, Lease: o.Lease, Outcome: history.OK, Revision: h.Final.HashRevision + 1,
				Call: 1 << 40, Return: 1<<40 + 1, Writes: []history.Write{{Key: o.Writes[0].Key, Delete: true}}})
		}},
		{"acknowledged", Violated, "a lease is known by none of the places", func(h *history.History) {
			id := kept(h, 1).Lease
			for i := range h.Final.Members {
				drop(&m(h, i).Leases, func(x int64) bool { return x == id })
				drop(&m(h, i).DiskLeases, func(x int64) bool { return x == id })
			}
		}},
		{"acknowledged", Violated, "a lease is missing on one disk", func(h *history.History) {
			id := kept(h, 1).Lease
			drop(&m(h, 1).DiskLeases, func(x int64) bool { return x == id })
		}},
		{"acknowledged", Violated, "a revoked lease is known", func(h *history.History) {
			m(h, 0).Leases = append(m(h, 0).Leases, find(h, 0, is(history.Revoke)).Lease)
		}},
		{"acknowledged", Violated, "a revocation found no lease, and its key is there", func(h *history.History) {
			o := kept(h, 1)
			h.Ops = append(h.Ops, history.Op{Kind: history.Revoke, Lease: o.Lease, Outcome: history.Unknown, Error: "etcdserver: requested lease not found",
				Call: 1 << 40, Return: 1<<40 + 1, Writes: []history.Write{{Key: o.Writes[0].Key, Delete: true}}})
		}},
		{"acknowledged", Violated, "a revocation was refused, and the key is gone", func(h *history.History) {
			o := kept(h, 1)
			h.Ops = append(h.Ops, history.Op{Kind: history.Revoke, Lease: o.Lease, Outcome: history.Failed, Error: "permission denied",
				Call: 1 << 40, Return: 1<<40 + 1, Writes: []history.Write{{Key: o.Writes[0].Key, Delete: true}}})
			drop(&h.Final.Linear, kvOf(o.Writes[0].Key))
		}},
		{"acknowledged", NotChecked, "nobody looked which leases there are", func(h *history.History) { m(h, 1).Leases = nil }},
		{"acknowledged", NotChecked, "nobody looked", func(h *history.History) { h.Final = nil }},
		{"acknowledged", NotChecked, "a disk was not read", func(h *history.History) { m(h, 1).Disk = nil }},
		{"acknowledged", NotChecked, "only one member was looked at", func(h *history.History) { h.Final.Members = h.Final.Members[:1] }},
		{"acknowledged", NotChecked, "nothing was acknowledged", func(h *history.History) {
			for i := range h.Ops {
				h.Ops[i].Outcome = history.Unknown
			}
		}},

		{"linearizable", Violated, "a read shows a value that was replaced before", func(h *history.History) {
			old := find(h, 0, is(history.Put))
			for i := len(h.Ops) - 1; ; i-- {
				if o := &h.Ops[i]; o.Kind == history.Get && o.Group == old.Group {
					o.Seen[0].Value = old.Writes[0].Value
					return
				}
			}
		}},
		{"linearizable", Violated, "a read misses the last write", func(h *history.History) {
			o := &h.Ops[len(h.Ops)-1]
			o.Call, o.Return = o.Call+100, o.Return+100 // after it
			o.Seen[0] = history.KV{Key: o.Seen[0].Key}
		}},
		{"linearizable", Violated, "a compare-and-swap won from an old value", func(h *history.History) {
			find(h, 2, is(history.CAS)).If = &history.Cond{Key: find(h, 2, is(history.CAS)).Writes[0].Key, Value: "0.0"}
		}},
		{"linearizable", Violated, "a compare-and-swap that won had lost", func(h *history.History) {
			find(h, 1, is(history.CAS)).Applied = false
		}},
		{"linearizable", Violated, "a transaction is seen by half", func(h *history.History) {
			o := find(h, 0, func(o *history.Op) bool {
				return o.Kind == history.Get && o.Group[0] == 't' && o.Seen[0].Present() && o.Seen[0].Mod == o.Seen[2].Mod
			})
			o.Seen[2] = history.KV{Key: o.Seen[2].Key}
		}},
		{"linearizable", Violated, "a value is seen before it was written", func(h *history.History) {
			u := find(h, 0, func(o *history.Op) bool { return o.Kind == history.Put })
			u.Call, u.Return = 1<<40, 1<<40+1
		}},
		{"linearizable", Violated, "a refused write is seen", func(h *history.History) { find(h, 0, is(history.Put)).Outcome = history.Failed }},
		{"linearizable", Violated, "a write without an answer is seen, and then not any more", func(h *history.History) {
			o := find(h, 0, func(o *history.Op) bool { return o.Kind == history.Txn && o.Outcome == history.Unknown && o.ID%2 == 0 })
			n := 0
			for i := o.ID + 1; i < len(h.Ops); i++ {
				if p := &h.Ops[i]; p.Group == o.Group && p.Outcome == history.OK && p.Linearizable() {
					p.Seen[1] = history.KV{Key: p.Seen[1].Key}
					if n%2 == 0 {
						p.Seen[1] = history.KV{Key: p.Seen[1].Key, Value: o.Writes[0].Value, Mod: 1}
					}
					n++
				}
			}
		}},
		{"linearizable", NotChecked, "there is no operation on a group", func(h *history.History) {
			for i := range h.Ops {
				h.Ops[i].Group = ""
			}
		}},

		{"reads", Violated, "a serializable read shows a value that was never there at its revision", func(h *history.History) {
			o := find(h, 9, is(history.StaleGet))
			o.Seen[1] = history.KV{Key: o.Seen[1].Key, Value: "0.0", Mod: o.Revision, Create: o.Revision, Version: 1}
		}},
		{"reads", Violated, "a serializable read misses a key that was there at its revision", func(h *history.History) {
			o := find(h, 9, func(o *history.Op) bool { return o.Kind == history.StaleGet && o.Seen[0].Present() })
			o.Seen[0] = history.KV{Key: o.Seen[0].Key}
		}},
		{"reads", Violated, "a read shows the right value with another version", func(h *history.History) {
			find(h, 5, func(o *history.Op) bool { return o.Kind == history.Get && o.Seen[0].Present() }).Seen[0].Version++
		}},
		{"reads", Violated, "a member had a revision that is nowhere in the end", func(h *history.History) {
			// It answered with writes of unknown outcome that were lost.
			o := &h.Ops[len(h.Ops)-1]
			o.Revision += 5
		}},
		{"acknowledged", Violated, "a write without an answer happened twice, everywhere", func(h *history.History) {
			again(h, find(h, 0, func(o *history.Op) bool {
				return o.Outcome == history.Unknown && slices.ContainsFunc(m(h, 0).Disk, func(c history.Change) bool { return c.Value == o.Writes[0].Value })
			}).Writes[0])
		}},
		{"revisions", Violated, "a write without an answer is from before it was asked for", func(h *history.History) {
			c := m(h, 0).Disk[40]
			h.Ops = slices.Clone(h.Ops)
			i := slices.IndexFunc(h.Ops, func(o history.Op) bool { return o.Wrote() && o.Revision == c.Rev })
			if i < 0 {
				panic("nobody knows who wrote that")
			}
			o := &h.Ops[i]
			o.Outcome, o.Applied, o.Seen, o.Revision, o.Return = history.Unknown, false, nil, 0, 0
			o.Call = 1 << 40
		}},
		{"reads", NotChecked, "no disk was read", func(h *history.History) { m(h, 0).Disk, m(h, 1).Disk = nil, nil }},

		{"revisions", Violated, "two writes share a revision", func(h *history.History) {
			find(h, 3, is(history.Unique)).Revision = find(h, 4, is(history.Unique)).Revision
		}},
		{"revisions", Violated, "a later write has a lower revision", func(h *history.History) {
			find(h, 9, is(history.Unique)).Revision = 2
		}},
		{"revisions", Violated, "a linearizable read has a revision from before it", func(h *history.History) {
			o := find(h, 9, is(history.Get))
			o.Revision -= 20
		}},
		{"revisions", Violated, "a member goes back", func(h *history.History) {
			o := find(h, 9, is(history.StaleGet))
			o.Revision -= 30
		}},
		{"revisions", Violated, "an acknowledgement without a revision", func(h *history.History) { find(h, 1, is(history.Unique)).Revision = 0 }},
		{"revisions", NotChecked, "there is no operation", func(h *history.History) { h.Ops = nil }},

		{"watch", Violated, "an event is missing", func(h *history.History) {
			h.Watches["a"] = slices.Delete(slices.Clone(h.Watches["a"]), 40, 41)
		}},
		{"watch", Violated, "the same event is missing in both", func(h *history.History) {
			rev := find(h, 5, is(history.Unique)).Revision
			for s, w := range h.Watches {
				drop(&w, func(e history.Event) bool { return e.Rev == rev })
				h.Watches[s] = w
			}
		}},
		{"watch", Violated, "the first event is missing", func(h *history.History) { h.Watches["a"] = h.Watches["a"][1:] }},
		{"watch", Violated, "the last event is missing", func(h *history.History) { h.Watches["b"] = h.Watches["b"][:len(h.Watches["b"])-1] }},
		{"watch", Violated, "two events are swapped", func(h *history.History) {
			w := h.Watches["b"]
			w[30], w[31] = w[31], w[30]
		}},
		{"watch", Violated, "an event comes twice", func(h *history.History) {
			h.Watches["b"] = slices.Insert(h.Watches["b"], 31, h.Watches["b"][30])
		}},
		{"watch", Violated, "one shows another value", func(h *history.History) { h.Watches["b"][30].Value = "0.1" }},
		{"watch", Violated, "half of a transaction is missing", func(h *history.History) {
			o := find(h, 0, is(history.Txn))
			w := h.Watches["a"]
			drop(&w, func(e history.Event) bool { return e.Rev == o.Revision && e.Key == o.Writes[1].Key })
			h.Watches["a"] = w
		}},
		{"watch", Violated, "one goes on beyond what is on disk, with something that is not there", func(h *history.History) {
			h.Watches["a"] = slices.Insert(h.Watches["a"], 31, history.Event{Rev: h.Watches["a"][30].Rev, Key: "u/x", Value: "x"})
		}},
		{"watch", Violated, "both show what is not on disk", func(h *history.History) {
			for s, w := range h.Watches {
				h.Watches[s] = slices.Insert(slices.Clone(w), 31, history.Event{Rev: w[30].Rev, Key: "u/x", Value: "x"})
			}
		}},
		{"watch", Violated, "one shows more at its end than there is", func(h *history.History) {
			w := h.Watches["a"]
			h.Watches["a"] = append(w, history.Event{Rev: w[len(w)-1].Rev + 1, Key: "u/x", Value: "x"})
		}},
		{"watch", Violated, "both show more at their end than there is", func(h *history.History) {
			for s, w := range h.Watches {
				h.Watches[s] = append(w, history.Event{Rev: w[len(w)-1].Rev + 1, Key: "u/x", Value: "x"})
			}
		}},
		{"watch", NotChecked, "there was one watch only", func(h *history.History) { delete(h.Watches, "b") }},
		{"watch", Violated, "a watch that received nothing", func(h *history.History) { h.Watches["b"] = nil }},

		{"equal", Violated, "the hashes differ", func(h *history.History) { m(h, 1).Hash++ }},
		{"equal", Violated, "a key is at one member only", func(h *history.History) { drop(&m(h, 1).Keys, kvOf(key(h, 1))) }},
		{"equal", Violated, "an old revision on disk differs", func(h *history.History) { m(h, 0).Disk[20].Value = "0.1" }},
		{"equal", Violated, "an old revision is on one disk only", func(h *history.History) { m(h, 0).Disk = slices.Delete(m(h, 0).Disk, 20, 21) }},
		{"equal", Violated, "a key is on both disks and at neither over the API", func(h *history.History) {
			k := func(kv history.KV) bool { return kv.Key == "r0/v" }
			drop(&m(h, 0).Keys, k)
			drop(&m(h, 1).Keys, k)
		}},
		{"equal", Violated, "the linearizable read has a key more, of nobody's", func(h *history.History) {
			h.Final.Linear = append(h.Final.Linear, history.KV{Key: "other", Value: "x", Mod: 5, Create: 5, Version: 1})
		}},
		{"equal", Violated, "a learner is left", func(h *history.History) {
			for i := range h.Final.Members {
				m(h, i).Members = append(m(h, i).Members, "c c learner")
			}
		}},
		{"equal", Violated, "there is one voter", func(h *history.History) {
			for i := range h.Final.Members {
				m(h, i).Members = m(h, i).Members[:1]
			}
		}},
		{"equal", Violated, "the lists differ", func(h *history.History) { m(h, 0).Members[0] = "c a voter" }},
		{"equal", NotChecked, "the hashes are of different compactions", func(h *history.History) { m(h, 0).Compact = 5 }},
		{"equal", NotChecked, "there is no hash", func(h *history.History) { h.Final.HashRevision = 0 }},
		{"equal", NotChecked, "one member was not looked at", func(h *history.History) { h.Final.Members = h.Final.Members[:1] }},

		{"record", Violated, "a claim that was won is not in the record", func(h *history.History) {
			h.Final.Record.Generation, h.Final.Record.Reigns = 3, h.Final.Record.Reigns[:1]
		}},
		{"record", Violated, "it is in the record for the other one", func(h *history.History) { h.Final.Record.Reigns[1].Survivor = 0xa }},
		{"record", Violated, "for nobody of the pair", func(h *history.History) { h.Final.Record.Reigns[1].Survivor = 0xc }},
		{"record", Violated, "a generation that nobody claimed", func(h *history.History) {
			h.Final.Record.Generation = 5
			h.Final.Record.Reigns[1].Last = 5
		}},
		{"record", Violated, "a generation without a history", func(h *history.History) { h.Final.Record.Generation = 5 }},
		{"record", Violated, "a hole in the history", func(h *history.History) { h.Final.Record.Reigns[0].Last = 2 }},
		{"record", Violated, "both won", func(h *history.History) {
			h.Final.Claims = append(h.Final.Claims, history.Claim{Site: "a", Generation: 4, Won: true})
		}},
		{"record", NotChecked, "it was not read", func(h *history.History) { h.Final.Record = nil }},
		{"record", NotChecked, "the traces show no IDs", func(h *history.History) { h.Final.IDs = nil }},

		{"replaced", Violated, "the old log is gone", func(h *history.History) { delete(m(h, 1).Replaced, "wal.before-b2") }},
		{"replaced", Violated, "the old log has no segment", func(h *history.History) { m(h, 1).Replaced["wal.before-b2"] = 0 }},
		{"replaced", Violated, "the old directory is gone", func(h *history.History) {
			m(h, 0).Replaced = map[string]int{"wal.before-b2": 2}
		}},
		{"replaced", Violated, "the old directory has no log", func(h *history.History) {
			m(h, 0).Replaced = map[string]int{"member.set-aside-log-diverged-20260101T000000Z": 0}
		}},
		{"replaced", Violated, "somebody writes to it", func(h *history.History) { m(h, 0).Touched = []string{"snap/db"} }},
		{"replaced", NotChecked, "nobody looked", func(h *history.History) { m(h, 1).Replaced = nil }},
	} {
		t.Run(b.check+"/"+b.name, func(t *testing.T) {
			for seed := range uint64(3) {
				h := good(seed)
				b.spoil(&h)
				r := Run(h, Options{})
				if got := verdicts(r)[b.check]; got != b.verdict || r.OK() {
					t.Errorf("seed %d: the verdict is %q, want %q; all: %s", seed, got, b.verdict, r)
				}
			}
		})
	}
}

// A condition on what only a serializable read has shown is a condition on a write of unknown outcome that happened.
//
// Rules: none (the harness).
func TestConditionOnStale(t *testing.T) {
	put := func(v string) []history.Write { return []history.Write{{Key: "r0/v", Value: v}} }
	see := func(v string) []history.KV { return []history.KV{{Key: "r0/v", Value: v, Mod: 1}} }
	ops := []history.Op{
		{Kind: history.Put, Group: "r0", Outcome: history.Unknown, Call: 1, Writes: put("one")},
		{Kind: history.StaleGet, Group: "r0", Outcome: history.OK, Call: 10, Return: 11, Seen: see("one")},
		{Kind: history.CAS, Group: "r0", Outcome: history.Unknown, Call: 20, If: &history.Cond{Key: "r0/v", Value: "one"}, Writes: put("two")},
		{Kind: history.Get, Group: "r0", Outcome: history.OK, Applied: true, Call: 30, Return: 31, Seen: see("two")},
	}
	for i := range ops {
		ops[i].ID, ops[i].Client = i, i
	}
	if v := verdicts(Run(history.History{Ops: ops}, Options{}))["linearizable"]; v != "" {
		t.Errorf("a history that is right: %s", v)
	}
	ops[2].If.Value = "three" // which nobody wrote
	if v := verdicts(Run(history.History{Ops: ops}, Options{}))["linearizable"]; v != Violated {
		t.Errorf("a condition that never held: %q", v)
	}
	// The same after a delete of unknown outcome.
	ops[0] = history.Op{Client: 0, Kind: history.Put, Group: "r0", Outcome: history.OK, Applied: true, Call: 1, Return: 2, Writes: put("one"), Seen: []history.KV{{Key: "r0/v"}}}
	ops[1] = history.Op{ID: 1, Client: 1, Kind: history.Delete, Group: "r0", Outcome: history.Unknown, Call: 10, Writes: []history.Write{{Key: "r0/v", Delete: true}}}
	ops[2].If = &history.Cond{Key: "r0/v", Absent: true}
	if v := verdicts(Run(history.History{Ops: ops}, Options{}))["linearizable"]; v != "" {
		t.Errorf("a history that is right, with a delete: %s", v)
	}
}

// A group on which porcupine takes too long is not OK.
//
// Rules: none (the harness).
func TestTimeout(t *testing.T) {
	h := good(1)
	var ops []history.Op
	for i := range 40 {
		v := fmt.Sprint("v", i)
		ops = append(ops, history.Op{ID: i, Kind: history.Txn, Group: "t0", Outcome: history.OK, Applied: true, Call: 1, Return: 100, Revision: int64(i + 2),
			Writes: []history.Write{{Key: "t0/x", Value: v}}})
	}
	ops = append(ops, history.Op{ID: 40, Kind: history.Get, Group: "t0", Outcome: history.OK, Call: 200, Return: 201, Seen: []history.KV{{Key: "t0/x", Value: "nobody's", Mod: 3}}})
	h.Ops = ops
	if got := verdicts(Run(h, Options{Timeout: 50 * time.Millisecond}))["linearizable"]; got != NotChecked {
		t.Errorf("the verdict is %q", got)
	}
}

// Stale reads are counted, and their age is the time since the first write that they miss.
//
// Rules: none (the harness).
func TestStale(t *testing.T) {
	w := func(rev, call, ret int64) history.Op {
		return history.Op{Kind: history.Unique, Outcome: history.OK, Applied: true, Revision: rev, Call: call, Return: ret, Writes: []history.Write{{Key: "u", Value: "v"}}}
	}
	g := func(rev, call int64) history.Op {
		return history.Op{Kind: history.StaleGet, Site: "b", Outcome: history.OK, Applied: true, Revision: rev, Call: call, Return: call + 1}
	}
	h := history.History{Ops: []history.Op{w(2, 1, 5), w(3, 6, 9), g(3, 20), g(2, 8), g(2, 20), g(1, 20)}}
	if got, want := stale(h)["b"], (Stale{Reads: 4, Stale: 2, Oldest: 15}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// What is saved is what is loaded, and judged alike.
//
// Rules: none (the harness).
func TestSaved(t *testing.T) {
	h := good(3)
	dir := t.TempDir()
	if err := h.Save(dir); err != nil {
		t.Fatal(err)
	}
	g, err := history.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := fmt.Sprintf("%+v", Run(h, Options{})), fmt.Sprintf("%+v", Run(g, Options{})); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}
