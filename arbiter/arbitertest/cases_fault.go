package arbitertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"twok/arbiter"
)

// settled gives a swap that is still on its way time to arrive.
const settled = 50 * time.Millisecond

// one insists that a call was one request (C5).
func (k *kit) one(when string, faults Faults, op Op, before int) {
	if n := faults.Requests(op) - before; n != 1 {
		k.failf("%s: %d requests for one call, want 1", when, n)
	}
}

// swapUnder makes one swap under a fault and returns its error.
func (k *kit) swapUnder(fault Fault, r arbiter.Register, faults Faults, prev arbiter.Version, next []byte) error {
	before := faults.Requests(Swap)
	faults.Inject(Swap, fault, 1)
	err := swap(r, prev, next)
	k.one(fmt.Sprintf("swap, %v", fault), faults, Swap, before)
	return err
}

func caseReplyLost(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	other := k.client(f)
	first := record(1)
	k.swapped("create", r, arbiter.Absent, first)
	prev := k.holds("first", r, first)
	for g := uint64(2); g < 5; g++ {
		mine := record(g)
		err := k.swapUnder(LoseReply, r, faults, prev, mine)
		k.classed("swap applied, reply lost", err, arbiter.ErrUnknown)
		k.holds("second client after the lost reply", other, mine)
		prev = k.holds("own read after the lost reply", r, mine)
	}
	// A swap that lost, and whose reply is lost, is unknown too.
	theirs := record(50)
	k.swapped("somebody else", other, prev, theirs)
	k.classed("swap refused, reply lost", k.swapUnder(LoseReply, r, faults, prev, record(51)), arbiter.ErrUnknown)
	k.holds("after that", r, theirs)
}

func caseCreateReplyLost(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	mine := record(1)
	k.classed("create applied, reply lost", k.swapUnder(LoseReply, r, faults, arbiter.Absent, mine), arbiter.ErrUnknown)
	k.holds("after the lost reply", r, mine)
}

func caseReplyTorn(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	mine := record(1)
	// Half an answer may already say that it was applied.
	if err := k.swapUnder(TearReply, r, faults, arbiter.Absent, mine); err != nil {
		k.classed("swap applied, reply torn", err, arbiter.ErrUnknown)
	}
	v := k.holds("after the torn reply", r, mine)
	k.swapped("somebody else", k.client(f), v, record(2))
	if err := k.swapUnder(TearReply, r, faults, v, record(3)); arbiter.Class(err) != arbiter.ErrConflict {
		k.classed("swap refused, reply torn", err, arbiter.ErrUnknown)
	}
}

func caseCutBefore(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	other := k.client(f)
	honest := []error{arbiter.ErrUnknown, arbiter.ErrUnavailable}
	k.classed("create, cut before", k.swapUnder(CutBefore, r, faults, arbiter.Absent, record(1)), honest...)
	time.Sleep(settled)
	k.absent("after the cut", other)
	first := record(1)
	k.swapped("create", r, arbiter.Absent, first)
	v := k.holds("first", r, first)
	k.classed("swap, cut before", k.swapUnder(CutBefore, r, faults, v, record(2)), honest...)
	time.Sleep(settled)
	if now := k.holds("after the cut", other, first); now != v {
		k.failf("the version changed from %+v to %+v although nothing arrived", v, now)
	}
	mine := record(3)
	k.swapped("the way is free again", r, v, mine)
	k.holds("then", other, mine)
}

// caseHeld: a swap that the client has given up on arrives afterwards.
func caseHeld(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	other := k.client(f)
	first, mine := record(1), record(2)
	k.swapped("create", r, arbiter.Absent, first)
	v := k.holds("first", r, first)
	err := k.abandoned(faults, Swap, Hold, context.DeadlineExceeded, func(ctx context.Context) error {
		return r.CompareAndSwap(ctx, v, mine)
	})
	k.classed("swap that is held", err, arbiter.ErrUnknown)
	k.holds("before it arrives", other, first)
	faults.Release()
	k.holds("after it arrived", other, mine)
	k.holds("after it arrived, own read", r, mine)
}

