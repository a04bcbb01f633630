package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/walsurgery"
)

// The newest applied value counts, whatever it is, and its entry's term.
//
// Rules: P4, P14.
func TestTokenOfRealPair(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast)
		ctx := p.within(2 * patience)
		step := func(name string, do func(c *clientv3.Client) error, check func(failover.Data) bool) {
			t.Helper()
			p.must(do(p.client("b")))
			// What is committed is in the database of both: the leader's at its end,
			// the follower's once it has applied.
			p.must(p.Site("a").WaitServing(ctx))
			p.must(p.Site("b").WaitServing(ctx))
			p.stop()
			for _, site := range lab.Sites {
				d, err := p.read(site, 1)
				if d.Tail != (failover.Tail{}) || d.Asked != 1 || !check(d) || (err != nil) != d.Token.Bad {
					t.Errorf("%s, %s: %+v, %v", name, site, d, err)
				}
			}
			p.start()
		}
		put := func(key, value string, opts ...clientv3.OpOption) func(*clientv3.Client) error {
			return func(c *clientv3.Client) error { _, err := c.Put(ctx, key, value, opts...); return err }
		}
		absent := func(d failover.Data) bool { return d.Token == failover.Token{} }
		bad := func(d failover.Data) bool { return d.Token.Present && d.Token.Bad }

		step("neighbouring keys only", func(c *clientv3.Client) error {
			return errors.Join(put(TokenKey+"x", "x")(c), put("/twok/pai", "x")(c), put("/twok", p.encode(p.token(1)))(c))
		}, absent)

		tok := p.token(1)
		value := p.encode(tok)
		step("a token below other writes", func(c *clientv3.Client) error {
			err := put(TokenKey, value)(c)
			for range 20 {
				err = errors.Join(err, put("k", "v")(c))
			}
			return err
		}, func(d failover.Data) bool { return d.Token == withEntry(tok) })

		// The restart made a new term. The same value again: which entry is its own?
		step("the same value in another term", put(TokenKey, value), func(d failover.Data) bool {
			tok.EntryTerm = d.Token.EntryTerm
			return d.Token == tok && d.Token.EntryTerm > tok.Term
		})

		early := p.token(2)
		early.Term += 100
		step("a term that it was not written in", put(TokenKey, p.encode(early)), func(d failover.Data) bool {
			return d.Token.Generation == 2 && d.Token.Term == early.Term && d.Token.EntryTerm < early.Term && d.Token.EntryTerm != 0
		})

		tok = p.token(3)
		var lease *clientv3.LeaseGrantResponse
		step("a lease", func(c *clientv3.Client) (err error) {
			if lease, err = c.Grant(ctx, 3600); err != nil {
				return err
			}
			return put(TokenKey, p.encode(tok), clientv3.WithLease(lease.ID))(c)
		}, bad)
		step("a lease that is revoked", func(c *clientv3.Client) error { _, err := c.Revoke(ctx, lease.ID); return err }, absent)
		step("another value", put(TokenKey, "mine"), bad)
		step("a tombstone", func(c *clientv3.Client) error { _, err := c.Delete(ctx, "/twok/", clientv3.WithPrefix()); return err }, absent)

		tok = p.token(4)
		var rev int64
		step("a token, compacted up to it", func(c *clientv3.Client) error {
			r, err := c.Put(ctx, TokenKey, p.encode(tok))
			if err != nil {
				return err
			}
			rev = r.Header.Revision
			_, err = c.Compact(ctx, rev, clientv3.WithCompactPhysical())
			return err
		}, func(d failover.Data) bool { return d.Token == withEntry(tok) })
		// The newest revision in the database is now below the true one, if the tombstone is compacted away.
		step("a tombstone above it, compacted", func(c *clientv3.Client) error {
			r, err := c.Put(ctx, "gone", "x")
			if err == nil {
				_, err = c.Delete(ctx, "gone")
			}
			if err == nil {
				_, err = c.Compact(ctx, r.Header.Revision+1, clientv3.WithCompactPhysical())
			}
			return err
		}, func(d failover.Data) bool { return d.Token == withEntry(tok) })
	})
}

