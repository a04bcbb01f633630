package walsurgery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// operate is the survivor's append as the agent does it, without the record.
func operate(t testing.TB, m *member, remove ...uint64) Plan {
	t.Helper()
	l, err := Open(nil, m.wal())
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Plan(remove)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(p)
	if err := l.Apply(p); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// leadsAlone checks that a started survivor is the only member, leads, and has
// every acknowledged write.
func leadsAlone(t testing.TB, m *member, acked []string) {
	t.Helper()
	c := m.awaitLeader()
	if lost := missing(t, c, acked); len(lost) > 0 {
		t.Fatalf("%d of %d acknowledged writes lost: %v", len(lost), len(acked), lost)
	}
	m.eventually("alone", func(ctx context.Context) error {
		r, err := c.MemberList(ctx)
		if err == nil && (len(r.Members) != 1 || r.Members[0].ID != m.id()) {
			t.Fatalf("members after surgery: %v", r.Members)
		}
		return err
	})
	ctx, cancel := context.WithTimeout(context.Background(), 5e9)
	defer cancel()
	if _, err := c.Put(ctx, "after", "surgery"); err != nil {
		t.Fatal(err)
	}
}

// The former leader and the former follower each lead alone after the append,
// started with the same flags, with every acknowledged write.
//
// Rules: P8, P9.
func TestSurvivorLeadsAlone(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		ids := cr.ids
		for i := range cr.pair {
			m := cr.restore(t, i)
			p := operate(t, m, ids[1-i])
			if p.Term != p.State.Term+1 || p.Fork.Index != p.Last.Index+1 || !slices.Equal(p.Remove, []uint64{ids[1-i]}) {
				t.Fatalf("plan %+v", p)
			}
			m.start()
			leadsAlone(t, m, cr.acked)
			m.kill()
		}
	})
}

// rejoin adds the loser as a learner, lets prepare give it a log under the new
// ID, starts it with its usual flags, promotes it and compares the hashes.
func rejoin(t testing.TB, survivor, loser *member, acked []string, prepare func(newID uint64)) {
	t.Helper()
	c := survivor.awaitLeader()
	var id uint64
	survivor.eventually("member add", func(ctx context.Context) error {
		r, err := c.MemberAddAsLearner(ctx, []string{loser.peer})
		if err == nil {
			id = r.Member.ID
		}
		return err
	})
	prepare(id)
	loser.start()
	loser.eventually("promotion", func(ctx context.Context) error {
		if _, err := c.Put(ctx, "nudge", "x"); err != nil {
			return err
		}
		_, err := c.MemberPromote(ctx, id)
		return err
	})
	samePair(t, survivor, loser, acked)
}

// samePair checks that two running members are a pair with equal key spaces
// that hold every acknowledged write, read through each.
func samePair(t testing.TB, a, b *member, acked []string) {
	t.Helper()
	for _, m := range []*member{a, b} {
		if lost := missing(t, m.awaitLeader(), acked); len(lost) > 0 {
			t.Fatalf("through %s %d of %d acknowledged writes are missing", m.name, len(lost), len(acked))
		}
	}
	c := a.connect()
	b.eventually("equal hashes", func(ctx context.Context) error {
		r, err := c.Put(ctx, "hash", "now")
		if err != nil {
			return err
		}
		ha, err := a.hashKV(ctx, r.Header.Revision)
		if err != nil {
			return err
		}
		hb, err := b.hashKV(ctx, r.Header.Revision)
		if err == nil && ha != hb {
			err = fmt.Errorf("hashes %s and %s", ha, hb)
		}
		return err
	})
}

