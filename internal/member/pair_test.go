package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
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

// stop ends both etcds once all that is in their logs is in their databases: by
// SIGKILL, since an orderly end of a pair takes seconds; again if it came too early.
func (p *pair) stop() {
	p.t.Helper()
	for range 20 {
		time.Sleep(200 * time.Millisecond) // twice etcd's batch interval
		p.kill()
		settled := true
		for _, site := range lab.Sites {
			lock, log := p.open(site)
			db, err := readDatabase(lock)
			p.must(errors.Join(err, log.Close(), lock.Release()))
			settled = settled && db.applied == log.Summary().Last.Index
		}
		if settled {
			return
		}
		p.start()
	}
	p.t.Fatal("the databases never reached the ends of the logs")
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
	// A killed process leaves its address space, by which the laboratory finds it,
	// a moment before its files.
	for end := time.Now().Add(patience); errors.Is(err, ErrHeld) && time.Now().Before(end); lock, err = TryLock(dir) {
		time.Sleep(5 * time.Millisecond)
	}
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
	p.freeze(lab.Other(leader))
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

// freeze stops a site's etcd and waits until all of its threads stand still.
func (p *pair) freeze(site string) {
	p.t.Helper()
	pid, err := p.Site(site).EtcdPID()
	p.must(err)
	p.must(p.Site(site).SignalEtcd(syscall.SIGSTOP))
	for running := true; running; time.Sleep(time.Millisecond) {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		p.must(err)
		running = len(tasks) == 0
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			running = running || err != nil || !bytes.Contains(b, []byte(") T "))
		}
		if p.t.Context().Err() != nil {
			p.t.Fatal("the follower does not stand still")
		}
	}
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
