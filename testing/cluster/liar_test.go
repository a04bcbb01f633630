package cluster

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/httpcas"
	"twok/internal/probe"
)

// honestLiar is a store that has not lied yet, and a register of the pair's record there. Its site is "a".
func honestLiar(t *testing.T, lie Lie) (*Liar, func(key string) *httpcas.Register) {
	l := &Liar{pair: "/pair", regs: map[string]entry{}, told: map[Lie]int{}, denied: map[string]int{}, site: func(string) string { return "a" }}
	l.Tell(lie, "")
	srv := httptest.NewServer(l)
	t.Cleanup(srv.Close)
	return l, func(key string) *httpcas.Register {
		r, err := httpcas.New(httpcas.Config{URL: srv.URL + key})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// The probe refuses a store that ignores conditions. The one that is to lie later passes it, whatever it is
// told about the record: else its scenarios would show nothing.
//
// Rules: A1; F28.
func TestLiarAndProbe(t *testing.T) {
	for _, lie := range []Lie{Honest, Ignores, TakesAll, Split, Stale, RolledBack} {
		t.Run(string(lie), func(t *testing.T) {
			l, open := honestLiar(t, lie)
			rep, err := probe.Run(t.Context(), probe.Config{Open: func() (arbiter.Register, error) { return open("/pair.probe.1"), nil }, RunID: "r"})
			if err != nil {
				t.Fatal(err)
			}
			if refused := rep.Problem != nil; refused != (lie == Ignores) {
				t.Errorf("the probe found %+v", rep.Problem)
			}
			if n := l.Told(Ignores); (n > 0) != (lie == Ignores) {
				t.Errorf("%d lies were counted", n)
			}
			if n, _ := l.Lies(); n != 0 {
				t.Errorf("%d lies about the record, which nobody touched", n)
			}
		})
	}
}

// Each lie is told and counted, and no other one.
//
// Rules: A1.
func TestLies(t *testing.T) {
	ctx := t.Context()
	rec := func(generation uint64) []byte {
		r := arbiter.Record{ID: arbiter.NewID(), ClusterID: 7, Generation: generation, Nonce: arbiter.NewNonce()}
		b, err := arbiter.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	set := func(t *testing.T, r *httpcas.Register, v arbiter.Version, b []byte) arbiter.Version {
		t.Helper()
		if err := r.CompareAndSwap(ctx, v, b); err != nil {
			t.Fatal(err)
		}
		_, now, err := r.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	only := func(t *testing.T, l *Liar, lie Lie, want int) {
		t.Helper()
		n, which := l.Lies()
		if n != want || l.Told(lie) != want || want > 0 && which != lie {
			t.Errorf("%d lies, %d of them %q; want %d", n, l.Told(lie), lie, want)
		}
	}
	t.Run("honest", func(t *testing.T) {
		l, open := honestLiar(t, Honest)
		r := open("/pair")
		one := set(t, r, arbiter.Absent, rec(1))
		set(t, r, one, rec(2))
		if err := r.CompareAndSwap(ctx, one, rec(2)); !errors.Is(err, arbiter.ErrConflict) {
			t.Errorf("a stale swap: %v", err)
		}
		if l.Denied("a") != 1 || l.Swaps() != 3 {
			t.Errorf("%d swaps, %d denied", l.Swaps(), l.Denied("a"))
		}
		only(t, l, TakesAll, 0)
	})
	t.Run("takes all", func(t *testing.T) {
		l, open := honestLiar(t, Honest)
		sites := make(chan string, 2)
		l.site = func(string) string {
			select {
			case s := <-sites:
				return s
			default:
				return ""
			}
		}
		one := set(t, open("/pair"), arbiter.Absent, rec(1))
		l.Tell(TakesAll, "")
		sites <- "a"
		sites <- "b"
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- open("/pair").CompareAndSwap(ctx, one, rec(2)) }()
		}
		if err := errors.Join(<-errs, <-errs); err != nil {
			t.Errorf("two claims of one generation: %v", err)
		}
		only(t, l, TakesAll, 1)
	})
	t.Run("a claim alone is no lie", func(t *testing.T) {
		l, open := honestLiar(t, Honest)
		one := set(t, open("/pair"), arbiter.Absent, rec(1))
		l.Tell(TakesAll, "")
		begun := time.Now()
		set(t, open("/pair"), one, rec(2))
		if time.Since(begun) < held {
			t.Error("it was not held")
		}
		only(t, l, TakesAll, 0)
	})
	t.Run("split", func(t *testing.T) {
		l, open := honestLiar(t, Honest)
		site := "a"
		l.site = func(string) string { return site }
		one := set(t, open("/pair"), arbiter.Absent, rec(1))
		l.Tell(Split, "")
		set(t, open("/pair"), one, rec(2))
		only(t, l, Split, 0)
		site = "b"
		set(t, open("/pair"), one, rec(2))
		only(t, l, Split, 1)
	})
	t.Run("stale", func(t *testing.T) {
		l, open := honestLiar(t, Honest)
		one := set(t, open("/pair"), arbiter.Absent, rec(1))
		l.Tell(Stale, "a")
		if _, v, err := open("/pair").Read(ctx); err != nil || v != one {
			t.Errorf("version %v, %v", v, err)
		}
		only(t, l, Stale, 0) // it is what there is
		if err := open("/pair").CompareAndSwap(ctx, one, rec(2)); err != nil {
			t.Fatal(err)
		}
		if _, v, err := open("/pair").Read(ctx); err != nil || v != one {
			t.Errorf("version %v, %v", v, err)
		}
		only(t, l, Stale, 1)
		if err := open("/pair").CompareAndSwap(ctx, one, rec(2)); !errors.Is(err, arbiter.ErrConflict) {
			t.Errorf("a swap from what was read: %v", err)
		}
	})
	t.Run("rolled back", func(t *testing.T) {
		l, open := honestLiar(t, Honest)
		one := set(t, open("/pair"), arbiter.Absent, rec(1))
		l.Tell(RolledBack, "")
		if err := l.RollBack(); err == nil {
			t.Error("nothing was there to roll back")
		}
		set(t, open("/pair"), one, rec(2))
		if err := l.RollBack(); err != nil {
			t.Fatal(err)
		}
		if _, v, err := open("/pair").Read(ctx); err != nil || v != one {
			t.Errorf("version %v, %v", v, err)
		}
		only(t, l, RolledBack, 1)
	})
}

// A claim that has no answer is of unknown outcome: of a mute store it was not taken, of a silent one it was, and the next one is answered.
//
// Rules: P1; F29.
func TestNoAnswer(t *testing.T) {
	ctx := t.Context()
	for _, lie := range []Lie{Mute, Silent} {
		l, open := honestLiar(t, Honest)
		reg := open("/pair")
		rec := func(generation uint64) []byte {
			b, err := arbiter.Encode(arbiter.Record{ID: arbiter.NewID(), ClusterID: 7, Generation: generation, Nonce: arbiter.NewNonce()})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		if err := reg.CompareAndSwap(ctx, arbiter.Absent, rec(1)); err != nil {
			t.Fatal(err)
		}
		before, at, err := reg.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		l.Tell(lie, "a")
		if _, _, err := reg.Read(ctx); err != nil {
			t.Errorf("%s: a read before the claim: %v", lie, err)
		}
		if err := reg.CompareAndSwap(ctx, at, rec(2)); arbiter.Class(err) != arbiter.ErrUnknown || l.Told(lie) != 1 {
			t.Errorf("%s: the claim: %v, told %d times", lie, err, l.Told(lie))
		}
		if _, _, err := reg.Read(ctx); (err != nil) != (lie == Mute) {
			t.Errorf("%s: a read after it: %v", lie, err)
		}
		l.Tell(Honest, "")
		after, at, err := reg.Read(ctx)
		if err != nil || bytes.Equal(before, after) != (lie == Mute) {
			t.Errorf("%s: afterwards the record is %s (%v)", lie, after, err)
		}
		if l.Tell(lie, "b"); reg.CompareAndSwap(ctx, at, rec(3)) != nil {
			t.Errorf("%s: the other site's claim has no answer", lie)
		}
		if n, _ := l.Lies(); n != 0 {
			t.Errorf("%s: %d lies", lie, n)
		}
	}
}