// The loser returns with its own log under a new ID, its tail diverged from the
// survivor's, on each version.
//
// Rules: P8, P12, P13; F23, F24.
func TestRejoinWithRewrittenWAL(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		s, o := cr.follower, cr.leader
		survivor, loser := cr.restore(t, s), cr.restore(t, o)
		operate(t, survivor, cr.ids[o])
		survivor.start()
		rejoin(t, survivor, loser, cr.acked, func(newID uint64) {
			before := entriesOf(t, loser.wal())
			aside, err := RewriteID(nil, loser.wal(), newID)
			if err != nil {
				t.Fatal(err)
			}
			if aside != fmt.Sprintf("%s.before-%x", loser.wal(), cr.ids[o]) || loser.id() != newID {
				t.Fatalf("set aside as %s", aside)
			}
			if !slices.EqualFunc(before, entriesOf(t, loser.wal()), sameEntry) {
				t.Fatal("the rewrite changed the entries")
			}
		})
		if r, err := Replaced(loser.wal()); err != nil || len(r) != 1 {
			t.Fatalf("%v %v", r, err)
		}
	})
}

// The loser returns with nothing but a prepared log, by snapshot (the survivor
// has compacted its log); then it is a full member: both are killed again and it
// survives alone in its turn.
//
// Rules: P8, P12, P13; F27.
func TestRejoinFromEmptyThenSurvive(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		survivor, loser := cr.restore(t, 0), cr.restore(t, 1)
		operate(t, survivor, cr.ids[1])
		survivor.start()
		c := survivor.awaitLeader()
		stop := make(chan struct{})
		out := writers(c, 16, 10, stop)
		survivor.eventually("8000 entries", func(ctx context.Context) error {
			r, err := c.Status(ctx, survivor.client)
			if err == nil && r.RaftAppliedIndex < 8000 {
				err = fmt.Errorf("index %d", r.RaftAppliedIndex)
			}
			return err
		})
		close(stop)
		acked := append(<-out, cr.acked...)
		if err := os.Rename(loser.dir, loser.dir+".aside"); err != nil {
			t.Fatal(err)
		}
		rejoin(t, survivor, loser, acked, func(newID uint64) {
			if err := os.MkdirAll(filepath.Dir(loser.wal()), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := CreateEmpty(nil, loser.wal(), Metadata{MemberID: newID, ClusterID: clusterOf(t, survivor)}); err != nil {
				t.Fatal(err)
			}
		})
		survivor.kill()
		loser.kill()
		l, err := Inspect(nil, loser.wal())
		if err != nil {
			t.Fatal(err)
		}
		sum := l.Summary()
		l.Close()
		if sum.Snapshot.Index < 1000 || sum.First.Index < 1000 || !sum.HasConfState || len(sum.Voters) != 1 || len(sum.Learners) != 1 {
			t.Fatalf("this return was not by snapshot: %+v", sum)
		}
		operate(t, loser, cr.ids[0])
		loser.start()
		leadsAlone(t, loser, acked)
	})
}

func clusterOf(t testing.TB, m *member) uint64 {
	t.Helper()
	md, err := ReadMetadata(m.wal())
	if err != nil {
		t.Fatal(err)
	}
	return md.ClusterID
}

// Beside a running etcd under load Inspect is clean every time, sees the log
// grow, and nothing that needs the lock does anything.
//
// Rules: P7.
func TestBesideRunningEtcd(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		m := cr.restore(t, 0)
		operate(t, m, cr.ids[1])
		m.start()
		stop := make(chan struct{})
		out := writers(m.awaitLeader(), 8, 1000, stop)
		names := namesIn(t, m.wal())
		var last Position
		for i := range 50 {
			l, err := Inspect(nil, m.wal())
			if err != nil {
				t.Fatalf("Inspect %d: %v", i, err)
			}
			s := l.Summary()
			if s.Last.Index < last.Index || s.MemberID != cr.ids[0] || s.Unsupported > 0 || s.Inconsistent != "" {
				t.Fatalf("Inspect %d: %+v after %v", i, s, last)
			}
			for e := range l.From(s.Last.Index - 100) {
				if e.Err != nil {
					t.Fatal(e.Err)
				}
			}
			last = s.Last
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if i%10 > 0 {
				continue
			}
			if locked, err := Locked(m.wal()); err != nil || !locked {
				t.Fatalf("Locked: %v %v", locked, err)
			}
			if _, err := Open(nil, m.wal()); !errors.Is(err, ErrLocked) {
				t.Fatalf("Open: %v", err)
			}
			if _, err := RewriteID(nil, m.wal(), 0xbeef); !errors.Is(err, ErrLocked) {
				t.Fatalf("RewriteID: %v", err)
			}
			if err := CreateEmpty(nil, m.wal(), Metadata{1, 2}); !errors.Is(err, ErrExists) {
				t.Fatalf("CreateEmpty: %v", err)
			}
		}
		close(stop)
		acked := <-out
		m.kill()
		if got := namesIn(t, m.wal()); !slices.Equal(got, names) {
			t.Fatalf("files %v became %v", names, got)
		}
		if last.Index <= 1 || len(acked) == 0 {
			t.Fatal("there was no load")
		}
		m.start()
		leadsAlone(t, m, append(acked, cr.acked...))
	})
}

