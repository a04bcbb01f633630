package lostwrites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// token writes a pair token as P14 would, and returns its revision.
func (p *pair) token(generation uint64) int64 {
	p.t.Helper()
	st, err := p.Site("a").Status(p.within(patience))
	p.must(err)
	a, b := p.ids["a"], p.ids["b"]
	tok := failover.Token{Present: true, RecordID: recordID, Generation: generation, Cluster: st.Header.ClusterId,
		Members: [2]uint64{min(a, b), max(a, b)}, Term: st.RaftTerm}
	v, err := member.EncodeToken(tok, arbiter.NewNonce())
	p.must(err)
	r, err := p.client("a").Put(p.within(patience), member.TokenKey, string(v))
	p.must(err)
	return r.Header.Revision
}

const recordID = "0123456789abcdef0123456789abcdef"

// What was compacted beyond the fork comes from the log: every value and every delete of a single key. Of a deleted range it is known that
// it was deleted, and not which keys it had.
//
// Rules: P18.
func TestCompacted(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor)
		before(p, p.client("a"))
		p.split()
		p.lead("a")
		c := p.client("a")
		ctx := p.within(patience)
		start, err := c.Get(ctx, "x")
		p.must(err)
		fork := start.Header.Revision
		mod := map[string]int64{}
		for i := range 200 { // as Kubernetes writes
			k := fmt.Sprintf("object/%d", i%20)
			r, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(k), "=", mod[k])).
				Then(clientv3.OpPut(k, fmt.Sprint("version ", i))).Else(clientv3.OpGet(k)).Commit()
			p.must(err)
			if !r.Succeeded {
				t.Fatal("a compare failed")
			}
			mod[k] = r.Header.Revision
			if i%7 == 0 { // and loses
				r, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(k), "=", 1)).Then(clientv3.OpPut(k, fmt.Sprint("never ", i))).Else(clientv3.OpGet(k)).Commit()
				if err != nil || r.Succeeded {
					t.Fatal(r, err)
				}
			}
		}
		_, err = c.Delete(ctx, "object/3")
		p.must(err)
		_, err = c.Delete(ctx, "shared/00")
		p.must(err)
		ranged, err := c.Delete(ctx, "shared/1", clientv3.WithPrefix())
		p.must(err)
		for range 2 {
			_, err = c.Put(ctx, "after", "1")
			p.must(err)
		}
		want, last := p.watch(c, fork+1)
		_, err = c.Compact(ctx, last-1, clientv3.WithCompactPhysical())
		p.must(err)
		_, err = c.Defragment(ctx, p.Site("a").ClientURL)
		p.must(err)
		time.Sleep(300 * time.Millisecond)
		p.kill("a")
		l := p.open(p.atFork())
		covers(t, l, want)
		if len(l.Unknown) != 1 || l.Unknown[0].Revision != ranged.Header.Revision || !strings.Contains(l.Unknown[0].What, `delete of "shared/1" to "shared/2"`) {
			t.Errorf("unknown: %+v", l.Unknown)
		}
		recovered := 0
		for _, c := range l.Changes {
			if c.FromLog {
				recovered++
			}
		}
		if recovered < 180 || len(l.Changes) != len(want)-10 || l.LowRevision != fork || l.HighRevision != fork || l.Compacted != last-1 {
			t.Errorf("%d changes, %d of them from the log, %d made; fork %d to %d, compacted %d; %q", len(l.Changes), recovered, len(want), l.LowRevision, l.HighRevision, l.Compacted, l.Notes)
		}
		for _, k := range l.Keys {
			if string(k.Key) == "shared/00" && k.Lost.Exists || string(k.Key) == "object/3" && k.Lost.Exists {
				t.Errorf("%q was deleted: %+v", k.Key, k)
			}
		}
		// The survivor: what was lost is lost, although the state at the fork of some keys is gone.
		p.lead("b")
		cb := p.client("b")
		p.must(l.Compare(ctx, cb))
		for _, k := range l.Keys {
			want := Lost
			if string(k.Key) == "object/3" {
				want = Same
			}
			if !k.AtFork.Known && k.Status == Superseded && k.Now != nil && !k.Now.Exists {
				continue // it may have been there at the fork, and then the survivor deleted it
			}
			if k.Status != want {
				t.Errorf("%q: %s, want %s: %+v now %+v", k.Key, k.Status, want, k.AtFork, k.Now)
			}
		}
	})
}