func caseFails(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	first := record(1)
	k.swapped("create", r, arbiter.Absent, first)
	v := k.holds("first", r, first)
	k.classed("the store fails", k.swapUnder(Fail, r, faults, v, record(2)), arbiter.ErrUnknown, arbiter.ErrUnavailable)
	time.Sleep(settled)
	k.holds("after that", r, first)
}

func caseReadFaults(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	value := bytes.Repeat([]byte("0123456789"), 300)
	k.swapped("create", r, arbiter.Absent, value)
	for _, fault := range []Fault{CutBefore, LoseReply, TearReply, Fail} {
		before := faults.Requests(Read)
		faults.Inject(Read, fault, 1)
		got, v, err := read(r)
		if err == nil {
			k.failf("read, %v: no error, %d bytes at %+v", fault, len(got), v)
		}
		if got != nil || v.Exists() {
			k.failf("read, %v: %d bytes at %+v beside the error", fault, len(got), v)
		}
		k.classed(fmt.Sprintf("read, %v", fault), err, arbiter.ErrUnavailable, arbiter.ErrUnknown)
		k.one(fmt.Sprintf("read, %v", fault), faults, Read, before)
		k.holds("undisturbed", r, value)
	}
}

// caseRefused: where no connection is made nothing was sent, and saying less
// would make an agent wait for a swap that cannot come.
func caseRefused(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	first := record(1)
	k.swapped("create", r, arbiter.Absent, first)
	v := k.holds("first", r, first)
	faults.Inject(Swap, Refuse, 1)
	k.classed("swap, refused", swap(r, v, record(2)), arbiter.ErrUnavailable)
	_, _, err := read(r)
	k.classed("read, refused", err, arbiter.ErrUnavailable)
	k.holds("after that", k.client(f), first)
}

// ends insists that a call returns at all.
func (k *kit) ends(what string, call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		k.failf("%s: no return %v after its deadline", what, patience)
		return nil
	}
}

// abandoned makes one call whose request meets a fault that never answers, and
// whose context ends by cause once the request is on its way. It insists that the
// call returns with that cause, after one request.
func (k *kit) abandoned(faults Faults, op Op, fault Fault, cause error, call func(context.Context) error) error {
	what := fmt.Sprintf("%v, %v", op, fault)
	for wait := settled; ; wait *= 2 {
		before := faults.Requests(op)
		faults.Inject(op, fault, 1)
		ctx, cancel := context.WithCancel(context.Background())
		if cause == context.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(context.Background(), wait)
		} else {
			go func() {
				for end := time.Now().Add(patience / 2); faults.Requests(op) == before && time.Now().Before(end); {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		err := k.ends(what, func() error { return call(ctx) })
		cancel()
		if faults.Requests(op) == before && cause == context.DeadlineExceeded && wait < patience/4 {
			continue // a busy machine: the deadline passed before the request was sent
		}
		k.one(what, faults, op, before)
		if !errors.Is(err, cause) {
			k.failf("%s: error %q does not wrap %q", what, err, cause)
		}
		return err
	}
}

func caseDeadline(k *kit) {
	f := k.fixture()
	r, faults := k.disturbed(f)
	first := record(1)
	k.swapped("create", r, arbiter.Absent, first)
	v := k.holds("first", r, first)
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled} {
		err := k.abandoned(faults, Swap, Stall, cause, func(ctx context.Context) error {
			return r.CompareAndSwap(ctx, v, record(2))
		})
		k.classed("stalled swap", err, arbiter.ErrUnknown, arbiter.ErrUnavailable)
		err = k.abandoned(faults, Read, Stall, cause, func(ctx context.Context) error {
			_, _, err := r.Read(ctx)
			return err
		})
		k.classed("stalled read", err, arbiter.ErrUnknown, arbiter.ErrUnavailable)
	}
	k.holds("afterwards", r, first)
}

func caseCancelled(k *kit) {
	f := k.fixture()
	r := k.client(f)
	first := record(1)
	k.swapped("create", r, arbiter.Absent, first)
	v := k.holds("first", r, first)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k.classed("swap after the end", r.CompareAndSwap(ctx, v, record(2)), arbiter.ErrUnavailable, arbiter.ErrUnknown)
	if _, got, err := r.Read(ctx); err == nil || got.Exists() {
		k.failf("read after the end: version %+v, error %v", got, err)
	}
	time.Sleep(settled)
	k.holds("afterwards", r, first)
}
