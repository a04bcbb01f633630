package lostwrites

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// history makes random requests over few keys, so that much is repeated, refused, overwritten and deleted again.
type history struct {
	p      *pair
	rnd    *rand.Rand
	leases []clientv3.LeaseID
	mods   map[string]int64 // some mod revisions that keys had
}

func (h *history) key() string { return fmt.Sprintf("k/%d", h.rnd.IntN(8)) }

func (h *history) put() clientv3.Op {
	value := strings.Repeat(string(rune('a'+h.rnd.IntN(3))), h.rnd.IntN(4)) // often the same, often empty
	if h.rnd.IntN(20) == 0 {
		value = strings.Repeat(value, 5000)
	}
	var opts []clientv3.OpOption
	switch h.rnd.IntN(8) {
	case 0:
		opts, value = append(opts, clientv3.WithIgnoreValue()), ""
	case 1:
		opts = append(opts, clientv3.WithIgnoreLease())
	case 2:
		if len(h.leases) > 0 {
			opts = append(opts, clientv3.WithLease(h.leases[h.rnd.IntN(len(h.leases))]))
		}
	}
	return clientv3.OpPut(h.key(), value, opts...)
}

func (h *history) remove() clientv3.Op {
	switch h.rnd.IntN(5) {
	case 0:
		return clientv3.OpDelete(h.key(), clientv3.WithRange(h.key()))
	case 1:
		return clientv3.OpDelete(h.key(), clientv3.WithFromKey())
	}
	return clientv3.OpDelete(h.key())
}

func (h *history) compare() clientv3.Cmp {
	k := h.key()
	op := []string{"=", "!=", ">", "<"}[h.rnd.IntN(4)]
	var c clientv3.Cmp
	switch h.rnd.IntN(5) {
	case 0:
		c = clientv3.Compare(clientv3.Value(k), op, "aa")
	case 1:
		c = clientv3.Compare(clientv3.Version(k), op, h.rnd.IntN(4))
	case 2:
		c = clientv3.Compare(clientv3.CreateRevision(k), op, h.rnd.IntN(40))
	case 3:
		// A client names a revision that it was told, or guesses in other ways.
		n := int64(h.rnd.IntN(40))
		if op == "=" {
			n = h.mods[k]
		}
		c = clientv3.Compare(clientv3.ModRevision(k), op, n)
	default:
		c = clientv3.Compare(clientv3.LeaseValue(k), op, 0)
	}
	if h.rnd.IntN(4) == 0 {
		c = c.WithRange("k/9")
	}
	return c
}

// txn is a transaction whose branches write disjoint keys, as etcd asks.
func (h *history) txn(depth int) clientv3.Op {
	ops := func() []clientv3.Op {
		var out []clientv3.Op
		used := map[string]bool{}
		for range h.rnd.IntN(4) {
			k := h.key()
			if used[k] {
				continue
			}
			used[k] = true
			switch h.rnd.IntN(4) {
			case 0:
				out = append(out, clientv3.OpDelete(k))
			case 1:
				out = append(out, clientv3.OpGet(k, clientv3.WithRev(int64(h.rnd.IntN(3)))))
			default:
				out = append(out, clientv3.OpPut(k, strings.Repeat("t", h.rnd.IntN(3))))
			}
		}
		if depth > 0 && len(out) == 0 {
			out = append(out, h.txn(depth-1))
		}
		return out
	}
	var cmps []clientv3.Cmp
	for range h.rnd.IntN(3) {
		cmps = append(cmps, h.compare())
	}
	return clientv3.OpTxn(cmps, ops(), ops())
}

// run makes n requests. What etcd refuses is part of the history.
func (h *history) run(c *clientv3.Client, n int) {
	h.p.t.Helper()
	ctx := h.p.within(patience)
	for range n {
		k := h.key()
		if r, err := c.Get(ctx, k); err == nil && len(r.Kvs) == 1 {
			h.mods[k] = r.Kvs[0].ModRevision
		}
		var err error
		switch x := h.rnd.IntN(20); {
		case x < 8:
			_, err = c.Do(ctx, h.put())
		case x < 11:
			_, err = c.Do(ctx, h.remove())
		case x < 17:
			_, err = c.Do(ctx, h.txn(2))
		case x < 18:
			var g *clientv3.LeaseGrantResponse
			if g, err = c.Grant(ctx, 3600); err == nil {
				h.leases = append(h.leases, g.ID)
			}
		case x < 19 && len(h.leases) > 0:
			_, err = c.Revoke(ctx, h.leases[h.rnd.IntN(len(h.leases))]) // possibly again
		}
		if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			h.p.t.Fatal(err)
		}
	}
}

// Random histories of many requests that are repeated, refused and undone, over several lives of the member, compacted and
// defragmented in between, read with the database as it was killed, and with one from before: what is listed was made, and what was made is listed, or, where
// it was compacted, said to be unknown. Without a compaction the listing is exact.
//
// Rules: P18.
func TestRandomHistories(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		p := startPair(t, minor)
		h := &history{p: p, rnd: rand.New(rand.NewPCG(seed, 1)), mods: map[string]int64{}}
		h.run(p.client("a"), 60)
		p.split()
		db := filepath.Join(p.Site("a").DataDir, "member", "snap", "db")
		var want []made
		next, fork, compacted := int64(0), int64(0), false
		for round := range 5 {
			old, err := os.ReadFile(db)
			p.must(err)
			p.lead("a")
			c := p.client("a")
			if next == 0 {
				r, err := c.Get(p.within(patience), "x")
				p.must(err)
				fork, next = r.Header.Revision, r.Header.Revision+1
			}
			note := func() {
				more, last := p.watch(c, next)
				want, next = append(want, more...), last+1
			}
			h.run(c, 120)
			note()
			if round >= 2 {
				_, err := c.Compact(p.within(patience), next-1-int64(h.rnd.IntN(int(min(40, next-2)))), clientv3.WithCompactPhysical())
				compacted = compacted || err == nil
				_, err = c.Defragment(p.within(patience), p.Site("a").ClientURL)
				p.must(err)
				h.run(c, 60)
				note()
			}
			time.Sleep(time.Duration(h.rnd.IntN(200)) * time.Millisecond)
			p.kill("a")
			check := func(what string) {
				t.Helper()
				l := p.open(p.atFork())
				if l.HighRevision != l.LowRevision && !compacted {
					t.Logf("round %d, %s: the fork is at revisions %d to %d, really %d: %q", round, what, l.LowRevision, l.HighRevision, fork, l.Notes)
				}
				if l.LowRevision > fork || l.HighRevision < fork {
					t.Fatalf("round %d, %s: the fork is at revisions %d to %d, really %d", round, what, l.LowRevision, l.HighRevision, fork)
				}
				for len(l.Changes) > 0 && l.Changes[0].Perhaps && l.Changes[0].Revision <= fork {
					l.Changes = l.Changes[1:]
				}
				if compacted {
					covers(t, l, want)
				} else {
					same(t, listed(t, l), want)
				}
			}
			check("as it was killed")
			now, err := os.ReadFile(db)
			p.must(err)
			p.must(os.WriteFile(db, old, 0o600))
			check("with the database from before")
			p.must(os.WriteFile(db, now, 0o600))
		}
		t.Logf("%d changes", len(want))
	})
}
