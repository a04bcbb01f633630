package member

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/walsurgery"
)

// list is the configuration that etcd's own validation makes of the log's changes,
// kept by the test on its own: what must stand in the database.
type list struct {
	members map[uint64]memberJSON
	removed map[uint64]bool
	applied int // accepted changes
	refused int
}

func (l *list) apply(t testing.TB, c walsurgery.Change) (ok bool) {
	t.Helper()
	var m memberJSON
	if c.Type != walsurgery.RemoveNode {
		if err := json.Unmarshal(c.Context, &m); err != nil {
			t.Fatal(err)
		}
	}
	taken := false
	for id, o := range l.members {
		for _, u := range m.PeerURLs {
			taken = taken || id != c.NodeID && slices.Contains(o.PeerURLs, u)
		}
	}
	old, there := l.members[c.NodeID]
	ok = !l.removed[c.NodeID]
	switch {
	case c.Type == walsurgery.RemoveNode:
		if ok = ok && there; ok {
			delete(l.members, c.NodeID)
			l.removed[c.NodeID] = true
		}
	case c.Type == walsurgery.UpdateNode:
		if ok = ok && there && !taken; ok {
			old.PeerURLs = m.PeerURLs
			l.members[c.NodeID] = old
		}
	case m.IsPromote:
		if ok = ok && there && old.IsLearner; ok {
			old.IsLearner = false
			l.members[c.NodeID] = old
		}
	default:
		learners := 0
		for _, o := range l.members {
			if o.IsLearner {
				learners++
			}
		}
		// The default of --max-learners is 1.
		if ok = ok && !there && !taken && (c.Type != walsurgery.AddLearner || learners == 0); ok {
			l.members[c.NodeID] = memberJSON{ID: c.NodeID, PeerURLs: m.PeerURLs, IsLearner: m.IsLearner}
		}
	}
	if ok {
		l.applied++
	} else {
		l.refused++
	}
	return ok
}

// SIGKILL around membership changes: the database's members are exactly those at its
// consistent_index, neither before nor after it; both are written in one transaction of
// bbolt. And FoldConfs, from the beginning of the log, judges each change as etcd did.
//
// Rules: P5, P6.
func TestMembersMatchAppliedIndex(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast, "--strict-reconfig-check=false")
		lagged, refused, after, adjacent := 0, 0, 0, 0
		rounds := 3
		if v := os.Getenv("TWOK_STRESS_ROUNDS"); v != "" {
			var err error
			rounds, err = strconv.Atoi(v)
			p.must(err)
		}
		for round := range rounds {
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var done atomic.Int32
			for i, name := range lab.Sites {
				c := p.client(name)
				wg.Go(func() { churn(ctx, c, i, &done, p.ids) })
			}
			for end := time.Now().Add(patience); done.Load() == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
			p.kill()
			cancel()
			wg.Wait()
			for _, site := range lab.Sites {
				lock, log := p.open(site)
				db, err := readDatabase(lock)
				p.must(err)
				d, err := Read(lock, log, 0)
				p.must(err)
				sum := log.Summary()
				if sum.First.Index != 1 {
					t.Fatalf("the log begins at %s: nothing can be checked", sum.First)
				}
				l := list{members: map[uint64]memberJSON{}, removed: map[uint64]bool{}}
				var all, changes []failover.ConfChange
				next := false
				for e := range log.Changes() {
					if e.Kind != walsurgery.KindConfChange {
						t.Fatalf("entry %d: %v", e.Index, e.Err)
					}
					if e.Index > db.applied {
						next = true
						if e.Index == db.applied+1 {
							adjacent++
						}
						break
					}
					ok := l.apply(t, e.Change)
					c, err := confChange(e.Change)
					p.must(err)
					all = append(all, c)
					if ok || c.Kind != failover.ChangeAddLearner { // perhaps --max-learners refused that
						changes = append(changes, c)
					}
				}
				checkMembers(t, fmt.Sprintf("round %d, %s at %d", round, site, db.applied), db, l)
				checkFold(t, d.Member, db, all, changes)
				if db.applied < sum.Commit {
					lagged++
				}
				if next {
					after++
				}
				refused += l.refused
				t.Logf("round %d, %s: applied %d, commit %d, last %s; %d changes accepted, %d refused, more after it: %t",
					round, site, db.applied, sum.Commit, sum.Last, l.applied, l.refused, next)
				p.must(errors.Join(log.Close(), lock.Release()))
			}
			p.start()
		}
		t.Logf("the database lagged %d times of %d, changes stood in the tail %d times, %d of them right above the applied index, %d refused", lagged, 2*rounds, after, adjacent, refused)
	})
}

