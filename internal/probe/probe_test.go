package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/arbiter/httpcas"
)

func config(open func() (arbiter.Register, error)) Config {
	return Config{Open: open, Timeout: 5 * time.Second, RunID: arbiter.NewNonce()}
}

// Rules: A1, P1.
func TestGoodStores(t *testing.T) {
	srv, err := httpcas.NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(srv)
	t.Cleanup(func() {
		hs.Close()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	m, tags := arbitertest.NewMemory(), arbitertest.NewMemoryContentTags()
	held := arbitertest.NewMemory()
	held.Put([]byte("whatever"))
	for name, open := range map[string]func() (arbiter.Register, error){
		"memory":          func() (arbiter.Register, error) { return m.Client(), nil },
		"content tags":    func() (arbiter.Register, error) { return tags.Client(), nil },
		"holds something": func() (arbiter.Register, error) { return held.Client(), nil },
		"http":            func() (arbiter.Register, error) { return httpcas.New(httpcas.Config{URL: hs.URL + "/pair.probe.1"}) },
	} {
		for range 2 { // the second time over the first one's value
			rep, err := Run(t.Context(), config(open))
			if err != nil || rep.Problem != nil {
				t.Fatalf("%s: %v %v", name, rep.Problem, err)
			}
			if rep.Rounds < 10 || rep.Read.Calls < 50 || rep.Swap.Calls < 80 || rep.Swap.P99 <= 0 || rep.Swap.P50 > rep.Swap.P99 || rep.Swap.P99 > rep.Swap.Max {
				t.Errorf("%s: %+v", name, rep)
			}
		}
	}
	b, _, err := must(httpcas.New(httpcas.Config{URL: hs.URL + "/pair"})).Read(t.Context())
	if b != nil || err != nil {
		t.Errorf("the record's own key holds %q, %v", b, err)
	}
}

func must(r *httpcas.Register, err error) *httpcas.Register {
	if err != nil {
		panic(err)
	}
	return r
}

// broken is a client of a store with one fault.
type broken struct {
	c    *arbitertest.Client
	m    *arbitertest.Memory
	n    int // which client
	read func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error)
	swap func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error
}

func (b *broken) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	if b.read == nil {
		return b.c.Read(ctx)
	}
	return b.read(b, ctx)
}

func (b *broken) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	if b.swap == nil {
		return b.c.CompareAndSwap(ctx, prev, next)
	}
	return b.swap(b, ctx, prev, next)
}

// Each store with one fault is refused, by name.
//
// Rules: A1, P1, P11.
func TestBrokenStores(t *testing.T) {
	type readFunc = func(*broken, context.Context) ([]byte, arbiter.Version, error)
	type swapFunc = func(*broken, context.Context, arbiter.Version, []byte) error
	var mu sync.Mutex
	var stale []byte
	var calls atomic.Int64
	for _, c := range []struct {
		fault Fault
		also  Fault // what else the same store may be refused for
		name  string
		read  readFunc
		swap  swapFunc
	}{
		{IgnoresVersion, "", "last writer wins", nil, func(b *broken, _ context.Context, _ arbiter.Version, next []byte) error {
			b.m.Put(next)
			return nil
		}},
		{IgnoresAbsence, "", "creates over a value", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			if !prev.Exists() {
				if _, there := b.m.Get(); there {
					b.m.Put(next)
					return nil
				}
			}
			return b.c.CompareAndSwap(ctx, prev, next)
		}},
		{TwoWinners, "", "checks, then writes", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			if _, now, err := b.c.Read(ctx); err != nil || now != prev {
				return arbiter.ErrConflict
			}
			time.Sleep(2 * time.Millisecond)
			b.m.Put(next)
			return nil
		}},
		{DeniesWin, "", "a proxy repeats requests", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			if err := b.c.CompareAndSwap(ctx, prev, next); err != nil {
				return err
			}
			if calls.Add(1)%5 == 0 {
				return fmt.Errorf("the repeated request: %w", arbiter.ErrConflict)
			}
			return nil
		}},
		{LosesWin, DeniesWin, "says changed and writes all the same", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := b.c.CompareAndSwap(ctx, prev, next)
			if errors.Is(err, arbiter.ErrConflict) && calls.Add(1) > 20 {
				b.m.Put(next)
			}
			return err
		}},
		{StaleRead, "", "answers before the write is in force", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			old, _ := b.m.Get()
			err := b.c.CompareAndSwap(ctx, prev, next)
			if err == nil && calls.Add(1) > 5 {
				b.m.Put(old)
			}
			return err
		}},
		{OtherBytes, TornRead, "stores the framing too", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			return b.c.CompareAndSwap(ctx, prev, []byte(fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(next), next)))
		}},
		{TornRead, OtherBytes, "shows what is being written", func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			v, ver, err := b.c.Read(ctx)
			if b.n == 8 && len(v) > 0 { // the client that watches
				v = v[:len(v)/2]
			}
			return v, ver, err
		}, nil},
		{StaleRead, "", "a cache before one client", func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			v, ver, err := b.c.Read(ctx)
			mu.Lock()
			defer mu.Unlock()
			if b.n != 5 {
				return v, ver, err
			}
			if stale == nil || calls.Add(1) > 1 {
				stale, v = bytes.Clone(v), stale
			}
			if v == nil {
				v = stale
			}
			return v, ver, err
		}, nil},
		{Vanishes, "", "removes, then writes", func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			if calls.Add(1) > 30 {
				return nil, arbiter.Absent, nil
			}
			return b.c.Read(ctx)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls.Store(0)
			stale = nil
			m := arbitertest.NewMemory()
			if c.fault == IgnoresAbsence || c.fault == IgnoresVersion {
				m.Put([]byte("{}")) // so that the first race is not what finds it
			}
			n := 0
			rep, err := Run(t.Context(), config(func() (arbiter.Register, error) {
				b := &broken{c: m.Client(), m: m, n: n, read: c.read, swap: c.swap}
				n++
				return b, nil
			}))
			if err != nil || rep.Problem == nil || (rep.Problem.Fault != c.fault && rep.Problem.Fault != c.also) {
				t.Fatalf("%v, %v", rep.Problem, err)
			}
			if rep.Problem.What == "" || rep.Problem.Remedy == "" {
				t.Errorf("%+v", rep.Problem)
			}
		})
	}
}

