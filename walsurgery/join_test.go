package walsurgery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// aLog is a WAL of member 10 in a cluster with 11, ready for an append.
func aLog(t *testing.T) *Log {
	smallSegments(t, 4096)
	return openRecords(t, recEntry, entry1, recEntry, entry2, recState, state2)
}

// What a join plans, and what it refuses.
//
// Rules: P18.
func TestJoinPlan(t *testing.T) {
	l := aLog(t)
	url := []string{"http://a:2380", "https://[::1]:2380"}
	for _, c := range []struct {
		name   string
		remove []uint64
		opt    PlanOption
		end    uint64
		says   string
	}{
		{"alone", nil, Join(url, 0), 3, "its own addition at http://a:2380,https://[::1]:2380 as 3@3 to 3@3"},
		{"before all", []uint64{11}, Join(url, 0), 4, "0 of them before, the removal of b as 3@3 to 4@3"},
		{"between", []uint64{12, 11}, Join(url, 1), 5, "1 of them before, the removal of c, b as 3@3 to 5@3"},
		{"after all", []uint64{12, 11}, Join(url, 2), 5, "2 of them before"},
	} {
		p, err := l.Plan(c.remove, c.opt)
		if err != nil || p.Fork != (Position{3, 3}) || p.End != (Position{c.end, 3}) || !strings.Contains(p.String(), c.says) {
			t.Errorf("%s: %v %s", c.name, err, p)
		}
	}
	for name, opt := range map[string]PlanOption{
		"no URL": Join([]string{}, 0), "an empty URL": Join([]string{""}, 0), "one empty URL of two": Join([]string{"http://a:2380", ""}, 0),
		"after more than there are": Join(url, 2), "before the first": Join(url, -1),
	} {
		if p, err := l.Plan([]uint64{11}, opt); err == nil {
			t.Errorf("%s: planned %s", name, p)
		}
	}
	if p, err := l.Plan([]uint64{11}, Join(nil, 0)); err != nil || p.End.Index != 3 || p.Join != nil {
		t.Errorf("no join at all: %v %s", err, p)
	}
	// The caller's slice is its own.
	mine := []string{"http://a:2380"}
	p, err := l.Plan(nil, Join(mine, 0))
	must(t, err)
	mine[0] = "http://elsewhere:2380"
	if p.Join[0] != "http://a:2380" {
		t.Error("the plan changed with the caller's slice")
	}
}

// A plan survives JSON, is applied once, and holds what it says; one that was made before anything changed, or that was changed
// itself, is stale.
//
// Rules: P8, P18.
func TestJoinApply(t *testing.T) {
	opts := []PlanOption{MinTerm(5 << 32), Join([]string{"http://a:2380"}, 1)}
	l := aLog(t)
	p, err := l.Plan([]uint64{12, 11}, opts...)
	must(t, err)
	b, err := json.Marshal(p)
	must(t, err)
	if !strings.Contains(string(b), `"join":["http://a:2380"],"join_after":1`) {
		t.Errorf("%s", b)
	}
	var q Plan
	must(t, json.Unmarshal(b, &q))
	for name, change := range map[string]func(p *Plan){
		"without its join":  func(p *Plan) { p.Join, p.JoinAfter = nil, 0 },
		"a removal less":    func(p *Plan) { p.Remove = p.Remove[:1] },
		"another end":       func(p *Plan) { p.End.Index++ },
		"an older term":     func(p *Plan) { p.Term-- },
		"another owner":     func(p *Plan) { p.Owner.MemberID++ },
		"joins after three": func(p *Plan) { p.JoinAfter = 3 },
		"no URL":            func(p *Plan) { p.Join = []string{""} },
	} {
		r := q
		change(&r)
		if err := l.Apply(r); !errors.Is(err, ErrStalePlan) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, l.Apply(q))
	s := l.Summary()
	if s.HardState != (HardState{Term: 5 << 32, Vote: 10, Commit: 5}) || s.Last != (Position{5, 5 << 32}) {
		t.Errorf("%+v", s)
	}
	var got []string
	added := slices.Collect(l.From(3))
	for _, e := range added {
		got = append(got, fmt.Sprintf("%d@%d %v %x %s", e.Index, e.Term>>32, e.Change.Type, e.Change.NodeID, e.Change.Context))
	}
	want := []string{
		fmt.Sprintf("3@5 %v c ", RemoveNode),
		fmt.Sprintf(`4@5 %v a {"id":10,"peerURLs":["http://a:2380"]}`, AddNode),
		fmt.Sprintf("5@5 %v b ", RemoveNode),
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log ends with\n%s", strings.Join(got, "\n"))
	}
	must(t, l.Close())
	again, err := Open(nil, l.dir)
	must(t, err)
	defer again.Close()
	if err := again.Apply(q); !errors.Is(err, ErrStalePlan) {
		t.Errorf("the plan once more: %v", err)
	}
	if n := slices.Collect(again.From(3)); !slices.EqualFunc(n, added, sameEntry) {
		t.Errorf("read again: %+v", n)
	}
}

