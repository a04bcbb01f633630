package arbitertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"twok/arbiter"
)

// Rules: P1, P3; F1, F2, F11, F29.
func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) Fixture { return NewMemory().Fixture() })
}

// Tags made of the content are harmless because of the nonces.
// Rules: P1.
func TestMemoryContentTags(t *testing.T) {
	Run(t, func(*testing.T) Fixture { return NewMemoryContentTags().Fixture() })
}

// faulty is a register whose read and swap are replaced. Everything else is Memory's.
type faulty struct {
	c    *Client
	read func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error)
	swap func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error
}

func (r *faulty) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	if r.read == nil {
		return r.c.Read(ctx)
	}
	return r.read(r.c, ctx)
}

func (r *faulty) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	if r.swap == nil {
		return r.c.CompareAndSwap(ctx, prev, next)
	}
	return r.swap(r.c, ctx, prev, next)
}

// broken makes the fixture of a Memory whose clients are all wrapped.
func broken(m *Memory, wrap func(c *Client) arbiter.Register) Fixture {
	f := m.Fixture()
	f.Open = func() (arbiter.Register, error) { return wrap(m.Client()), nil }
	f.Disturbed = func() (arbiter.Register, Faults, error) {
		c := m.Client()
		return wrap(c), c, nil
	}
	f.Forbidden = func() (arbiter.Register, error) {
		c := m.Client()
		c.Forbid(true)
		return wrap(c), nil
	}
	return f
}

type swapFunc = func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error
type readFunc = func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error)

func badSwap(s swapFunc) func() Fixture {
	return func() Fixture {
		return broken(NewMemory(), func(c *Client) arbiter.Register { return &faulty{c: c, swap: s} })
	}
}

func badRead(r readFunc) func() Fixture {
	return func() Fixture {
		return broken(NewMemory(), func(c *Client) arbiter.Register { return &faulty{c: c, read: r} })
	}
}

// reclass is a swap whose errors of one class are given as another.
func reclass(from, to error) swapFunc {
	return func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
		err := c.CompareAndSwap(ctx, prev, next)
		if err != nil && arbiter.Class(err) == from {
			if to == nil {
				return nil
			}
			return fmt.Errorf("%w: %s", to, err.Error())
		}
		return err
	}
}

