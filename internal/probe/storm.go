package probe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"twok/arbiter"
)

// stormTime bounds the storm on a store that is far away, for up to ten rounds.
const stormTime = 2 * time.Second

// storm is the last part: all clients read and swap as fast as they can. A store that
// checks and writes in two steps takes two swaps from one version here sooner than when
// all start from one version at once.
type storm struct {
	*prober
	mu       sync.Mutex
	applied  map[arbiter.Version]time.Time // from here a swap was acknowledged, and when
	refused  map[string]bool               // values of swaps that were answered "changed"
	failures int                           // calls without an answer since the last swap that had one
	bad      *Problem
	err      error
	stop     context.CancelFunc
}

func (p *prober) storm(ctx context.Context) (*Problem, error) {
	until, cancel := context.WithTimeout(ctx, max(stormTime, stormTime/10*time.Duration(p.cfg.Rounds)))
	defer cancel()
	p.storming = true
	s := &storm{prober: p, applied: map[arbiter.Version]time.Time{}, refused: map[string]bool{}, stop: cancel}
	var g sync.WaitGroup
	for i := range p.cfg.Clients {
		g.Go(func() {
			// A call that has begun ends by itself: its outcome is wanted.
			for until.Err() == nil {
				s.once(ctx, i)
			}
		})
	}
	g.Wait()
	p.stormed = len(s.applied)
	if s.bad == nil && s.err == nil {
		_, _, s.bad, s.err = s.read(ctx, p.cfg.Clients)
	}
	if s.bad != nil {
		return s.bad, nil
	}
	return nil, s.err
}

// once is one read and one swap by client i.
func (s *storm) once(ctx context.Context, i int) {
	_, v, bad, err := s.read(ctx, i)
	if bad != nil || err != nil {
		s.end(bad, err)
		return
	}
	s.mu.Lock()
	next := s.next(i)
	s.mu.Unlock()
	err = s.swap(ctx, s.clients[i], v, next)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c := arbiter.Class(err); {
	case c == nil:
		s.failures = 0
		if _, twice := s.applied[v]; twice {
			s.endLocked(problem(TwoWinners, "of %d clients that swap as fast as they can, two were told that they won from one version", s.cfg.Clients), nil)
		}
		s.applied[v] = time.Now()
		if len(s.applied) >= s.cfg.Storm {
			s.stop()
		}
	case c == arbiter.ErrConflict:
		s.failures = 0
		s.refused[string(next)] = true
	default:
		s.endLocked(nil, err)
	}
}

// read reads by client i and judges what it shows.
func (s *storm) read(ctx context.Context, i int) ([]byte, arbiter.Version, *Problem, error) {
	at := time.Now()
	b, v, err := s.prober.read(ctx, s.clients[i])
	if err != nil {
		return nil, v, nil, err
	}
	got, whole := decode(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	replaced, known := s.applied[v]
	switch {
	case !v.Exists():
		return nil, v, problem(Vanishes, "a read found no value while one was being replaced"), nil
	case !whole:
		return nil, v, problem(TornRead, "a read during a write gave %d bytes that nobody wrote", len(b)), nil
	case got.Run != s.cfg.RunID:
		return nil, v, nil, ErrBusy
	case s.refused[string(b)]:
		return nil, v, problem(DeniesWin, "a swap was answered with \"changed\", and is what a read gave later"), nil
	case known && replaced.Before(at):
		return nil, v, problem(StaleRead, "a read gave value %d after a client had been told that it is replaced", got.Turn), nil
	}
	return b, v, nil, nil
}

// end ends the storm, unless err is one that passes.
func (s *storm) end(bad *Problem, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(bad, err)
}

func (s *storm) endLocked(bad *Problem, err error) {
	if c := arbiter.Class(err); bad == nil && (c == arbiter.ErrUnknown || c == arbiter.ErrUnavailable) {
		if s.failures++; s.failures <= maxRepeats {
			return
		}
		err = fmt.Errorf("%w: %d calls in a row had no answer: %w", ErrInconclusive, s.failures, err)
	}
	if s.bad == nil {
		s.bad = bad
	}
	if s.err == nil {
		s.err = err
	}
	s.stop()
}