// A store that cannot be reached, or refuses, or is shared with another probe, is not called faulty.
//
// Rules: P1, P11; F28, F29.
func TestNotTried(t *testing.T) {
	for _, c := range []struct {
		name string
		swap func(*broken, context.Context, arbiter.Version, []byte) error
		want error
	}{
		{"down", func(*broken, context.Context, arbiter.Version, []byte) error { return arbiter.ErrUnavailable }, arbiter.ErrUnavailable},
		{"read only", func(*broken, context.Context, arbiter.Version, []byte) error { return arbiter.ErrForbidden }, arbiter.ErrForbidden},
		{"no such bucket", func(*broken, context.Context, arbiter.Version, []byte) error { return arbiter.ErrMisconfigured }, arbiter.ErrMisconfigured},
		{"never an answer", func(*broken, context.Context, arbiter.Version, []byte) error { return arbiter.ErrUnknown }, ErrInconclusive},
		{"another probe", func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			if err := b.c.CompareAndSwap(ctx, prev, next); err != nil {
				return err
			}
			b.m.Put(value{Run: "another", Turn: 1}.encode())
			return nil
		}, ErrBusy},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := arbitertest.NewMemory()
			rep, err := Run(t.Context(), config(func() (arbiter.Register, error) { return &broken{c: m.Client(), m: m, swap: c.swap}, nil }))
			if !errors.Is(err, c.want) || rep.Problem != nil {
				t.Errorf("%v, %v", rep.Problem, err)
			}
		})
	}
	// Replies that get lost now and then are settled by reading.
	m := arbitertest.NewMemory()
	rep, err := Run(t.Context(), config(func() (arbiter.Register, error) {
		return &broken{c: m.Client(), m: m, swap: func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := b.c.CompareAndSwap(ctx, prev, next)
			if rand.IntN(6) == 0 {
				return fmt.Errorf("the reply got lost: %w", arbiter.ErrUnknown)
			}
			return err
		}}, nil
	}))
	if err != nil || rep.Problem != nil || rep.Rounds < 10 {
		t.Errorf("lost replies: %+v, %v", rep, err)
	}
}

// Rules: none (a warning).
func TestSlowStore(t *testing.T) {
	m := arbitertest.NewMemory()
	cfg := config(func() (arbiter.Register, error) {
		return &broken{c: m.Client(), m: m, read: func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			time.Sleep(5 * time.Millisecond)
			return b.c.Read(ctx)
		}}, nil
	})
	cfg.ClaimAfter, cfg.Rounds = 20*time.Millisecond, 2
	rep, err := Run(t.Context(), cfg)
	if err != nil || rep.Problem != nil || len(rep.Warnings) == 0 || !strings.Contains(rep.Warnings[0], "p99 of a read") {
		t.Errorf("%+v %v", rep, err)
	}
	cfg.ClaimAfter = time.Hour
	if rep, err := Run(t.Context(), cfg); err != nil || len(rep.Warnings) != 0 {
		t.Errorf("%+v %v", rep, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, cfg); err == nil {
		t.Error("a probe goes on after its context has ended")
	}
}

// Rules: none (the probe's own values).
func TestValue(t *testing.T) {
	v := value{Run: "r", Writer: 3, Turn: 9}
	b := v.encode()
	if got, ok := decode(b); !ok || got.Turn != 9 || got.Writer != 3 || got.Run != "r" {
		t.Errorf("%+v %v", got, ok)
	}
	for i := range b {
		x := bytes.Clone(b)
		x[i] ^= 1
		if _, ok := decode(x); ok && !bytes.Equal(x, b) {
			t.Errorf("byte %d was changed and nobody notices", i)
		}
		if _, ok := decode(b[:i]); ok {
			t.Errorf("%d bytes are taken for all %d", i, len(b))
		}
	}
}