// The log was purged beyond the fork, as after days alone: all since the pair token is listed, what may predate the fork is marked, and
// the survivor tells those apart as the same.
//
// Rules: P18, P14.
func TestPurged(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, "--snapshot-count=20")
		before(p, p.client("a"))
		tokenRevision := p.token(1)
		shared := map[string]bool{}
		for i := range 5 {
			k := fmt.Sprintf("since/%d", i)
			_, err := p.client("a").Put(p.within(patience), k, "shared")
			p.must(err)
			shared[k] = true
		}
		p.split()
		p.lead("a")
		c := p.client("a")
		start, err := c.Get(p.within(patience), "x")
		p.must(err)
		fork := start.Header.Revision
		big := strings.Repeat("\x00v", 600_000)
		for i := range 150 {
			_, err := c.Put(p.within(patience), fmt.Sprintf("big/%d", i%10), fmt.Sprint(i, big))
			p.must(err)
		}
		p.kill("a")
		purge(t, p.wal("a"))
		l := p.open(p.atFork())
		if l.First.Index <= l.Fork.Index || l.LowRevision != tokenRevision || l.HighRevision <= fork {
			t.Fatalf("first %s, fork %d; revisions %d to %d, token at %d", l.First, l.Fork.Index, l.LowRevision, l.HighRevision, tokenRevision)
		}
		n := int64(0)
		for _, ch := range l.Changes {
			if ch.Revision > fork {
				n++
			}
			if ch.Perhaps != (ch.Revision <= l.HighRevision) || ch.Revision <= tokenRevision {
				t.Errorf("revision %d: perhaps %t, token at %d, high %d", ch.Revision, ch.Perhaps, tokenRevision, l.HighRevision)
			}
		}
		if n != 150 || len(l.Changes) != 155 {
			t.Errorf("%d of 150 changes are listed, %d in all", n, len(l.Changes))
		}
		if notes := strings.Join(l.Notes, "\n"); !strings.Contains(notes, "may predate the fork") || !strings.Contains(notes, "no longer has the entries") {
			t.Errorf("notes: %s", notes)
		}
		p.lead("b")
		p.must(l.Compare(p.within(patience), p.client("b")))
		for _, k := range l.Keys {
			want := Lost
			if shared[string(k.Key)] {
				want = Same
			}
			if k.Status != want {
				t.Errorf("%q is %s, want %s", k.Key, k.Status, want)
			}
		}
	})
}