// SIGKILL at random moments under load: what was acknowledged is in the token or in the
// tail of both members, and the token's entry has the term that it names.
//
// Rules: P4, P6.
func TestKilledUnderLoad(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast)
		generation := uint64(0)
		for round := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			var acked atomic.Uint64
			acked.Store(generation)
			var wg sync.WaitGroup
			tok := p.token(0)
			for i := range 3 {
				c := p.client(lab.Sites[i%2])
				wg.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						c.Put(ctx, fmt.Sprintf("k%d-%d", i, n%50), "value")
					}
				})
			}
			c := p.client(p.leader())
			wg.Go(func() {
				for g := generation + 1; ctx.Err() == nil; g++ {
					tok.Generation = g
					b, err := EncodeToken(tok, fmt.Sprintf("r%d-%d", round, g))
					if err != nil {
						t.Error(err)
						return
					}
					try, cancel := context.WithTimeout(ctx, 5*time.Second)
					_, err = c.Put(try, TokenKey, string(b))
					cancel()
					if err != nil {
						return
					}
					acked.Store(g)
				}
			})
			time.Sleep(time.Duration(100+rand.IntN(500)) * time.Millisecond)
			p.kill()
			cancel()
			wg.Wait()
			for _, site := range lab.Sites {
				d, err := p.read(site, 0)
				held := max(d.Token.Generation, d.Tail.Generation)
				if err != nil || held < acked.Load() || held > acked.Load()+1 || d.Tail.Bad || d.Tail.Writes && d.Tail.Generation <= d.Token.Generation {
					t.Errorf("round %d, %s: acknowledged %d: token %+v, tail %+v, %v", round, site, acked.Load(), d.Token, d.Tail, err)
				}
				if d.Token.Present && (d.Token.EntryTerm != d.Token.Term || !d.Token.Names(p.ids["a"], p.ids["b"])) {
					t.Errorf("round %d, %s: token %+v", round, site, d.Token)
				}
				if d.Confs.Applied.Count != 2 || d.Confs.Other != p.other(site) || d.Confs.Others != 1 {
					t.Errorf("round %d, %s: %+v", round, site, d.Confs)
				}
				t.Logf("round %d, %s: %d acknowledged, token %d, tail %d, applied %d, commit %d, last %s",
					round, site, acked.Load(), d.Token.Generation, d.Tail.Generation, d.Applied, d.Commit, fmt.Sprint(d.Last))
				generation = max(generation, held)
			}
			p.start()
		}
	})
}

// An agent that starts learns who it is and who the others are, from a directory
// whose etcd is down; from a running one its identity alone. Nothing changes on disk.
//
// Rules: P12, P20.
func TestPeek(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast)
		dir := p.Site("a").DataDir
		tok := p.token(5)
		p.put(p.encode(tok))
		k, err := PeekDir(dir, "")
		if !errors.Is(err, ErrHeld) || k.Member != p.ids["a"] || k.Cluster != tok.Cluster || k.TokenRead || k.Members != nil {
			t.Fatalf("beside a running etcd: %+v, %v", k, err)
		}
		p.stop()
		before := p.treeOf(dir)
		k, err = PeekDir(dir, filepath.Join(dir, "member", "wal"))
		if err != nil || k.Member != p.ids["a"] || k.Cluster != tok.Cluster || !k.TokenRead || k.Token != tok || k.Name != "a" || k.Applied == 0 || len(k.Members) != 2 || k.Removed != nil {
			t.Fatalf("etcd down: %+v, %v", k, err)
		}
		for _, m := range k.Members {
			s := p.Site(m.Name)
			if m.ID != p.ids[m.Name] || m.Learner || !slices.Equal(m.PeerURLs, []string{s.AdvertisedPeerURL}) || !slices.Equal(m.ClientURLs, []string{s.AdvertisedClientURL}) {
				t.Errorf("member %+v", m)
			}
		}
		if after := p.treeOf(dir); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		if l, err := TryLock(dir); err != nil || l.Release() != nil {
			t.Errorf("the lock was kept: %v", err)
		}

		if k, err := PeekDir(t.TempDir(), ""); !errors.Is(err, walsurgery.ErrNoWAL) || k.Member != 0 {
			t.Errorf("empty directory: %+v, %v", k, err)
		}
		p.must(os.Rename(DBPath(dir), DBPath(dir)+".away"))
		if k, err := PeekDir(dir, ""); !errors.Is(err, fs.ErrNotExist) || k.Member != p.ids["a"] {
			t.Errorf("no database: %+v, %v", k, err)
		}
		p.must(os.WriteFile(DBPath(dir), bytes.Repeat([]byte("x"), 100_000), 0o600))
		if k, err := PeekDir(dir, ""); !errors.Is(err, ErrDatabase) || k.Member != p.ids["a"] || k.TokenRead {
			t.Errorf("another file as the database: %+v, %v", k, err)
		}
	})
}

// treeOf lists files, sizes and times of change.
func (p *pair) treeOf(dir string) string {
	var b bytes.Buffer
	p.must(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := e.Info()
		if err == nil {
			fmt.Fprintln(&b, path, i.Size(), i.ModTime(), i.Mode())
		}
		return err
	}))
	return b.String()
}
