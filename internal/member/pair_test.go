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
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/walsurgery"
)

const patience = 60 * time.Second

// pair is a real pair of etcd members without agents.
type pair struct {
	*lab.Cluster
	t      testing.TB
	ids    map[string]uint64
	nonces int
}

func eachMinor(t *testing.T, fn func(t *testing.T, minor string)) {
	for _, minor := range lab.Minors {
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			fn(t, minor)
		})
	}
}

func startPair(t testing.TB, minor string, timing lab.Timing, flags ...string) *pair {
	t.Helper()
	bin, err := lab.Etcd(t.Context(), minor, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := lab.NewCluster(lab.Config{Dir: t.TempDir(), Etcd: bin, Mode: lab.Plain, Timing: timing, EtcdFlags: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, name := range lab.Sites {
			if b, err := os.ReadFile(c.Site(name).EtcdLog); err == nil && t.Failed() {
				t.Logf("end of etcd's log at %s:\n%s", name, b[max(0, len(b)-4000):])
			}
		}
	})
	p := &pair{Cluster: c, t: t, ids: map[string]uint64{}}
	p.start()
	for _, name := range lab.Sites {
		st, err := c.Site(name).Status(p.within(patience))
		if err != nil {
			t.Fatal(err)
		}
		p.ids[name] = st.Header.MemberId
	}
	return p
}

func (p *pair) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(p.t.Context(), d)
	p.t.Cleanup(cancel)
	return ctx
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) start() {
	p.t.Helper()
	for _, name := range lab.Sites {
		p.must(p.Site(name).StartEtcd())
	}
	p.must(p.WaitServing(p.within(patience)))
}

func (p *pair) leader() string {
	p.t.Helper()
	l, err := p.Leader(p.within(patience))
	p.must(err)
	return l
}

func (p *pair) client(site string) *clientv3.Client {
	p.t.Helper()
	c, err := p.Site(site).Client()
	p.must(err)
	p.t.Cleanup(func() { c.Close() })
	return c
}

// kill ends both etcds by SIGKILL.
func (p *pair) kill() {
	p.t.Helper()
	for _, name := range lab.Sites {
		p.must(p.Site(name).Kill())
	}
}

// stop ends both etcds in order, so that all that was committed is in the databases.
func (p *pair) stop() {
	p.t.Helper()
	for _, name := range lab.Sites {
		p.must(p.Site(name).StopEtcd())
	}
}

// token is one of this pair with the term that its leader has now.
func (p *pair) token(generation uint64) failover.Token {
	p.t.Helper()
	st, err := p.Site(p.leader()).Status(p.within(patience))
	p.must(err)
	a, b := p.ids["a"], p.ids["b"]
	return failover.Token{Present: true, RecordID: "record-1", Generation: generation, Cluster: st.Header.ClusterId,
		Members: [2]uint64{min(a, b), max(a, b)}, Term: st.RaftTerm}
}

func (p *pair) encode(tok failover.Token) string {
	p.t.Helper()
	p.nonces++
	return string(encode(p.t, tok, fmt.Sprintf("nonce-%d", p.nonces)))
}

func (p *pair) put(value string, opts ...clientv3.OpOption) {
	p.t.Helper()
	_, err := p.client("a").Put(p.within(patience), TokenKey, value, opts...)
	p.must(err)
}

// open takes both locks of a site whose etcd is down.
func (p *pair) open(site string) (*Lock, *walsurgery.Log) {
	p.t.Helper()
	dir := p.Site(site).DataDir
	lock, err := TryLock(dir)
	p.must(err)
	log, err := walsurgery.Open(nil, filepath.Join(dir, "member", "wal"))
	if err != nil {
		p.t.Fatal(errors.Join(err, lock.Release()))
	}
	return lock, log
}

