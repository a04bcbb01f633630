package arbitertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"twok/arbiter"
)

// Run runs every case of the suite, each on registers of its own. open makes a
// fresh one and may end the test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			err := c.Run(func() (Fixture, error) { return open(t), nil })
			var cannot *Cannot
			if errors.As(err, &cannot) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%s (%s): %v", c.Name, c.Asserts, err)
			}
		})
	}
}

// Case is one test of the suite.
type Case struct {
	Name    string
	Asserts string // the assertions of the package documentation and the rules behind them
	body    func(k *kit)
}

// Run runs the case. nil: it held. A *Cannot: the fixture excuses it. Any other
// error: the register is not fit to be an arbiter.
func (c Case) Run(open func() (Fixture, error)) (err error) {
	k := &kit{open: open}
	defer func() {
		for _, f := range k.closers {
			f()
		}
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.err
		default:
			panic(v)
		}
	}()
	c.body(k)
	return nil
}

// Cases lists the suite.
func Cases() []Case {
	return []Case{
		{"absent", "C4; P3, F11", caseAbsent},
		{"create and read", "C1, C3; P3", caseCreate},
		{"stale version", "C1; P1", caseStale},
		{"versions that match nothing", "C1; P1", caseNoSuchVersion},
		{"ABA", "C1; P1", caseABA},
		{"values byte for byte", "C3", caseBytes},
		{"empty is not absent", "C4; F11", caseEmpty},
		{"white space and garbage", "C4; F11", caseGarbage},
		{"forbidden is not absent", "C4; F11", caseForbidden},
		{"read your write from a second client", "C3; A1", caseReadYourWrite},
		{"one creator of many", "C1; P1, P3, F1, F2", caseCreateRace},
		{"one winner of many", "C1; P1, F1, F2, F28", caseSwapRace},
		{"no lost update in a storm", "C1; P1, F28", caseStorm},
		{"no torn read in a storm", "C3; A1", caseTorn},
		{"linearizable history", "C1, C2, C3; A1, P1, F29", caseHistory},
		{"swap: reply lost after apply", "C2, C5; P1, F29", caseReplyLost},
		{"create: reply lost after apply", "C2, C5; P1, P3, F29", caseCreateReplyLost},
		{"swap: reply torn after apply", "C2, C5; P1", caseReplyTorn},
		{"swap: cut before apply", "C2, C5; P1", caseCutBefore},
		{"swap: applied late", "C2, C5; P1", caseHeld},
		{"swap: the store fails", "C2, C5; P1", caseFails},
		{"read: lost, torn, failed", "C4, C5; P1", caseReadFaults},
		{"connection refused", "C2, C5; P7", caseRefused},
		{"deadline", "C6; P7, F13", caseDeadline},
		{"cancelled before", "C2, C6", caseCancelled},
	}
}

// kit is what a case works with. Its methods end the case by a failure.
type kit struct {
	open    func() (Fixture, error)
	closers []func()
}

type failure struct{ err error }

func (k *kit) failf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (k *kit) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func (k *kit) fixture() Fixture {
	f, err := k.open()
	k.must(err)
	if f.Close != nil {
		k.closers = append(k.closers, f.Close)
	}
	return f
}

func (k *kit) client(f Fixture) arbiter.Register {
	r, err := f.Open()
	k.must(err)
	return r
}

func (k *kit) clients(f Fixture, n int) []arbiter.Register {
	rs := make([]arbiter.Register, n)
	for i := range rs {
		rs[i] = k.client(f)
	}
	return rs
}

func (k *kit) disturbed(f Fixture) (arbiter.Register, Faults) {
	r, faults, err := f.disturbed()
	k.must(err)
	// Before the fixture: a server that shuts down waits for connections.
	k.closers = append([]func(){faults.Close}, k.closers...)
	return r, faults
}

// patience is how long a call may take whose end is not the point of the case.
const patience = 20 * time.Second

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func read(r arbiter.Register) ([]byte, arbiter.Version, error) {
	ctx, cancel := limited()
	defer cancel()
	return r.Read(ctx)
}

func swap(r arbiter.Register, prev arbiter.Version, next []byte) error {
	ctx, cancel := limited()
	defer cancel()
	return r.CompareAndSwap(ctx, prev, next)
}

// holds reads, insists on exactly this value, and returns its version.
func (k *kit) holds(when string, r arbiter.Register, want []byte) arbiter.Version {
	got, v, err := read(r)
	if err != nil {
		k.failf("%s: read: %w", when, err)
	}
	if !v.Exists() {
		k.failf("%s: read says absent, want %.60q", when, want)
	}
	if !bytes.Equal(got, want) {
		k.failf("%s: read %.60q (%d bytes), want %.60q (%d bytes)", when, got, len(got), want, len(want))
	}
	return v
}

func (k *kit) absent(when string, r arbiter.Register) {
	got, v, err := read(r)
	if err != nil {
		k.failf("%s: read: %w", when, err)
	}
	if v != arbiter.Absent || got != nil {
		k.failf("%s: read %.60q at %+v, want absent", when, got, v)
	}
}

// swapped insists that a swap was applied.
func (k *kit) swapped(when string, r arbiter.Register, prev arbiter.Version, next []byte) {
	if err := swap(r, prev, next); err != nil {
		k.failf("%s: swap: %w", when, err)
	}
}

// classed insists that err is one of these classes.
func (k *kit) classed(when string, err error, want ...error) {
	if err == nil {
		k.failf("%s: no error, want one of %q", when, want)
	}
	for _, w := range want {
		if arbiter.Class(err) == w {
			return
		}
	}
	k.failf("%s: class %q of error %q, want one of %q", when, arbiter.Class(err), err, want)
}

// record is a valid encoded record with a fresh nonce, at a generation.
func record(generation uint64) []byte {
	b, err := arbiter.Encode(arbiter.Record{
		ID: "conformance", ClusterID: 1, Generation: generation, Nonce: arbiter.NewNonce(),
	})
	if err != nil {
		panic(err) // a constant
	}
	return b
}
