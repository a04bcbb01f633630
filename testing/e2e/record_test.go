package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"twok/arbiter"
	"twok/internal/lab"
)

// starts says that neither etcd was stopped or started since before.
func (p *pair) pids() (a, b int) {
	p.Helper()
	return p.etcdPID("a"), p.etcdPID("b")
}

// TestBadRecordWhileWhole: a record that is gone or not understood is named, stops
// nothing, and arms the pair again when it is restored.
//
// Rules: P3, P11, P17; F11, F37, F38.
func TestBadRecordWhileWhole(t *testing.T) {
	t.Parallel()
	p := start(t, "3.6", func(c *lab.Config) { c.AgentFlags = append(c.AgentFlags, "--record-interval", "200ms") })
	a, b := p.pids()
	good := p.raw([]byte(" "))
	change := func(f func(*arbiter.Record)) []byte {
		rec, err := arbiter.Decode(good)
		p.must(err)
		f(&rec)
		out, err := arbiter.Encode(rec)
		p.must(err)
		return out
	}
	future := bytes.Replace(good, fmt.Appendf(nil, `"version":%d`, arbiter.FormatVersion), []byte(`"version":999`), 1)
	if bytes.Equal(future, good) {
		t.Fatalf("no version in %s", good)
	}
	for _, c := range []struct {
		name, reason string
		value        []byte // nil: none
	}{
		{"space", "record-empty", []byte(" \n")},
		{"no bytes", "record-empty", []byte{}},
		{"cut off", "record-garbage", good[:len(good)/2]},
		{"something else", "record-foreign", []byte(`{"hello": "world"}`)},
		{"another cluster", "record-foreign", change(func(r *arbiter.Record) { r.ClusterID++ })},
		{"another record", "record-elsewhere", change(func(r *arbiter.Record) { r.ID = "other" })},
		{"a newer format", "record-future", future},
		{"deleted", "record-absent", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := *p
			q.T = t
			p := &q
			aside := filepath.Join(p.dir, "record")
			if c.value == nil {
				began := time.Now()
				p.must(os.Rename(p.recordFile(), aside))
				p.edit(began)
			} else {
				p.raw(c.value)
			}
			for _, name := range lab.Sites {
				p.reason(name, c.reason)
			}
			p.written("a write beside a bad record")
			if c.value == nil {
				began := time.Now()
				p.must(os.Rename(aside, p.recordFile()))
				p.edit(began)
			} else {
				p.raw(good)
			}
			p.whole()
		})
	}
	p.wholeAndAudited()
	if a2, b2 := p.pids(); a2 != a || b2 != b {
		t.Errorf("the etcds were %d and %d, are %d and %d", a, b, a2, b2)
	}
}