// churn changes the membership, or writes keys, until ctx ends. A removal commits the
// database's transaction at once: the next change is then the first entry above consistent_index.
func churn(ctx context.Context, c *clientv3.Client, i int, done *atomic.Int32, ids map[string]uint64) {
	for n := 0; ctx.Err() == nil; n++ {
		try, cancel := context.WithTimeout(ctx, time.Second)
		if i != 0 {
			c.Put(try, "k", fmt.Sprint(n))
			time.Sleep(20 * time.Millisecond)
		} else {
			url := fmt.Sprintf("http://127.0.0.1:%d", 1+n%3)
			if r, err := c.MemberAddAsLearner(try, []string{url}); err == nil {
				c.MemberAddAsLearner(try, []string{"http://127.0.0.1:9"}) // refused: too many learners
				c.MemberUpdate(try, r.Member.ID, []string{url, fmt.Sprintf("http://127.0.0.1:%d", 20+n)})
				c.MemberAdd(try, []string{url}) // refused: the URL is taken
				c.MemberRemove(try, r.Member.ID)
				done.Add(1)
			} else if l, err := c.MemberList(try); err == nil {
				for _, m := range l.Members {
					if m.ID != ids["a"] && m.ID != ids["b"] {
						c.MemberRemove(try, m.ID)
					}
				}
			}
		}
		cancel()
	}
}

func checkMembers(t *testing.T, where string, db database, l list) {
	t.Helper()
	var want, got []string
	for id, m := range l.members {
		want = append(want, fmt.Sprintf("%x learner=%t %s", id, m.IsLearner, m.PeerURLs))
	}
	for _, m := range db.members {
		got = append(got, fmt.Sprintf("%x learner=%t %s", m.ID, m.Learner, m.PeerURLs))
	}
	for id := range l.removed {
		want = append(want, fmt.Sprintf("%x removed", id))
	}
	for _, id := range db.removed {
		got = append(got, fmt.Sprintf("%x removed", id))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("%s: the database has\n%q, the log up to there makes\n%q", where, got, want)
	}
}

// checkFold: whoever is, or was, a member for etcd FoldConfs took in, and nobody else
// but for what --max-learners decides; changes are all without the learners that it refused.
func checkFold(t *testing.T, self uint64, db database, all, changes []failover.ConfChange) {
	t.Helper()
	others := append([]uint64{}, db.removed...)
	for _, m := range db.members {
		if m.ID != self {
			others = append(others, m.ID)
		}
	}
	whole := failover.FoldConfs(self, nil, nil, all)
	for _, id := range others {
		if !whole.Overflow && !slices.Contains(whole.Remove[:], id) {
			t.Errorf("FoldConfs missed %x: %x; the changes:\n%+v", id, whole.Remove, all)
		}
	}
	slices.SortFunc(others, cmp.Compare[uint64])
	c := failover.FoldConfs(self, nil, nil, changes)
	var got []uint64
	for _, id := range c.Remove {
		if id != 0 {
			got = append(got, id)
		}
	}
	if c.Overflow {
		if len(others) <= failover.MaxRemove {
			t.Errorf("FoldConfs saw more than the %d members that etcd had: %x; the changes:\n%+v", len(others), others, changes)
		}
		return
	}
	if !slices.Equal(got, others) {
		t.Errorf("FoldConfs saw %x, etcd had %x; the changes:\n%+v", got, others, changes)
	}
}

// A member ID is a hash of the peer URLs and the second: a learner that --max-learners refused and the voter
// that etcd then takes in at the same URL have one ID, and both entries stand in the log. What was applied says which
// it was; what was not is a third voter.
//
// Rules: P5; F22.
func TestRefusedLearnerIsTheNextVoter(t *testing.T) {
	eachMinor(t, func(t *testing.T, minor string) {
		p := startPair(t, minor, lab.Fast, "--strict-reconfig-check=false")
		c := p.client("a")
		const url = "http://127.0.0.1:9"
		if _, err := c.MemberAddAsLearner(p.within(patience), []string{"http://127.0.0.1:1"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
		if _, err := c.MemberAddAsLearner(p.within(patience), []string{url}); !errors.Is(err, rpctypes.ErrTooManyLearners) {
			t.Fatalf("a second learner: %v", err)
		}
		r, err := c.MemberAdd(p.within(patience), []string{url})
		p.must(err)
		p.kill()
		lock, log := p.open("a")
		defer func() { p.must(errors.Join(log.Close(), lock.Release())) }()
		var all []failover.ConfChange
		twice := 0
		for e := range log.Changes() {
			ch, err := confChange(e.Change)
			p.must(err)
			all = append(all, ch)
			if ch.ID == r.Member.ID {
				twice++
			}
		}
		if twice != 2 {
			t.Fatalf("the second ended between them: %x stands %d times in the log\n%+v", r.Member.ID, twice, all)
		}
		if c := failover.FoldConfs(p.ids["a"], nil, nil, all); c.MaxOthers != 2 {
			t.Errorf("the third voter was missed: %+v", c)
		}
		d, err := Read(lock, log, 0)
		p.must(err)
		if d.Confs.MaxOthers != 2 {
			t.Errorf("of the data: %+v", d.Confs)
		}
	})
}