// purge takes away what etcd would: the segments before the one that holds the newest snapshot.
func purge(t *testing.T, wal string) {
	t.Helper()
	log, err := walsurgery.Inspect(nil, wal)
	if err != nil {
		t.Fatal(err)
	}
	snap := log.Summary().Snapshot.Index
	log.Close()
	segments, err := filepath.Glob(filepath.Join(wal, "*.wal"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, s := range segments {
		var seq, index uint64
		if i+1 == len(segments) {
			break
		}
		if _, err := fmt.Sscanf(filepath.Base(segments[i+1]), "%016x-%016x.wal", &seq, &index); err != nil {
			t.Fatal(err)
		}
		if index > snap {
			break
		}
		if err := os.Remove(s); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n == 0 {
		t.Fatalf("nothing to purge: %d segments, snapshot at %d", len(segments), snap)
	}
}

// With users: what etcd refused is not listed, what it took is, also where users and roles change in the part of the log that no
// database has.
//
// Rules: P18; F25.
func TestUsers(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor)
		c := p.client("a")
		ctx := p.within(2 * patience)
		ok := func(_ any, err error) {
			t.Helper()
			p.must(err)
		}
		before(p, c)
		ok(c.UserAdd(ctx, "root", "r"))
		ok(c.UserGrantRole(ctx, "root", "root"))
		ok(c.UserAdd(ctx, "u", "u"))
		ok(c.RoleAdd(ctx, "some"))
		ok(c.RoleGrantPermission(ctx, "some", "u/", "u0", clientv3.PermissionType(clientv3.PermReadWrite)))
		ok(c.RoleGrantPermission(ctx, "some", "w", "", clientv3.PermissionType(clientv3.PermWrite)))
		ok(c.UserGrantRole(ctx, "u", "some"))
		ok(c.AuthEnable(ctx))
		p.split()
		db := filepath.Join(p.Site("a").DataDir, "member", "snap", "db")
		old, err := os.ReadFile(db)
		p.must(err)
		p.must(p.Site("a").StartEtcd())
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
			cl, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Site("a").ClientURL}, DialTimeout: time.Second, Username: "root", Password: "r"})
			if err == nil {
				cl.Close()
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		rc, uc := p.client("a", "root", "r"), p.client("a", "u", "u")
		start, err := rc.Get(ctx, "x")
		p.must(err)
		fork := start.Header.Revision
		denied := func(_ any, err error) {
			t.Helper()
			if err == nil {
				t.Fatal("it was permitted")
			}
		}
		lease, err := rc.Grant(ctx, 1000)
		p.must(err)
		ok(rc.Put(ctx, "r", "1", clientv3.WithLease(lease.ID)))
		ok(uc.Put(ctx, "u/1", "1"))
		ok(uc.Put(ctx, "w", "1"))
		denied(uc.Put(ctx, "w", "2", clientv3.WithPrevKV()))
		denied(uc.Put(ctx, "x", "1"))
		denied(uc.Put(ctx, "u/1", "2", clientv3.WithLease(lease.ID))) // it holds a key of root's
		denied(uc.Delete(ctx, "t", clientv3.WithRange("u/2")))
		ok(uc.Delete(ctx, "u/", clientv3.WithPrefix()))
		denied(uc.Txn(ctx).If(clientv3.Compare(clientv3.Version("w"), ">", 0)).Then(clientv3.OpPut("u/2", "1")).Commit())
		denied(uc.Txn(ctx).Then(clientv3.OpPut("u/2", "1")).Else(clientv3.OpPut("x", "1")).Commit())
		ok(uc.Txn(ctx).If(clientv3.Compare(clientv3.Version("u/9"), "=", 0)).Then(clientv3.OpPut("u/3", "1"), clientv3.OpPut("w", "3")).Commit())
		ok(rc.RoleGrantPermission(ctx, "some", "u0", "u2", clientv3.PermissionType(clientv3.PermWrite)))
		ok(uc.Put(ctx, "u1", "1"))
		ok(uc.Delete(ctx, "u/3", clientv3.WithRange("u1"))) // over two permissions
		ok(rc.RoleRevokePermission(ctx, "some", "w", ""))
		denied(uc.Put(ctx, "w", "4"))
		ok(rc.RoleAdd(ctx, "more"))
		ok(rc.RoleGrantPermission(ctx, "more", "w", "\x00", clientv3.PermissionType(clientv3.PermReadWrite)))
		ok(rc.UserAdd(ctx, "v", "v"))
		ok(rc.UserGrantRole(ctx, "v", "more"))
		ok(rc.UserRevokeRole(ctx, "u", "some"))
		denied(uc.Put(ctx, "u/4", "1"))
		vc := p.client("a", "v", "v")
		ok(vc.Put(ctx, "z", "1"))
		ok(rc.UserChangePassword(ctx, "u", "uu"))
		ok(rc.UserDelete(ctx, "v"))
		denied(vc.Put(ctx, "z", "2"))
		ok(rc.RoleDelete(ctx, "more"))
		ok(rc.AuthDisable(ctx))
		ok(c.Put(ctx, "free", "1"))
		ok(c.AuthEnable(ctx))
		rc2 := p.client("a", "root", "r")
		ok(rc2.Put(ctx, "r", "2"))
		want, _ := p.watch(rc2, fork+1)
		time.Sleep(400 * time.Millisecond)
		p.kill("a")
		check := func(what string) {
			t.Helper()
			l := p.open(p.atFork())
			if l.LowRevision != fork || l.HighRevision != fork {
				t.Errorf("%s: fork at revisions %d to %d, want %d: %q", what, l.LowRevision, l.HighRevision, fork, l.Notes)
			}
			same(t, listed(t, l), want)
			n := 0
			for _, e := range l.Events {
				if e.Kind == "auth" {
					n++
				}
				if strings.Contains(e.Detail, "uu") {
					t.Errorf("a password is shown: %+v", e)
				}
			}
			if n != 12 {
				t.Errorf("%s: %d changes of users and roles, want 12: %+v", what, n, l.Events)
			}
		}
		check("as it was killed")
		p.must(os.WriteFile(db, old, 0o600))
		check("with the database of the fork")
	})
}

