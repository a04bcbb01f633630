package arbitertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"twok/arbiter"
)

// Storm is a log of swaps by which a killed or cut store is judged: the value is
// the list of all names ever appended, one a line.
type Storm struct {
	acked map[int]string  // by place in the list
	doubt map[string]bool // may have been applied
	round int
}

// Acked and Doubt count what was acknowledged and what is not known.
func (s *Storm) Acked() int { return len(s.acked) }
func (s *Storm) Doubt() int { return len(s.doubt) }

// Run lets each client append names until stop says so, which is told how many
// were acknowledged in this run, and is never called twice at a time.
func (s *Storm) Run(ctx context.Context, clients []arbiter.Register, stop func(acked int) bool) error {
	if s.acked == nil {
		s.acked, s.doubt = map[int]string{}, map[string]bool{}
	}
	s.round++
	before := len(s.acked)
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for w, r := range clients {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				mu.Lock()
				done := stop(len(s.acked) - before)
				mu.Unlock()
				if done {
					return
				}
				value, v, err := r.Read(ctx)
				if err != nil {
					continue
				}
				name := fmt.Sprintf("r%d-%d-%d", s.round, w, i)
				err = r.CompareAndSwap(ctx, v, append(value, name+"\n"...))
				mu.Lock()
				switch arbiter.Class(err) {
				case nil:
					place := strings.Count(string(value), "\n")
					if old, ok := s.acked[place]; ok {
						errs = append(errs, fmt.Errorf("place %d was acknowledged to %s and to %s", place, old, name))
					}
					s.acked[place] = name
				case arbiter.ErrUnknown:
					s.doubt[name] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// Check insists that the value holds every acknowledged name at its place and
// nothing that was refused.
func (s *Storm) Check(value []byte) error {
	var errs []error
	names := strings.Fields(string(value))
	for place, name := range s.acked {
		if place >= len(names) || names[place] != name {
			errs = append(errs, fmt.Errorf("place %d was acknowledged to %s and is not its", place, name))
		}
	}
	for place, name := range names {
		if s.acked[place] != name && !s.doubt[name] {
			errs = append(errs, fmt.Errorf("%s is at place %d and was neither acknowledged nor in doubt", name, place))
		}
	}
	return errors.Join(errs...)
}