// brokenRegisters: each has one fault, with the cases that must find it.
var brokenRegisters = []struct {
	name   string
	caught []string // at least these cases must fail
	open   func() Fixture
}{
	{"last writer wins", []string{"stale version", "create and read", "one winner of many", "ABA", "linearizable history"},
		badSwap(func(c *Client, ctx context.Context, _ arbiter.Version, next []byte) error {
			return c.send(ctx, Swap, func() { c.m.Put(next) })
		})},
	{"creates over a value", []string{"create and read", "one creator of many", "empty is not absent"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			if !prev.Exists() {
				return c.send(ctx, Swap, func() { c.m.Put(next) })
			}
			return c.CompareAndSwap(ctx, prev, next)
		})},
	{"creates from a version", []string{"versions that match nothing"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			if _, exists := c.m.Get(); !exists {
				prev = arbiter.Absent
			}
			return c.CompareAndSwap(ctx, prev, next)
		})},
	{"empty tag means any", []string{"versions that match nothing"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			if prev.Exists() && prev.Tag() == "" {
				_, prev = c.m.read()
			}
			return c.CompareAndSwap(ctx, prev, next)
		})},
	{"checks, then writes", []string{"linearizable history", "one winner of many", "one creator of many", "no lost update in a storm"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			var now arbiter.Version
			if err := c.send(ctx, Swap, func() {
				_, now = c.m.read()
				time.Sleep(time.Millisecond)
				if now == prev {
					c.m.Put(next)
				}
			}); err != nil {
				return err
			}
			if now != prev {
				return arbiter.ErrConflict
			}
			return nil
		})},
	{"conflict for its own write", []string{"linearizable history", "swap: reply lost after apply", "create: reply lost after apply", "swap: applied late"},
		badSwap(reclass(arbiter.ErrUnknown, arbiter.ErrConflict))},
	{"hidden retry", []string{"swap: reply lost after apply", "swap: cut before apply", "swap: the store fails"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := c.CompareAndSwap(ctx, prev, next)
			if arbiter.Class(err) == arbiter.ErrUnknown && ctx.Err() == nil {
				return c.CompareAndSwap(ctx, prev, next)
			}
			return err
		})},
	{"hidden retry that reads its own nonce", []string{"swap: cut before apply", "swap: the store fails"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := c.CompareAndSwap(ctx, prev, next)
			if arbiter.Class(err) != arbiter.ErrUnknown || ctx.Err() != nil {
				return err
			}
			if now, _, rerr := c.Read(ctx); rerr == nil && bytes.Equal(now, next) {
				return err
			}
			return c.CompareAndSwap(ctx, prev, next)
		})},
	{"lost reply is success", []string{"swap: cut before apply", "swap: reply lost after apply"},
		badSwap(reclass(arbiter.ErrUnknown, nil))},
	{"lost reply is unavailable", []string{"linearizable history", "swap: reply lost after apply", "create: reply lost after apply", "swap: applied late"},
		badSwap(reclass(arbiter.ErrUnknown, arbiter.ErrUnavailable))},
	{"everything is unknown", []string{"connection refused", "create and read"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			if err := c.CompareAndSwap(ctx, prev, next); err != nil {
				return errors.New("something went wrong")
			}
			return nil
		})},
	{"keeps the caller's slice", []string{"values byte for byte"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := c.CompareAndSwap(ctx, prev, next)
			c.m.mu.Lock()
			defer c.m.mu.Unlock()
			if err == nil && len(next) > 0 {
				c.m.value = next
			}
			return err
		})},
	{"applies after the deadline", []string{"cancelled before"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			if ctx.Err() != nil {
				c.m.swap(prev, next)
			}
			return c.CompareAndSwap(ctx, prev, next)
		})},
	{"applies what was cut", []string{"swap: cut before apply", "swap: the store fails"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := c.CompareAndSwap(ctx, prev, next)
			if arbiter.Class(err) == arbiter.ErrUnknown {
				go func() {
					time.Sleep(settled / 3)
					c.m.swap(prev, next)
				}()
			}
			return err
		})},
	{"forbidden swap is conflict", []string{"forbidden is not absent"},
		badSwap(reclass(arbiter.ErrForbidden, arbiter.ErrConflict))},
	{"hides the deadline", []string{"deadline"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			err := c.CompareAndSwap(ctx, prev, next)
			if ctx.Err() != nil {
				return arbiter.ErrUnknown
			}
			return err
		})},
	{"stale reads", []string{"read your write from a second client", "stale version", "linearizable history"}, staleReads},
	{"torn reads", []string{"no torn read in a storm"}, tornReads},
	{"absent during an overwrite", []string{"no torn read in a storm"}, absentReads},
	{"the version of another value", []string{"no torn read in a storm"}, mixedVersions},
	{"forbidden is absent", []string{"forbidden is not absent"}, badRead(errorsAbsent(arbiter.ErrForbidden))},
	{"unavailable is absent", []string{"read: lost, torn, failed", "connection refused"}, badRead(errorsAbsent(arbiter.ErrUnavailable))},
	{"absent is an error", []string{"absent"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			value, v, err := c.Read(ctx)
			if err == nil && !v.Exists() {
				err = arbiter.ErrUnavailable
			}
			return value, v, err
		})},
	{"absent is an empty value", []string{"absent"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			value, v, err := c.Read(ctx)
			if err == nil && !v.Exists() {
				return []byte{}, arbiter.At(""), nil
			}
			return value, v, err
		})},
	{"empty is absent", []string{"empty is not absent"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			value, v, err := c.Read(ctx)
			if err == nil && len(value) == 0 {
				return nil, arbiter.Absent, nil
			}
			return value, v, err
		})},
	{"white space is absent", []string{"white space and garbage"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			value, v, err := c.Read(ctx)
			if err == nil && len(value) > 0 && len(bytes.TrimSpace(value)) == 0 {
				return nil, arbiter.Absent, nil
			}
			return value, v, err
		})},
	{"trims", []string{"values byte for byte", "white space and garbage"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			value, v, err := c.Read(ctx)
			return bytes.TrimSpace(value), v, err
		})},
	{"stores the framing of a chunked body", []string{"values byte for byte", "create and read"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			return c.CompareAndSwap(ctx, prev, fmt.Appendf(nil, "%x\r\n%s\r\n0\r\n\r\n", len(next), next))
		})},
	{"read retries", []string{"read: lost, torn, failed"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			value, v, err := c.Read(ctx)
			if err != nil && ctx.Err() == nil {
				return c.Read(ctx)
			}
			return value, v, err
		})},
	{"ignores the end of a read's context", []string{"cancelled before"},
		badRead(func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
			if ctx.Err() != nil {
				value, v := c.m.read()
				return value, v, nil
			}
			return c.Read(ctx)
		})},
	{"* means any", []string{"versions that match nothing"},
		badSwap(func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
			if strings.Contains(prev.Tag(), "*") { // If-Match: * as it came
				_, prev = c.m.read()
			}
			return c.CompareAndSwap(ctx, prev, next)
		})},
}

// errorsAbsent gives one class of errors as absence.
func errorsAbsent(class error) readFunc {
	return func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
		value, v, err := c.Read(ctx)
		if err != nil && arbiter.Class(err) == class {
			return nil, arbiter.Absent, nil
		}
		return value, v, err
	}
}

