package probe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// A store that is wrong only now and then is found by the storm, by name.
//
// Rules: A1, P1, P11.
func TestStorm(t *testing.T) {
	const quiet = 40 // swaps before the fault
	var swaps atomic.Int64
	var mu sync.Mutex
	var last []byte
	var lastAt arbiter.Version
	for _, c := range []struct {
		fault Fault // "": ErrBusy
		name  string
		read  func(*broken, context.Context) ([]byte, arbiter.Version, error)
		swap  func(*broken, context.Context, arbiter.Version, []byte) error
	}{
		{"", "no fault", nil, nil},
		{TwoWinners, "takes a swap from the version before", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			mu.Lock()
			defer mu.Unlock()
			err := b.c.CompareAndSwap(ctx, prev, next)
			if err == nil {
				lastAt = prev
			} else if swaps.Load() > quiet && prev == lastAt {
				b.m.Put(next)
				return nil
			}
			return err
		}},
		{DeniesWin, "a proxy repeats requests", nil, func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := b.c.CompareAndSwap(ctx, prev, next)
			if err == nil && swaps.Load() > quiet {
				return arbiter.ErrConflict
			}
			return err
		}},
		{StaleRead, "a cache", func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			v, at, err := b.c.Read(ctx)
			mu.Lock()
			defer mu.Unlock()
			if n := swaps.Load(); n < quiet {
				last, lastAt = v, at
			} else if n > quiet+10 {
				return last, lastAt, nil
			}
			return v, at, err
		}, nil},
		{Vanishes, "removes, then writes", func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			if swaps.Load() > quiet {
				return nil, arbiter.Absent, nil
			}
			return b.c.Read(ctx)
		}, nil},
		{TornRead, "shows what is being written", func(b *broken, ctx context.Context) ([]byte, arbiter.Version, error) {
			v, at, err := b.c.Read(ctx)
			if swaps.Load() > quiet {
				v = v[:len(v)/2]
			}
			return v, at, err
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			swaps.Store(0)
			m := arbitertest.NewMemory()
			cfg := config(func() (arbiter.Register, error) {
				return &broken{c: m.Client(), m: m, read: c.read, swap: func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
					swaps.Add(1)
					runtime.Gosched()
					if c.swap == nil {
						return b.c.CompareAndSwap(ctx, prev, next)
					}
					return c.swap(b, ctx, prev, next)
				}}, nil
			})
			cfg.Rounds, cfg.Clients, cfg.Storm = 1, 4, 200
			rep, err := Run(t.Context(), cfg)
			switch {
			case err != nil || rep.Rounds != 1:
				t.Errorf("%+v, %v", rep, err)
			case c.fault == "" && (rep.Problem != nil || rep.Storm < 200):
				t.Errorf("%v, %d swaps", rep.Problem, rep.Storm)
			case c.fault != "" && (rep.Problem == nil || rep.Problem.Fault != c.fault):
				t.Errorf("%v after %d swaps, want %s", rep.Problem, rep.Storm, c.fault)
			}
		})
	}
	// Nothing is said of a store that stops to answer, or that somebody else writes to.
	for want, fail := range map[error]error{ErrInconclusive: arbiter.ErrUnknown, arbiter.ErrForbidden: arbiter.ErrForbidden, ErrBusy: nil} {
		swaps.Store(0)
		m := arbitertest.NewMemory()
		cfg := config(func() (arbiter.Register, error) {
			return &broken{c: m.Client(), m: m, swap: func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
				if swaps.Add(1) < quiet {
					return b.c.CompareAndSwap(ctx, prev, next)
				}
				if fail == nil {
					b.m.Put(value{Run: "another", Turn: 1}.encode())
					return arbiter.ErrConflict
				}
				return fail
			}}, nil
		})
		cfg.Rounds, cfg.Clients, cfg.Storm = 1, 4, 200
		if rep, err := Run(t.Context(), cfg); !errors.Is(err, want) || rep.Problem != nil {
			t.Errorf("%v: %v, %v", want, rep.Problem, err)
		}
	}
}

// Swaps whose reply did not come in time and which the store applies later, while others
// go on: no fault.
//
// Rules: P1; F28, F29.
func TestAppliedLate(t *testing.T) {
	for i := range 4 {
		m := arbitertest.NewMemory()
		if i%2 == 0 {
			m.Put([]byte("{}"))
		}
		var late sync.WaitGroup
		var mu sync.Mutex
		tried := map[arbiter.Version]int{}
		first := func(prev arbiter.Version) (k int, late bool) {
			mu.Lock()
			defer mu.Unlock()
			tried[prev]++
			return tried[prev], len(tried)%4 == 3 && tried[prev] <= 8
		}
		cfg := config(func() (arbiter.Register, error) {
			return &broken{c: m.Client(), m: m, swap: func(b *broken, ctx context.Context, prev arbiter.Version, next []byte) error {
				// The whole first race from some versions, so that it has no winner and is repeated.
				k, isLate := first(prev)
				if !isLate {
					time.Sleep(2 * time.Millisecond)
					return b.c.CompareAndSwap(ctx, prev, next)
				}
				late.Go(func() {
					time.Sleep(time.Duration(1+k%5) * 500 * time.Microsecond)
					b.c.CompareAndSwap(context.WithoutCancel(ctx), prev, next)
				})
				return fmt.Errorf("no reply in time: %w", arbiter.ErrUnknown)
			}}, nil
		})
		cfg.Storm = 20
		rep, err := Run(t.Context(), cfg)
		late.Wait()
		if err != nil || rep.Problem != nil {
			t.Fatalf("%d: %v, %v; %d rounds", i, rep.Problem, err, rep.Rounds)
		}
	}
}
