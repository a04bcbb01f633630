package arbitertest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"twok/arbiter"
)

// What a history consists of. A value is its number; 0 is absent.
type historyInput struct {
	swap       bool
	prev, next int
}

type historyOutput struct {
	class error // of a swap; a failed read is not in the history
	value int   // of a read
}

// historyModel is a register: state is the number of its value. An unknown swap
// may have been applied or not, at any time from its call on.
var historyModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{0} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(int), input.(historyInput), output.(historyOutput)
		is := func(ok bool, next ...any) []any {
			if ok {
				return next
			}
			return nil
		}
		switch {
		case !in.swap:
			return is(s == out.value, s)
		case out.class == nil:
			return is(s == in.prev, in.next)
		case out.class == arbiter.ErrConflict:
			return is(s != in.prev, s)
		case s == in.prev: // unknown
			return []any{s, in.next}
		}
		return []any{s}
	},
}).ToModel()

// caseHistory: what many clients saw, some of them over a bad link, has one order
// in which a register would have answered so.
func caseHistory(k *kit) {
	const each = 40
	f := k.fixture()
	type client struct {
		r      arbiter.Register
		faults Faults
	}
	var clients []client
	for i := range racers - 2 {
		c := client{r: k.client(f)}
		if i%3 == 2 && f.Cannot[CanDisturb] == "" {
			c.r, c.faults = k.disturbed(f)
		}
		clients = append(clients, c)
	}
	start := time.Now()
	var mu sync.Mutex
	var ops []porcupine.Operation
	var bad error
	last := 0
	var wg sync.WaitGroup
	for id, c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(id), uint64(start.UnixNano())))
			known, v := 0, arbiter.Absent
			for range each {
				op := porcupine.Operation{ClientId: id}
				mu.Lock()
				last++
				in := historyInput{prev: known, next: last, swap: rng.IntN(2) == 0}
				stop := bad != nil
				mu.Unlock()
				if stop {
					return
				}
				if c.faults != nil && rng.IntN(4) == 0 {
					c.faults.Inject(Swap, [...]Fault{LoseReply, CutBefore}[rng.IntN(2)], 1)
				}
				op.Call = int64(time.Since(start))
				var out historyOutput
				if in.swap {
					out.class = arbiter.Class(swap(c.r, v, []byte(strconv.Itoa(in.next))))
				} else {
					value, now, err := read(c.r)
					if err != nil {
						continue
					}
					known, v = 0, now
					if now.Exists() {
						if known, err = strconv.Atoi(string(value)); err != nil {
							mu.Lock()
							bad = fmt.Errorf("read %.60q in place of a number", value)
							mu.Unlock()
							return
						}
					}
					out.value = known
				}
				op.Input, op.Output, op.Return = in, out, int64(time.Since(start))
				switch out.class {
				case nil, arbiter.ErrConflict:
				case arbiter.ErrUnknown:
					op.Return = int64(time.Hour) // it may be applied later
				default:
					continue // not applied, and never will be
				}
				mu.Lock()
				ops = append(ops, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	k.must(bad)
	// A last read pins what became of the unknown ones.
	value, v, err := read(clients[0].r)
	k.must(err)
	end := historyOutput{}
	if v.Exists() {
		if end.value, err = strconv.Atoi(string(value)); err != nil {
			k.failf("read %.60q in place of a number", value)
		}
	}
	now := int64(time.Since(start))
	ops = append(ops, porcupine.Operation{ClientId: len(clients), Input: historyInput{}, Output: end, Call: now, Return: now + 1})
	if got := porcupine.CheckOperationsTimeout(historyModel, ops, patience); got != porcupine.Ok {
		k.failf("the history of %d operations by %d clients is not that of one register: %v", len(ops), len(clients), got)
	}
}