// readBack notices an append that is not the planned one.
//
// Rules: P8, P18.
func TestJoinReadBack(t *testing.T) {
	for name, other := range map[string]func(p *Plan){
		"another URL":    func(p *Plan) { p.Join = []string{"http://b:2380"} },
		"another order":  func(p *Plan) { p.JoinAfter = 0 },
		"another member": func(p *Plan) { p.Remove = []uint64{12, 13} },
		"no join":        func(p *Plan) { p.Join, p.Remove = nil, []uint64{12, 11, 13} },
	} {
		l := aLog(t)
		p, err := l.Plan([]uint64{12, 11}, Join([]string{"http://a:2380"}, 1))
		must(t, err)
		q := p
		other(&q)
		must(t, l.save(q))
		if err := l.readBack(p); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// joiningMember prepares a member that lost: its WAL has a new ID, which was never a member.
func joiningMember(t testing.TB, m *member) (args []string, env []string) {
	t.Helper()
	old := m.id()
	if _, err := RewriteID(nil, m.wal(), joinID); err != nil {
		t.Fatal(err)
	}
	return []string{"append", m.wal(), fmt.Sprintf("%x", old)}, []string{"SURGEON_JOIN=" + m.peer, "SURGEON_AFTER=1", fmt.Sprintf("SURGEON_TERM=%d", uint64(7)<<32)}
}

// etcd, started with the flags that it always had, is the only member under its new ID after a join, leads, in the term that
// was planned or a later one, with every write that its log held; also when the append was killed at any of its steps and done again.
//
// Rules: P8, P9, P18.
func TestJoinLeadsAlone(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		all := append([]string{""}, steps(t, "wal/append/", 5)...)
		for n, step := range all {
			i := n % 2
			m := cr.restore(t, i)
			args, env := joiningMember(t, m)
			args = append(args, fmt.Sprintf("%x", cr.ids[1-i]))
			if step != "" {
				if st, out := cutWith(t, append(slices.Clone(env), "TWOK_FAILPOINTS="+step+"=kill"), args...); st.Success() {
					t.Fatalf("%s: not killed: %s", step, out)
				}
				idles(t, m.at(t, copied(t, m.dir)))
			}
			if step != stepAppendSynced {
				if st, out := cutWith(t, env, args...); !st.Success() {
					t.Fatalf("%s: done again: %v %s", step, st, out)
				}
			}
			m.start()
			leadsAlone(t, m, cr.acked)
			if st := statusOf(t, m); m.id() != joinID || st < 7<<32 {
				t.Errorf("%s: member %x in term %d", step, m.id(), st)
			}
			m.kill()
		}
	})
}

func statusOf(t testing.TB, m *member) (term uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, err := m.connect().Status(ctx, m.client)
	must(t, err)
	return st.RaftTerm
}

// A member that its own data know as removed becomes a new one by a join. And the addition's context is, byte for byte, what
// etcd itself writes when it adds a member.
//
// Rules: P8, P18; F3.
func TestJoinAfterRemoval(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		pair := newPair(t, version, t.TempDir())
		for _, m := range pair {
			m.start()
		}
		c := pair[0].awaitLeader()
		stop := make(chan struct{})
		out := writers(c, 4, 10, stop)
		time.Sleep(200 * time.Millisecond)
		close(stop)
		acked := <-out
		survivor, m := pair[0], pair[1]
		const elsewhere = "http://127.0.0.1:1"
		added := addVoter(t, survivor, elsewhere)
		old, other := m.id(), survivor.id()
		survivor.eventually("removal", func(ctx context.Context) error {
			_, err := c.MemberRemove(ctx, old)
			if err != nil && strings.Contains(err.Error(), "not found") {
				return nil
			}
			return err
		})
		<-m.dead
		survivor.kill()
		if _, err := RewriteID(nil, m.wal(), joinID); err != nil {
			t.Fatal(err)
		}
		want, err := Plan{Owner: Metadata{MemberID: added}, Join: []string{elsewhere}}.joinContext()
		must(t, err)
		l, err := Open(nil, m.wal())
		must(t, err)
		found := false
		for e := range l.Entries() {
			if e.Kind == KindConfChange && e.Change.Type == AddNode && e.Change.NodeID == added {
				found = true
				if string(e.Change.Context) != string(want) {
					t.Errorf("etcd writes %s, a join %s", e.Change.Context, want)
				}
			}
		}
		if !found {
			t.Errorf("no addition of %x in the log", added)
		}
		p, err := l.Plan([]uint64{other}, MinTerm(9<<32), Join([]string{m.peer}, 0))
		must(t, err)
		must(t, l.Apply(p))
		must(t, l.Close())
		m.start()
		leadsAlone(t, m, acked)
		m.kill()
		if _, err := os.Stat(filepath.Join(m.dir, "member", fmt.Sprintf("wal.before-%x", old))); err != nil {
			t.Error(err)
		}
	})
}

// addVoter adds a third voter, whom nobody runs, and removes it again.
func addVoter(t testing.TB, m *member, url string) (id uint64) {
	t.Helper()
	c := m.connect()
	m.eventually("member add", func(ctx context.Context) error {
		r, err := c.MemberAdd(ctx, []string{url})
		if err == nil {
			id = r.Member.ID
		}
		return err
	})
	m.eventually("and its removal", func(ctx context.Context) error {
		_, err := c.MemberRemove(ctx, id)
		return err
	})
	return id
}