// The other side's log is longer than this side's was at its own claim: with entries that were never committed. The histories part at this
// side's claim, whichever source tells.
//
// Rules: P18, P8.
func TestForkBelowTheOthersEnd(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor)
		before(p, p.client("a"))
		p.token(1)
		leader, err := p.Leader(p.within(patience))
		p.must(err)
		if leader == "a" {
			_, err := p.client("a").MoveLeader(p.within(patience), p.ids["b"])
			p.must(err)
		}
		p.must(p.Site("b").WaitServing(p.within(patience)))
		time.Sleep(200 * time.Millisecond)
		cb := p.client("b")
		p.must(p.Site("a").SignalEtcd(syscall.SIGSTOP))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() { _, _ = cb.Put(ctx, fmt.Sprint("unacknowledged/", i), "b") })
		}
		wg.Wait()
		cancel()
		p.kill("b")
		p.kill("a")
		own := p.operate("a", 0)
		other := p.operate("b", 3<<32)
		p.fork = other
		if other.Index < own.Index+5 {
			t.Fatalf("a's fork %s, b's %s: not what this was to show", own, other)
		}
		p.lead("a")
		c := p.client("a")
		start, err := c.Get(p.within(patience), "x")
		p.must(err)
		for i := range 40 {
			_, err := c.Put(p.within(patience), fmt.Sprint("acknowledged/", i), "a")
			p.must(err)
		}
		want, _ := p.watch(c, start.Header.Revision+1)
		p.kill("a")

		st, err := walsurgery.ReadMetadata(p.wal("a"))
		p.must(err)
		rec := arbiter.Record{ID: recordID, ClusterID: st.ClusterID, Generation: 3, ClaimEnd: arbiter.Position{Index: other.Index - 1, Term: 2}}
		log, err := walsurgery.Inspect(nil, p.wal("b"))
		p.must(err)
		rec.ClaimEnd.Term, _ = log.Term(other.Index - 1)
		log.Close()
		rec.History[0] = arbiter.HistoryEntry{First: 2, Last: 2, Survivor: p.ids["a"], Fork: arbiter.Position(own)}
		rec.History[1] = arbiter.HistoryEntry{First: 3, Last: 3, Survivor: p.ids["b"], Fork: arbiter.Position(other), Forced: true}
		ordered := rec // an operator's order, and the claim that carried it out
		ordered.Generation = 4
		ordered.History[1].Last = 4
		later := rec // the claim's end was overwritten by a later claim
		later.Generation, later.ClaimEnd = 4, arbiter.Position{Index: other.Index + 9, Term: other.Term}
		later.History[2] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: p.ids["b"], Fork: arbiter.Position{Index: other.Index + 10, Term: other.Term + 1}}
		for name, x := range map[string]struct {
			s     Sources
			exact bool
		}{
			"record": {Sources{Record: &rec}, true}, "order": {Sources{Record: &ordered}, true}, "later record": {Sources{Record: &later}, false},
			"fork": {p.atFork(), false}, "against": {Sources{Against: p.Site("b").DataDir}, true},
		} {
			l := p.open(x.s)
			if l.Fork.Index != own.Index || l.Fork.Exact != x.exact {
				t.Errorf("%s: %+v, want the fork at %s, exact %t", name, l.Fork, own, x.exact)
			}
			same(t, listed(t, l), want)
		}
		refuse := func(what string, is error, change func(*arbiter.Record)) {
			t.Helper()
			r := rec
			change(&r)
			if _, err := Open(p.Site("a").DataDir, Sources{Record: &r}); !errors.Is(err, is) {
				t.Errorf("%s: %v, want %v", what, err, is)
			}
		}
		refuse("another cluster's record", ErrOtherCluster, func(r *arbiter.Record) { r.ClusterID++ })
		refuse("another record", ErrOtherCluster, func(r *arbiter.Record) { r.ID = "f" + r.ID[1:] })
		refuse("only its own claims", ErrSameHistory, func(r *arbiter.Record) { r.History[1] = arbiter.HistoryEntry{} })
		refuse("a fork that the record does not know", ErrForkUnknown, func(r *arbiter.Record) { r.History[1].Fork = arbiter.Position{} })
		refuse("a history that has forgotten", ErrForkUnknown, func(r *arbiter.Record) {
			for i := range r.History {
				g := uint64(10 + i)
				r.History[i] = arbiter.HistoryEntry{First: g, Last: g, Survivor: p.ids["b"], Fork: arbiter.Position{Index: other.Index + uint64(i), Term: other.Term + uint64(i)}}
			}
		})
		if _, err := Open(p.Site("a").DataDir, Sources{}); !errors.Is(err, ErrForkUnknown) {
			t.Errorf("without a source: %v", err)
		}
		elsewhere := startPair(t, minor)
		elsewhere.kill("a")
		if _, err := Open(p.Site("a").DataDir, Sources{Against: elsewhere.Site("a").DataDir}); !errors.Is(err, ErrOtherCluster) {
			t.Errorf("another pair's directory: %v", err)
		}
	})
}