// staleReads: every client reads the value before the last one it has not written itself.
func staleReads() Fixture {
	m := NewMemory()
	type state struct {
		value []byte
		v     arbiter.Version
	}
	var mu sync.Mutex
	var before, now state
	observe := func() {
		value, v := m.read()
		if v != now.v {
			before, now = now, state{value, v}
		}
	}
	return broken(m, func(c *Client) arbiter.Register {
		own := arbiter.Absent // the version that this client made
		return &faulty{c: c,
			read: func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
				if value, v, err := c.Read(ctx); err != nil {
					return value, v, err
				}
				mu.Lock()
				defer mu.Unlock()
				observe()
				if now.v == own || !before.v.Exists() {
					return bytes.Clone(now.value), now.v, nil
				}
				return bytes.Clone(before.value), before.v, nil
			},
			swap: func(c *Client, ctx context.Context, prev arbiter.Version, next []byte) error {
				mu.Lock()
				defer mu.Unlock()
				observe()
				err := c.CompareAndSwap(ctx, prev, next)
				observe()
				if err == nil {
					own = now.v
				}
				return err
			}}
	})
}

// disturbedReads changes what is read while a swap by another client is under way.
func disturbedReads(during func(old, next []byte, v arbiter.Version) ([]byte, arbiter.Version)) Fixture {
	m := NewMemory()
	var mu sync.Mutex
	var old, next []byte // next is not nil while a swap is under way
	return broken(m, func(c *Client) arbiter.Register {
		return &faulty{c: c,
			read: func(c *Client, ctx context.Context) ([]byte, arbiter.Version, error) {
				value, v, err := c.Read(ctx)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && next != nil && v.Exists() {
					value, v = during(old, next, v)
					return bytes.Clone(value), v, nil
				}
				return value, v, err
			},
			swap: func(c *Client, ctx context.Context, prev arbiter.Version, n []byte) error {
				mu.Lock()
				old, _ = m.Get()
				next = bytes.Clone(n)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				err := c.CompareAndSwap(ctx, prev, n)
				mu.Lock()
				next = nil
				mu.Unlock()
				return err
			}}
	})
}

func tornReads() Fixture {
	return disturbedReads(func(old, next []byte, v arbiter.Version) ([]byte, arbiter.Version) {
		return append(bytes.Clone(next[:len(next)/2]), old[min(len(old), len(next)/2):]...), v
	})
}

func absentReads() Fixture {
	return disturbedReads(func(_, _ []byte, _ arbiter.Version) ([]byte, arbiter.Version) {
		return nil, arbiter.Absent
	})
}

func mixedVersions() Fixture {
	return disturbedReads(func(_, next []byte, v arbiter.Version) ([]byte, arbiter.Version) {
		return next, v
	})
}

// Rules: P1, P3; F1, F2, F11, F28, F29, F30.
func TestSuiteBites(t *testing.T) {
	known := map[string]bool{}
	for _, c := range Cases() {
		known[c.Name] = true
	}
	var mu sync.Mutex
	found := map[string]int{}
	t.Run("registers", func(t *testing.T) { biteAll(t, known, func(name string) { mu.Lock(); found[name]++; mu.Unlock() }) })
	for name := range known {
		if found[name] == 0 {
			t.Errorf("case %q caught no broken register: it may be unable to fail", name)
		}
	}
}

func biteAll(t *testing.T, known map[string]bool, found func(name string)) {
	for _, b := range brokenRegisters {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			var failed []string
			for _, c := range Cases() {
				err := c.Run(func() (Fixture, error) { return b.open(), nil })
				var cannot *Cannot
				if errors.As(err, &cannot) {
					t.Fatalf("%s: %v", c.Name, err)
				}
				if err != nil {
					failed = append(failed, c.Name)
					found(c.Name)
					t.Logf("%s: %v", c.Name, err)
				}
			}
			for _, want := range b.caught {
				if !known[want] {
					t.Errorf("no case is called %q", want)
				} else if !slices.Contains(failed, want) {
					t.Errorf("not caught by %q; caught by %q", want, failed)
				}
			}
		})
	}
}

// A fixture that lacks a way without saying so fails; one that says so is excused.
// Rules: none (the suite's own honesty).
func TestNotCheckedIsAFailure(t *testing.T) {
	for _, c := range Cases() {
		open := func(cannot map[Ability]string) func() (Fixture, error) {
			return func() (Fixture, error) {
				f := NewMemory().Fixture()
				f.Disturbed, f.Forbidden, f.Cannot = nil, nil, cannot
				return f, nil
			}
		}
		needs := strings.HasPrefix(c.Asserts, "C2") && c.Name != "cancelled before" ||
			c.Name == "read: lost, torn, failed" || c.Name == "deadline" || c.Name == "forbidden is not absent"
		err := c.Run(open(nil))
		var cannot *Cannot
		// A history without faults is worth having where there are none to be had.
		if errors.As(err, &cannot) || (err != nil) != (needs || c.Name == "linearizable history") {
			t.Errorf("%s: with nothing said: %v", c.Name, err)
		}
		err = c.Run(open(map[Ability]string{CanDisturb: "why not", CanForbid: "why not"}))
		if errors.As(err, &cannot) != needs {
			t.Errorf("%s: excused: %v", c.Name, err)
		}
	}
}