// read is Read of a site whose etcd is down; its error belongs to the data.
func (p *pair) read(site string, ask uint64) (failover.Data, error) {
	p.t.Helper()
	lock, log := p.open(site)
	d, rerr := Read(lock, log, ask)
	p.must(errors.Join(log.Close(), lock.Release()))
	if rerr != nil {
		p.t.Logf("%s: %v", site, rerr)
	}
	if d.Problem != failover.None {
		p.t.Fatalf("%s: problem %s: %v", site, d.Problem, rerr)
	}
	if d.Member != p.ids[site] || d.Name != site || d.Last.Index < d.Applied || d.Last.Index < d.Commit || d.Applied == 0 || d.Term < d.Last.Term {
		p.t.Fatalf("%s: implausible %+v", site, d)
	}
	return d, rerr
}

func (p *pair) other(site string) uint64 { return p.ids[lab.Other(site)] }

// propose runs requests at the leader of a pair whose follower stands still: they
// reach the leader's log and are never committed. The leader is then killed, and the follower.
func (p *pair) propose(requests ...func(context.Context, *clientv3.Client) error) (leader string) {
	p.t.Helper()
	leader = p.leader()
	cl := p.client(leader)
	p.must(p.Site(lab.Other(leader)).SignalEtcd(syscall.SIGSTOP))
	ctx := p.within(500 * time.Millisecond)
	var wg sync.WaitGroup
	for _, r := range requests {
		wg.Go(func() {
			if err := r(ctx, cl); err == nil {
				p.t.Error("a request was answered although the follower stands still")
			}
		})
		time.Sleep(30 * time.Millisecond) // in this order
	}
	wg.Wait()
	p.kill()
	return leader
}

// slow leaves the time to propose before a leader without a follower steps down.
var slow = lab.Timing{Heartbeat: 100 * time.Millisecond, Election: time.Second}

