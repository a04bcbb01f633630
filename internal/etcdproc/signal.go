package etcdproc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// watcher knows the etcd of a data directory by looking, whoever started it.
type watcher struct {
	cfg   Config
	log   *zap.Logger
	find  *finder
	vers  versions
	reads flagReads

	mu      sync.Mutex
	p       Process
	known   found     // valid while p.Running
	scanned time.Time // the last full search
}

func newWatcher(cfg Config, mode Mode) (*watcher, error) {
	f, err := newFinder(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	return &watcher{cfg: cfg, log: cfg.Logger, find: f, p: Process{Mode: mode}}, nil
}

// observe brings w.p up to date; w.mu is held. With fresh it searches in any case
// when no process is known.
func (w *watcher) observe(fresh bool) {
	if w.p.Running {
		if now, ok := w.find.verify(w.known); ok {
			w.see(now)
			return
		}
		w.lost()
	} else if !fresh && time.Since(w.scanned) < w.cfg.ScanEvery {
		return
	}
	ps, err := w.find.scan()
	w.scanned = time.Now()
	w.p.Err = err
	w.p.Others = 0
	if len(ps) == 0 {
		return
	}
	w.p.Others = len(ps) - 1
	w.see(primary(ps))
}

// primary is the one that has the lock, else the one that started first.
func primary(ps []found) found {
	best := ps[0]
	for _, p := range ps[1:] {
		if best.waiting && !p.waiting || best.waiting == p.waiting && p.id.Ticks < best.id.Ticks {
			best = p
		}
	}
	return best
}

func (w *watcher) see(p found) {
	if !w.p.Running && w.p.StartID != p.id {
		w.p.Starts++
		w.log.Info("found etcd", zap.Int("pid", p.id.PID), zap.Bool("waits_for_lock", p.waiting))
	}
	w.known = p
	w.p.Running, w.p.StartID, w.p.Waiting, w.p.Paused, w.p.Err = true, p.id, p.waiting, p.paused, nil
}

func (w *watcher) lost() {
	w.p.Running, w.p.Waiting, w.p.Paused = false, false, false
	w.p.LastExit = fmt.Sprintf("process %d ended (not a child: how is not known)", w.p.PID)
	w.log.Info("etcd ended", zap.Int("pid", w.p.PID))
}

// signalled is signal mode.
type signalled struct{ *watcher }

func (s *signalled) Run(ctx context.Context) error {
	t := time.NewTicker(s.cfg.WatchEvery)
	defer t.Stop()
	var last StartID
	for {
		if p := s.Process(); p.Running && p.StartID != last {
			// A crash-looping etcd may be gone when somebody asks for its version.
			s.vers.remember(ctx, exeOf(p.PID))
			last = p.StartID
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (s *signalled) Process() Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe(false)
	return s.p
}

func (s *signalled) Stop(ctx context.Context) error {
	ps, err := s.find.scan()
	if err != nil {
		return fmt.Errorf("stop etcd: %w", err)
	}
	if len(ps) > 0 {
		s.log.Info("stopping etcd", zap.Any("pids", pids(ps)))
	}
	return endAll(ctx, ids(ps), s.cfg.Grace, s.log)
}

func (s *signalled) Start(context.Context) error { return nil }

func (s *signalled) Restart(ctx context.Context) error { return s.Stop(ctx) }

func (s *signalled) Version(ctx context.Context) (string, error) {
	s.mu.Lock()
	s.observe(true)
	p := s.p
	s.mu.Unlock()
	if !p.Running {
		if v := s.vers.last(); v != "" {
			return v, nil
		}
		if p.Err != nil {
			return "", fmt.Errorf("version of etcd: %w", p.Err)
		}
		return "", fmt.Errorf("version of etcd: %w", ErrNotRunning)
	}
	return s.vers.of(ctx, exeOf(p.PID))
}

func (s *signalled) Flags(ctx context.Context) (Flags, error) {
	s.mu.Lock()
	s.observe(true)
	p := s.p
	s.mu.Unlock()
	if p.Err != nil {
		return Flags{}, fmt.Errorf("flags of etcd: %w", p.Err)
	}
	if !p.Running {
		return Flags{}, fmt.Errorf("flags of etcd: %w", ErrNotRunning)
	}
	return s.reads.within(ctx, p.StartID)
}

func pids(ps []found) []int {
	s := make([]int, len(ps))
	for i, p := range ps {
		s[i] = p.id.PID
	}
	return s
}
