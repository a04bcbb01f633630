package walsurgery

import (
	"context"
	"slices"
	"testing"

	"go.uber.org/zap/zaptest"
)

// operate is the survivor's append as the agent does it, without the record.
func operate(t testing.TB, m *member, remove ...uint64) Plan {
	t.Helper()
	l, err := Open(zaptest.NewLogger(t), m.wal())
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