// What is appended but not committed is seen at the one member that has it, and
// nothing of it at the other one.
//
// Rules: P4, P5, P6, P8, P12; F3.
func TestTailOfRealPair(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, slow, "--strict-reconfig-check=false")
		tok := p.token(1)
		p.put(p.encode(tok))
		p.must(p.Site("b").WaitServing(p.within(patience)))
		pairVoters := failover.Voters{Count: 2, IDs: tok.Members}

		// A second token, in a nested transaction, and a third voter.
		next := tok
		next.Generation = 2
		value := p.encode(next)
		leader := p.propose(
			func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Version("absent"), ">", 0)).
					Else(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut(TokenKey, value)}, nil)).Commit()
				return err
			},
			func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.MemberAdd(ctx, []string{"http://127.0.0.1:1"})
				return err
			})
		d, _ := p.read(leader, 0)
		if d.Token.Generation != 1 || d.Token.EntryTerm != tok.Term || d.Tail != (failover.Tail{Writes: true, RecordID: "record-1", Generation: 2}) {
			t.Errorf("leader: token %+v, tail %+v", d.Token, d.Tail)
		}
		if d.Confs.Applied != pairVoters || d.Confs.MaxOthers != 2 || d.Confs.Others != 2 || !d.Confs.Self || d.Confs.Unknown || d.Confs.Remove[1] == 0 {
			t.Errorf("leader with a third voter in its tail: %+v", d.Confs)
		}
		follower := lab.Other(leader)
		d, _ = p.read(follower, d.Last.Index)
		// It knows that the token is committed only from the leader's next message.
		applied := d.Token == withEntry(tok) && d.Tail == failover.Tail{}
		pending := d.Token == failover.Token{} && d.Tail == failover.Tail{Writes: true, RecordID: "record-1", Generation: 1}
		if !applied && !pending || d.Asked != 0 || d.Confs.MaxOthers != 1 || d.Confs.Others != 1 || d.Confs.Other != p.other(follower) {
			t.Errorf("follower: %+v", d)
		}

		// It may be committed when both run again, or not. Then: two rejected changes, one
		// of them applied, and a delete of everything.
		p.start()
		cl := p.client("a")
		list, err := cl.MemberList(p.within(patience))
		p.must(err)
		for _, m := range list.Members {
			if m.ID != p.ids["a"] && m.ID != p.ids["b"] {
				_, err := cl.MemberRemove(p.within(patience), m.ID)
				p.must(err)
			}
		}
		taken := p.Site("b").AdvertisedPeerURL
		if _, err := cl.MemberAdd(p.within(patience), []string{taken}); err == nil {
			t.Fatal("a peer URL that is taken was accepted")
		}
		p.put(p.encode(p.token(3)))
		leader = p.propose(
			func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.MemberAdd(ctx, []string{taken})
				return err
			},
			func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.Delete(ctx, "\x00", clientv3.WithFromKey())
				return err
			})
		if n := changesAfterApplied(p, leader); n == 0 {
			t.Error("no change in the tail: nothing was shown")
		}
		d, err = p.read(leader, 0)
		if d.Tail != (failover.Tail{Bad: true}) && d.Tail != (failover.Tail{Bad: true, Writes: true, RecordID: "record-1", Generation: 3}) || err == nil {
			t.Errorf("delete in the tail: %+v, %v", d.Tail, err)
		}
		if d.Confs.Applied != pairVoters || d.Confs.MaxOthers != 1 || d.Confs.Others != 1 || !d.Confs.Self || d.Confs.Unknown || d.Confs.AnyAlone || d.Confs.Remove[1] != 0 {
			t.Errorf("rejected additions: %+v", d.Confs)
		}

		// A learner, applied, and the leader's own removal in its tail.
		p.start()
		cl = p.client("a")
		learner, err := cl.MemberAddAsLearner(p.within(patience), []string{"http://127.0.0.1:2"})
		p.must(err)
		p.put(p.encode(p.token(4)))
		p.stop()
		d, _ = p.read("a", 0)
		if d.Confs.Applied != (failover.Voters{Count: 2, IDs: tok.Members, Learners: 1}) || d.Confs.MaxOthers != 1 || !slices.Contains(d.Confs.Remove[:], learner.Member.ID) || !slices.Contains(d.Confs.Remove[:], p.ids["b"]) {
			t.Errorf("a pair with learner %x: %+v", learner.Member.ID, d.Confs)
		}
		p.start()
		leader = p.propose(func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.MemberRemove(ctx, p.ids[p.siteOf(c)])
			return err
		})
		d, _ = p.read(leader, 0)
		if d.Confs.Self || d.Confs.Unknown || d.Confs.Applied.Count != 2 {
			t.Errorf("own removal in the tail: %+v", d.Confs)
		}
		d, _ = p.read(lab.Other(leader), 0)
		if !d.Confs.Self || d.Confs.AnyAlone {
			t.Errorf("the other one's removal in its tail only: %+v", d.Confs)
		}
	})
}

func withEntry(tok failover.Token) failover.Token {
	tok.EntryTerm = tok.Term
	return tok
}

func (p *pair) siteOf(c *clientv3.Client) string {
	for _, name := range lab.Sites {
		if c.Endpoints()[0] == p.Site(name).ClientURL {
			return name
		}
	}
	p.t.Fatal("whose client?")
	return ""
}

func changesAfterApplied(p *pair, site string) int {
	p.t.Helper()
	d, _ := p.read(site, 0)
	lock, log := p.open(site)
	n := 0
	for e := range log.Changes() {
		if e.Index > d.Applied {
			n++
		}
	}
	p.must(errors.Join(log.Close(), lock.Release()))
	return n
}

// The newest applied value counts, whatever it is, and its entry's term.
//
// Rules: P4, P14.
func TestTokenOfRealPair(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast)
		step := func(name string, do func(c *clientv3.Client) error, check func(failover.Data) bool) {
			t.Helper()
			p.must(do(p.client("b")))
			p.stop()
			for _, site := range lab.Sites {
				d, err := p.read(site, 1)
				if d.Tail != (failover.Tail{}) || d.Asked != 1 || !check(d) || (err != nil) != d.Token.Bad {
					t.Errorf("%s, %s: %+v, %v", name, site, d, err)
				}
			}
			p.start()
		}
		ctx := p.within(2 * patience)
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