// While a Log is open etcd cannot take the WAL; after Close it can.
//
// Rules: P7.
func TestOpenLogKeepsEtcdOut(t *testing.T) {
	cr := crash(t, "3.7")
	m := cr.restore(t, 0)
	l, err := Open(nil, m.wal())
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	<-m.dead
	if log := m.log(); !strings.Contains(log, "failed to open WAL") {
		t.Fatalf("etcd ended for another reason:\n%s", log)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if locked, err := Locked(m.wal()); err != nil || locked {
		t.Fatalf("Locked after Close: %v %v", locked, err)
	}
	idles(t, m)
}

// The next term matters: with the removal in the loser's own term, at an index
// where the loser has an entry of its own, the two logs look the same there.
// The loser keeps its entry, never applies the removal, and etcd panics. With
// P8's term the same loser returns.
//
// Rules: P8.
func TestSameTermRemovalPanicsTheLoser(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		s, o := cr.follower, cr.leader
		for _, sameTerm := range []bool{true, false} {
			survivor, loser := cr.restore(t, s), cr.restore(t, o)
			l, err := Open(nil, survivor.wal())
			if err != nil {
				t.Fatal(err)
			}
			p, err := l.Plan([]uint64{cr.ids[o]})
			if err != nil {
				t.Fatal(err)
			}
			if sameTerm {
				p.Term, p.Fork.Term, p.End.Term = p.State.Term, p.State.Term, p.State.Term
				if err := l.Apply(p); !errors.Is(err, ErrStalePlan) {
					t.Fatalf("Apply took a plan in the old term: %v", err)
				}
				err = l.save(p)
			} else {
				err = l.Apply(p)
			}
			if err := errors.Join(err, l.Close()); err != nil {
				t.Fatal(err)
			}
			survivor.start()
			c := survivor.awaitLeader()
			var id uint64
			survivor.eventually("member add", func(ctx context.Context) error {
				r, err := c.MemberAddAsLearner(ctx, []string{loser.peer})
				if err == nil {
					id = r.Member.ID
				}
				return err
			})
			if _, err := RewriteID(nil, loser.wal(), id); err != nil {
				t.Fatal(err)
			}
			loser.start()
			promoted := make(chan error, 1)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			go func() { promoted <- promote(ctx, c, id) }()
			// The panic comes when the loser applies what it cannot: before or after
			// the survivor has answered the promotion.
			if sameTerm {
				select {
				case <-loser.dead:
				case <-ctx.Done():
					t.Fatal("the loser lives with a removal in its own term")
				}
				cancel()
				<-promoted
				if !strings.Contains(loser.log(), "member unknown") {
					t.Fatalf("the loser died of something else:\n%s", loser.log())
				}
			} else if err := <-promoted; err != nil {
				t.Fatalf("the loser was not promoted: %v", err)
			}
			survivor.kill()
			loser.kill()
		}
	})
}

// promote tries until it succeeds or ctx ends.
func promote(ctx context.Context, c *clientv3.Client, id uint64) error {
	for {
		_, err := c.MemberPromote(ctx, id)
		if err == nil || ctx.Err() != nil {
			return err
		}
		_, _ = c.Put(ctx, "nudge", "x")
		time.Sleep(20 * time.Millisecond)
	}
}
