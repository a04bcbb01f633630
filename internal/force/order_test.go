package force

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/internal/failover"
)

// stored is a store with this record in it, and the case of naming B that was considered with it.
func stored(t *testing.T, r arbiter.Record) (*arbitertest.Memory, *arbitertest.Client, Case) {
	t.Helper()
	m := arbitertest.NewMemory()
	m.Put(encoded(t, r))
	c := m.Client()
	_, v, err := c.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cs, err := Consider(r, v, nil, Local{Dir: "d", Member: idB, Cluster: cluster, Name: "b", Last: arbiter.Position{Index: 60, Term: 3}}, "b")
	if err != nil {
		t.Fatal(err)
	}
	return m, c, cs
}

func encoded(t *testing.T, r arbiter.Record) []byte {
	t.Helper()
	b, err := arbiter.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func held(t *testing.T, m *arbitertest.Memory) arbiter.Record {
	t.Helper()
	b, _ := m.Get()
	r, err := arbiter.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The record is watched for as long as is asked, by the own clock; what somebody writes ends it, and an arbiter
// that does not answer makes it longer.
//
// Rules: P18, P20; F13.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, cs := stored(t, lone())
		var last time.Duration
		calls := 0
		tell := func(left time.Duration) { last = left; calls++ }
		began := time.Now()
		if err := cs.Watch(t.Context(), c, QuietFor, tell); err != nil || time.Since(began) != QuietFor || last != 0 || calls != 181 {
			t.Errorf("quiet: %v after %v, %v left, %d calls", err, time.Since(began), last, calls)
		}
		// Refused for a minute: what is not seen does not count.
		began = time.Now()
		c.Inject(arbitertest.Read, arbitertest.Fail, 60)
		if err := cs.Watch(t.Context(), c, QuietFor, tell); err != nil || time.Since(began) < QuietFor+55*time.Second {
			t.Errorf("an arbiter that fails: %v after %v", err, time.Since(began))
		}
		// Silent: each read ends by itself.
		began = time.Now()
		c.Inject(arbitertest.Read, arbitertest.Stall, 3)
		if err := cs.Watch(t.Context(), c, QuietFor, tell); err != nil || time.Since(began) < QuietFor+3*readLimit-3*time.Second {
			t.Errorf("an arbiter that is silent: %v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := cs.Watch(ctx, c, QuietFor, tell); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("interrupted: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		m, c, cs := stored(t, lone())
		began := time.Now()
		go func() {
			time.Sleep(QuietFor - time.Second/2)
			r := lone()
			r.Nonce = "confirmed"
			m.Put(encoded(t, r))
		}()
		if err := cs.Watch(t.Context(), c, QuietFor, func(time.Duration) {}); !errors.Is(err, ErrAlive) || time.Since(began) > QuietFor {
			t.Errorf("written at the very end: %v after %v", err, time.Since(began))
		}
		synctest.Wait()
	})
}

// An order names the member at the next generation, with who gave it and what it overrides, and nothing else.
//
// Rules: P1, P2, P18.
func TestOrder(t *testing.T) {
	m, c, cs := stored(t, lone())
	got, err := cs.Order(t.Context(), c, "eve@host")
	if err != nil {
		t.Fatal(err)
	}
	r := held(t, m)
	if r != got || r.Generation != 5 || r.Survivor != (arbiter.Member{ID: idB, Name: "b"}) || !r.Forced || r.Fork.Index != 0 || r.Confirmed.Index != 0 ||
		r.Reason != "forced by eve@host over a (000000000000000a) of generation 4, index 90" {
		t.Errorf("%+v", r)
	}
	if h := r.History[1]; h.First != 5 || h.Last != 5 || h.Survivor != idB || !h.Forced || h.By != "eve@host" {
		t.Errorf("%+v", h)
	}
	if p, err := Look(t.Context(), c, got); err != nil || p.Taken || p.Leads || p.Another || p.Void {
		t.Errorf("%+v %v", p, err)
	}
	if again, err := Consider(r, cs.Version, nil, Local{}, arbiter.FormatID(idB)); err != nil || !again.Ordered {
		t.Errorf("considered again: %+v %v", again, err)
	}
}

// A reply that is lost is looked for; a swap that was not made is not made again.
//
// Rules: P1, P18; F29.
func TestOrderLostReplies(t *testing.T) {
	other := func(r arbiter.Record) arbiter.Record { // somebody else's order
		return failover.Force(r, arbiter.Member{ID: idA, Name: "a"}, "another", "over nobody", failover.Stamp{Nonce: "x", Now: 1})
	}
	for _, c := range []struct {
		name    string
		fault   arbitertest.Fault
		before  func(t *testing.T, m *arbitertest.Memory) // since it was considered
		during  func(t *testing.T, m *arbitertest.Memory) // after the swap, before the reads
		want    error
		ordered bool
	}{
		{name: "as it should be", ordered: true},
		{name: "the reply is lost", fault: arbitertest.LoseReply, ordered: true},
		{name: "the request is lost", fault: arbitertest.CutBefore, want: ErrUnknown},
		{name: "the store fails", fault: arbitertest.Fail, want: ErrUnknown},
		{name: "the store is away", fault: arbitertest.Refuse, want: arbiter.ErrUnavailable},
		{name: "written meanwhile", before: func(t *testing.T, m *arbitertest.Memory) {
			r := lone()
			r.Nonce = "confirmed"
			m.Put(encoded(t, r))
		}, want: ErrChanged},
		{name: "ordered by another one", before: func(t *testing.T, m *arbitertest.Memory) { m.Put(encoded(t, other(lone()))) }, want: ErrChanged},
		{name: "gone", before: func(_ *testing.T, m *arbitertest.Memory) { m.Remove() }, want: ErrChanged},
		{name: "the reply is lost, and another one ordered", fault: arbitertest.LoseReply,
			during: func(t *testing.T, m *arbitertest.Memory) { m.Put(encoded(t, other(held(t, m)))) }, want: ErrChanged},
		{name: "the reply is lost, and it was carried out", fault: arbitertest.LoseReply,
			during: func(t *testing.T, m *arbitertest.Memory) { m.Put(encoded(t, carriedOut(held(t, m), idB))) }, ordered: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, client, cs := stored(t, lone())
			if c.before != nil {
				c.before(t, m)
			}
			if c.fault != 0 {
				client.Inject(arbitertest.Swap, c.fault, 1)
			}
			var reg arbiter.Register = client
			if c.during != nil {
				reg = &after{client, func() { c.during(t, m) }}
			}
			was, _ := m.Get()
			got, err := cs.Order(t.Context(), reg, "eve@host")
			if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			if is, _ := m.Get(); c.fault == 0 && c.want != nil && string(is) != string(was) {
				t.Errorf("%s: the record was written all the same", c.name)
			}
			if n := client.Requests(arbitertest.Swap); n != 1 && c.fault != arbitertest.Refuse {
				t.Errorf("%s: %d swaps", c.name, n)
			}
			if c.ordered && got.Generation != 5 {
				t.Errorf("%s: %+v", c.name, got)
			}
		})
	}
	// It reaches the store after the command gave up.
	synctest.Test(t, func(t *testing.T) {
		m, client, cs := stored(t, lone())
		client.Inject(arbitertest.Swap, arbitertest.Hold, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := cs.Order(ctx, client, "eve@host"); !errors.Is(err, ErrUnknown) {
			t.Errorf("held back: %v", err)
		}
		client.Release()
		if r := held(t, m); r.Generation != 5 || !failover.Ordered(r, idB) {
			t.Errorf("%+v", r)
		}
	})
}

// after is a register beside which something happens once a swap was made.
type after struct {
	arbiter.Register
	do func()
}

func (a *after) CompareAndSwap(ctx context.Context, v arbiter.Version, b []byte) error {
	err := a.Register.CompareAndSwap(ctx, v, b)
	a.do()
	return err
}

// carriedOut is the record after the claim of the named member's agent; with another ID it was removed.
func carriedOut(order arbiter.Record, as uint64) arbiter.Record {
	d := failover.Data{Member: order.Survivor.ID, Cluster: cluster, Term: 3, Last: arbiter.Position{Index: 60, Term: 3}}
	d.Confs.Self = as == order.Survivor.ID
	return failover.ForcedClaim(order, d, as, failover.Stamp{Nonce: "own", Now: 2})
}

// How far an order has come, by the record alone.
//
// Rules: P18.
func TestLook(t *testing.T) {
	st := failover.Stamp{Nonce: "later", Now: 3}
	order := failover.Force(lone(), arbiter.Member{ID: idB, Name: "b"}, "eve", "over a", failover.Stamp{Nonce: "order", Now: 1})
	self, renamed := carriedOut(order, idB), carriedOut(order, 0xe)
	back := failover.Force(order, arbiter.Member{ID: idA, Name: "a"}, "adam", "over b", st)
	for _, c := range []struct {
		name string
		rec  arbiter.Record
		want Progress
	}{
		{"ordered", order, Progress{}},
		{"claimed", self, Progress{Taken: true}},
		{"confirmed", failover.Confirm(self, self.Fork, st), Progress{Taken: true, Leads: true}},
		{"whole again", failover.NoteWhole(self, idA, idB, 70, st), Progress{Taken: true, Leads: true}},
		{"claimed under a new ID", renamed, Progress{Taken: true}},
		{"confirmed under a new ID", failover.Confirm(renamed, renamed.Fork, st), Progress{Taken: true, Leads: true}},
		{"claimed twice", failover.Claim(self, failover.Data{Member: idB, Term: 9, Last: arbiter.Position{Index: 70, Term: 8}}, "no leader", st), Progress{Taken: true}},
		{"void", failover.NoteWhole(order, idA, idB, 70, st), Progress{Void: true}},
		{"ordered for the other one", back, Progress{Another: true}},
		{"carried out for the other one", carriedOut(back, idA), Progress{Another: true}},
		{"carried out for the other one, which was removed", carriedOut(back, 0xe), Progress{Another: true}},
		{"overridden after it was carried out", failover.Claim(failover.NoteWhole(self, idA, idB, 70, st), failover.Data{Member: idA, Term: 9, Last: arbiter.Position{Index: 80, Term: 9}}, "no leader", st), Progress{Another: true}},
		{"rolled back", lone(), Progress{Another: true}},
	} {
		m := arbitertest.NewMemory()
		m.Put(encoded(t, c.rec))
		got, err := Look(t.Context(), m.Client(), order)
		c.want.Record = c.rec
		if err != nil || got != c.want {
			t.Errorf("%s: taken %t, leads %t, another %t, void %t, %v", c.name, got.Taken, got.Leads, got.Another, got.Void, err)
		}
	}
	m := arbitertest.NewMemory()
	if _, err := Look(t.Context(), m.Client(), order); err == nil {
		t.Error("a record that is gone is no progress")
	}
	m.Put([]byte("{"))
	if _, err := Look(t.Context(), m.Client(), order); err == nil {
		t.Error("garbage is no progress")
	}
}
