package assumptions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/etcdapi"
	"twok/internal/lab"
	"twok/walsurgery"
)

const patience = time.Minute

func eachVersion(t *testing.T, f func(t *testing.T, bin lab.Binaries)) {
	for _, minor := range lab.Minors {
		t.Run(minor, func(t *testing.T) {
			bin, err := lab.Etcd(t.Context(), minor, os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			f(t, bin)
		})
	}
}

func newPair(t *testing.T, bin lab.Binaries) *lab.Cluster {
	t.Helper()
	c, err := lab.NewCluster(lab.Config{Dir: t.TempDir(), Etcd: bin, Mode: lab.Plain, Timing: lab.Fast,
		// Else a membership change waits until all have been connected for five seconds.
		EtcdFlags: []string{"--strict-reconfig-check=false"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitServing(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

func client(t *testing.T, s *lab.Site) *clientv3.Client {
	t.Helper()
	c, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// retry calls f until it succeeds.
func retry(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err = f(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// tellIfFailed prints, when the test has failed, whether the site's etcd runs and
// what it said last. Called again for a later round, it says the same once more.
func tellIfFailed(t *testing.T, s *lab.Site) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		pid, err := s.EtcdPID()
		t.Logf("etcd of %s: pid %d, %v", s.Name, pid, err)
		said, err := os.ReadFile(s.EtcdLog)
		if err != nil {
			t.Log(err)
		}
		t.Logf("its last words:\n%s", said[max(0, len(said)-4096):])
	})
}

// A member that is SIGKILLed right after a promotion, under load, never has an
// entry in its WAL that was proposed after the promotion was applied without also having a hard
// state that commits the promotion. Were it otherwise, a restart could fall back to
// the configuration in which it commits alone.
//
// Rules: A0, P14.
func TestPromotionIsDurableBeforeWhatNeedsIt(t *testing.T) {
	eachVersion(t, func(t *testing.T, bin lab.Binaries) {
		c := newPair(t, bin)
		a, b := c.Site("a"), c.Site("b")
		after := 0
		for round := range 4 {
			after += promoteAndKill(t, a, b, round)
			if err := a.StartEtcd(); err != nil {
				t.Fatal(err)
			}
		}
		if after == 0 {
			t.Fatal("no round had an entry from after the promotion: nothing was tested")
		}
	})
}

// promoteAndKill returns how many entries from after the promotion a's WAL holds.
func promoteAndKill(t *testing.T, a, b *lab.Site, round int) int {
	t.Helper()
	ca := client(t, a)
	retry(t, "write", func(ctx context.Context) error { _, err := ca.Put(ctx, "warm", "up"); return err })
	// b leaves and comes back as an empty learner.
	retry(t, "remove b", func(ctx context.Context) error {
		l, err := ca.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range l.Members {
			if m.PeerURLs[0] == b.AdvertisedPeerURL {
				if _, err := ca.MemberRemove(ctx, m.ID); err != nil {
					return err
				}
			}
		}
		_, err = ca.Put(ctx, "alone", "")
		return err
	})
	if err := b.KillEtcd(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.DataDir); err != nil {
		t.Fatal(err)
	}
	var learner uint64
	retry(t, "add b", func(ctx context.Context) error {
		r, err := ca.MemberAddAsLearner(ctx, []string{b.AdvertisedPeerURL})
		if err == nil {
			learner = r.Member.ID
		}
		return err
	})
	b.EtcdFlags("--initial-cluster-state", "existing")
	if err := b.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	var phase atomic.Value
	phase.Store("before")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for w := range 8 {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				wctx, cancel := context.WithTimeout(ctx, time.Second)
				_, _ = ca.Put(wctx, fmt.Sprintf("%s-promotion/%d/%d/%d", phase.Load(), round, w, n), "x") // the outcome does not matter
				cancel()
			}
		}()
	}
	tellIfFailed(t, b)
	retry(t, "promote", func(ctx context.Context) error { _, err := ca.MemberPromote(ctx, learner); return err })
	phase.Store("after")
	time.Sleep(time.Duration(rand.IntN(15000)) * time.Microsecond)
	if err := a.KillEtcd(); err != nil {
		t.Fatal(err)
	}
	stop()

	log, err := walsurgery.Inspect(zap.NewNop(), filepath.Join(a.DataDir, "member", "wal"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var promotion uint64
	n := 0
	mark := fmt.Sprintf("after-promotion/%d/", round)
	for e := range log.Entries() {
		if e.Kind == walsurgery.KindConfChange && e.Change.NodeID == learner && strings.Contains(string(e.Change.Context), `"isPromote":true`) {
			promotion = e.Index
		}
		if strings.Contains(string(e.Data), mark) {
			n++
		}
	}
	hs := log.Summary().HardState
	if promotion == 0 {
		t.Fatal("the promotion is not in the WAL, although it was acknowledged")
	}
	if n > 0 && hs.Commit < promotion {
		t.Fatalf("the WAL holds %d entries from after the promotion at %d, but its hard state commits only %d", n, promotion, hs.Commit)
	}
	return n
}

// A member that is restarted without a leader does not open its client port: the
// list that it shows there is never from before it caught up with its own log. Its peer port answers.
//
// Rules: A0, P14.
func TestClientPortOpensAfterPublication(t *testing.T) {
	eachVersion(t, func(t *testing.T, bin lab.Binaries) {
		c := newPair(t, bin)
		a, b := c.Site("a"), c.Site("b")
		ca := client(t, a)
		retry(t, "write", func(ctx context.Context) error { _, err := ca.Put(ctx, "k", "v"); return err })
		for _, s := range []*lab.Site{a, b} {
			if err := s.KillEtcd(); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.StartEtcd(); err != nil {
			t.Fatal(err)
		}
		d := &etcdapi.Dialer{}
		retry(t, "peer port", func(ctx context.Context) error { _, err := d.PeerMembers(ctx, a.PeerURL); return err })
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			_, err := ca.MemberList(ctx, clientv3.WithSerializable())
			cancel()
			if err == nil {
				t.Fatal("a member restarted without a leader answers on its client port")
			}
		}
		if err := b.StartEtcd(); err != nil {
			t.Fatal(err)
		}
		retry(t, "local list", func(ctx context.Context) error {
			l, err := ca.MemberList(ctx, clientv3.WithSerializable())
			if err == nil && len(l.Members) != 2 {
				t.Fatalf("the first local list shows %d members", len(l.Members))
			}
			return err
		})
	})
}

// PreVote is on by default: a member that cannot reach the other one does not
// raise its term.
//
// Rules: A0.
func TestPreVoteIsOn(t *testing.T) {
	eachVersion(t, func(t *testing.T, bin lab.Binaries) {
		out, err := exec.CommandContext(t.Context(), bin.Etcd, "--help").CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), "--pre-vote 'true'") {
			t.Error("etcd --help does not say that --pre-vote is true by default")
		}
		c := newPair(t, bin)
		a, b := c.Site("a"), c.Site("b")
		ca := client(t, a)
		var before uint64
		retry(t, "status", func(ctx context.Context) error {
			st, err := etcdapi.Status(ctx, ca)
			if err == nil {
				before = st.RaftTerm
			}
			return err
		})
		if err := b.SignalEtcd(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		retry(t, "no leader", func(ctx context.Context) error {
			st, err := etcdapi.Status(ctx, ca)
			if err == nil && st.Leader != 0 {
				return fmt.Errorf("leader %x", st.Leader)
			}
			return err
		})
		time.Sleep(2 * time.Second) // ten election timeouts
		st, err := etcdapi.Status(t.Context(), ca)
		if err != nil {
			t.Fatal(err)
		}
		if st.RaftTerm > before+1 {
			t.Errorf("the term rose from %d to %d without the other member", before, st.RaftTerm)
		}
		if err := b.SignalEtcd(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
}