// TestRecordNamesOther: a survivor that is alone finds the record naming the other member. Its
// etcd stops and stays down, nothing on it may claim, and it returns, its directory
// set aside, when the other one leads.
//
// Rules: P4, P12, P13, P16; F20.
func TestRecordNamesOther(t *testing.T) {
	t.Parallel()
	p := start(t, "3.7")
	p.untraced = "the record is forged: the claim by hand that it allows lacks what the survivor committed (S4)"
	p.w.Stop() // whatever is acknowledged now is on both
	first := p.leader()
	other := lab.Other(first)
	st, err := p.Site(other).Status(p.within())
	p.must(err)
	p.must(p.Site(other).Kill())
	p.role(first, "alone")
	p.until("the confirmation", p.confirmed)
	p.swap(func(r *arbiter.Record) {
		r.Generation++
		r.Survivor = arbiter.Member{ID: st.Header.MemberId, Name: other}
		r.ClaimNonce, r.Reason = arbiter.NewNonce(), "a test"
		r.ClaimEnd, r.Confirmed, r.ConfirmedAt = arbiter.Position{}, arbiter.Position{}, 0
		r.Fork = arbiter.Position{Index: 1, Term: 1} // one without a fork would be an order (P18)
		n := 0
		for r.History[n].First != 0 {
			n++
		}
		r.History[n] = arbiter.HistoryEntry{First: r.Generation, Last: r.Generation, Survivor: st.Header.MemberId}
	})
	p.role(first, "fenced")
	p.reason(first, "overridden")
	down := func(context.Context) error {
		if pid := p.etcdPID(first); pid != 0 {
			return fmt.Errorf("etcd runs as %d", pid)
		}
		return nil
	}
	p.until("etcd stops", down)
	p.steady("etcd of the overridden survivor stays down", 3*time.Second, down)
	survive := []string{"wal", "survive", "--arbiter", p.Arbiter, p.Site(first).DataDir}
	if code, _, stderr := p.run(survive...); code != 33 {
		t.Errorf("a claim by hand beside the agent: status %d, %s", code, stderr)
	}
	before := digest(t, filepath.Join(p.Site(first).DataDir, "member"))
	p.Site(first).StopAgent()
	if code, _, stderr := p.run(survive...); code != 32 {
		t.Errorf("a claim by hand of the overridden one: status %d, %s", code, stderr)
	}
	unchanged(t, "a refused claim", filepath.Join(p.Site(first).DataDir, "member"), before)

	// The other one, by hand: the record names it.
	code, _, stderr := p.run("wal", "survive", "--arbiter", p.Arbiter, p.Site(other).DataDir)
	if code != 0 {
		t.Fatalf("a claim by hand of the one that is named: status %d, %s", code, stderr)
	}
	p.must(p.Site(other).Start())
	p.role(other, "alone")
	p.must(p.Site(first).StartAgent())
	rec := p.whole()
	if rec.Survivor.Name != other {
		t.Errorf("%s survives", rec.Survivor.Name)
	}
	p.Log(p.audit())
	// Once, as overridden; where the survivor had to claim again (a busy machine), a return that this cut short once more.
	all, err := filepath.Glob(filepath.Join(p.Site(first).DataDir, "member.set-aside-*"))
	p.must(err)
	aside, err := filepath.Glob(filepath.Join(p.Site(first).DataDir, "member.set-aside-overridden-g4-*"))
	if err != nil || len(aside) != 1 || len(all) > 1+int(rec.Generation-4) {
		t.Errorf("set aside: %q, of them as overridden %q, %v; generation %d", all, aside, err, rec.Generation)
	}
}

// TestRecordRolledBackWhileAlone: the store loses the survivor's claim. The survivor goes on and
// says so in the store.
//
// Rules: P2, P17; F9.
func TestRecordRolledBackWhileAlone(t *testing.T) {
	t.Parallel()
	p := start(t, "3.5")
	p.until("the whole note and the first mark", func(ctx context.Context) error {
		if rec, err := p.Record(ctx); err != nil || rec.MarkGeneration == 0 {
			return errors.Join(err, errors.New("no mark"))
		}
		return nil
	})
	b, _, err := p.reg.Read(p.within())
	p.must(err)
	survivor := p.leader()
	other := p.Site(lab.Other(survivor))
	p.must(other.Kill())
	p.written("a write by the survivor")
	p.until("the confirmation", p.confirmed)
	claimed := p.record()
	pid := p.etcdPID(survivor)
	p.raw(b)
	p.until("the survivor asserts itself", func(ctx context.Context) error {
		rec, err := p.Record(ctx)
		if err == nil && (rec.Generation <= claimed.Generation || rec.Survivor.ID != claimed.Survivor.ID) {
			err = fmt.Errorf("generation %d, survivor %q", rec.Generation, rec.Survivor.Name)
		}
		return err
	})
	p.written("a write after the rollback")
	p.until("the new confirmation", p.confirmed)
	if now := p.etcdPID(survivor); now != pid {
		t.Errorf("the survivor's etcd was %d, is %d", pid, now)
	}
	p.must(other.Start())
	if rec := p.wholeAndAudited(); rec.Survivor != claimed.Survivor {
		t.Errorf("the survivor was %+v, is %+v", claimed.Survivor, rec.Survivor)
	}
}
