package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// supervisor is supervise mode. watcher.mu guards everything below.
type supervisor struct {
	*watcher
	started atomic.Bool
	wake    chan struct{} // Run looks again

	held      bool
	gated     bool // held by mayStart's no, which is asked again
	over      bool // Run's ctx has ended: nothing is started any more
	cur       *child
	backoff   time.Duration
	notBefore time.Time
	mayStart  func() bool // nil: always
	flags     *Flags      // of the last etcd that was seen to have the data open
}

// child is the process that Run attends to.
type child struct {
	h      *handle
	cmd    *exec.Cmd     // nil: adopted
	since  time.Time     // monotonic
	wanted bool          // its end was asked for; under watcher.mu
	gone   chan struct{} // closed when it is reaped (adopted: gone) and cur is nil
}

// MayStart: see Gated.
func (s *supervisor) MayStart(f func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mayStart = f
}

func (s *supervisor) Run(ctx context.Context) error {
	if !s.started.CompareAndSwap(false, true) {
		return errors.New("etcdproc: Run was called before")
	}
	if len(s.cfg.Forward) > 0 {
		sigs := make(chan os.Signal, 8)
		signal.Notify(sigs, s.cfg.Forward...)
		done := make(chan struct{})
		defer close(done)
		defer signal.Stop(sigs)
		go s.forward(sigs, done)
	}
	for ctx.Err() == nil {
		c, wait := s.next()
		if c != nil {
			s.attend(ctx, c)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.wake:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return s.shutdown()
}

// next starts or adopts etcd if it is time to; else it says how long to wait.
func (s *supervisor) next() (*child, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != nil {
		return s.cur, 0
	}
	if s.held && !s.gated {
		return nil, time.Hour // Start wakes
	}
	if d := time.Until(s.notBefore); d > 0 {
		return nil, d
	}
	ps, err := s.find.scan()
	if err != nil {
		// Should one run after all, ours waits for its lock.
		s.log.Warn("cannot look for a running etcd before starting one", zap.Error(err))
	}
	for _, p := range ps {
		if c, ok := s.adopt(p); ok {
			return c, 0
		}
	}
	if s.mayStart != nil {
		if s.gated = !s.mayStart(); s.gated {
			s.held = true
			return nil, s.cfg.WatchEvery
		}
		s.held = false
	}
	c, err := s.start()
	if err != nil {
		s.p.LastExit = err.Error()
		d := s.punish(0)
		s.log.Error("etcd could not be started", zap.Error(err), zap.Duration("retry_in", d))
		return nil, d
	}
	return c, 0
}

func (s *supervisor) start() (*child, error) {
	cmd := exec.Command(s.cfg.Argv[0], s.cfg.Argv[1:]...)
	cmd.Env = s.cfg.Env
	cmd.Stdout, cmd.Stderr = s.cfg.Stdout, s.cfg.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Only for writers that are no files: a grandchild may keep the pipe open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	// It cannot be reaped before Wait, so these find it, dead or alive.
	_, id, err := stat(cmd.Process.Pid)
	var h *handle
	if err == nil {
		h, err = openHandle(id)
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, fmt.Errorf("start etcd: watch the new process: %w", err)
	}
	c := &child{h: h, cmd: cmd, since: time.Now(), gone: make(chan struct{})}
	s.begin(c, found{id: id})
	s.log.Info("started etcd", zap.Int("pid", id.PID), zap.Uint64("starts", s.p.Starts))
	go func() {
		err := cmd.Wait()
		exit := cmd.ProcessState.String()
		if err != nil && cmd.ProcessState.Success() {
			exit = err.Error() // the copying of its output
		}
		s.ended(c, exit)
	}()
	return c, nil
}

func (s *supervisor) adopt(p found) (*child, bool) {
	h, err := openHandle(p.id)
	if err != nil {
		return nil, false // gone meanwhile
	}
	c := &child{h: h, since: time.Now(), gone: make(chan struct{})}
	s.begin(c, p)
	s.log.Info("adopted the etcd that runs on this data directory", zap.Int("pid", p.id.PID), zap.Uint64("starts", s.p.Starts))
	go func() {
		h.wait(context.Background())
		s.ended(c, fmt.Sprintf("process %d ended (adopted: how is not known)", p.id.PID))
	}()
	return c, true
}

// begin makes c the current process; s.mu is held.
func (s *supervisor) begin(c *child, p found) {
	s.cur = c
	s.known = p
	if s.p.StartID != p.id {
		s.p.Starts++
	}
	s.p.Running, s.p.StartID, s.p.Adopted = true, p.id, c.cmd == nil
	s.p.Waiting, s.p.Paused, s.p.Err = p.waiting, p.paused, nil
}

// ended is called once for each child, when it is reaped.
func (s *supervisor) ended(c *child, exit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur = nil
	s.p.Running, s.p.Waiting, s.p.Paused, s.p.Adopted = false, false, false, false
	s.p.LastExit = exit
	ran := time.Since(c.since)
	var d time.Duration
	if c.wanted {
		s.notBefore = time.Time{}
	} else {
		d = s.punish(ran)
	}
	s.log.Info("etcd ended", zap.Int("pid", c.h.id.PID), zap.String("exit", exit), zap.Duration("ran", ran),
		zap.Bool("asked_for", c.wanted), zap.Duration("restart_in", d))
	c.h.close()
	close(c.gone)
}

// punish sets the wait before the next start after a run of this length; s.mu is held.
func (s *supervisor) punish(ran time.Duration) time.Duration {
	switch {
	case s.backoff == 0 || ran >= s.cfg.BackoffReset:
		s.backoff = s.cfg.BackoffMin
	default:
		s.backoff = min(2*s.backoff, s.cfg.BackoffMax)
	}
	s.notBefore = time.Now().Add(s.backoff)
	return s.backoff
}

// attend returns when c is gone or ctx ended.
func (s *supervisor) attend(ctx context.Context, c *child) {
	t := time.NewTicker(s.cfg.WatchEvery)
	defer t.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-t.C:
			s.yield(ctx, c)
		}
	}
}

// yield ends our own etcd when it waits for one that somebody else started (an orphan that had not
// opened the database yet when we looked): that one is adopted then.
func (s *supervisor) yield(ctx context.Context, c *child) {
	if c.cmd == nil {
		return
	}
	if p := s.Process(); !p.Running || !p.Waiting || p.StartID != c.h.id {
		return
	}
	ps, err := s.find.scan()
	if err != nil {
		return
	}
	for _, p := range ps {
		if p.id != c.h.id && !p.waiting {
			s.log.Info("another etcd has the database, ending ours which waits for it",
				zap.Int("other_pid", p.id.PID), zap.Int("pid", c.h.id.PID))
			s.mu.Lock()
			c.wanted = true
			s.mu.Unlock()
			if err := s.finish(ctx, c, s.cfg.Grace); err != nil {
				s.log.Warn("ending our etcd", zap.Error(err))
			}
			return
		}
	}
}

// finish runs the ladder on c and waits until it is reaped.
func (s *supervisor) finish(ctx context.Context, c *child, grace time.Duration) error {
	h, err := openHandle(c.h.id) // c.h is closed by ended
	if err == nil {
		defer h.close()
		if err := h.end(ctx, grace, s.log); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop etcd, process %d: wait for its end: %w: %w", c.h.id.PID, ErrStuck, context.Cause(ctx))
	}
}

func (s *supervisor) shutdown() error {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	// After SIGKILL only a disk can delay it.
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.ShutdownGrace+10*time.Second)
	defer cancel()
	return s.endNow(ctx, s.cfg.ShutdownGrace)
}

func (s *supervisor) forward(sigs <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case sig := <-sigs:
			n, ok := sig.(syscall.Signal)
			s.mu.Lock()
			c := s.cur
			var err error
			if ok && c != nil {
				err = c.h.signal(unix.Signal(n))
			}
			s.mu.Unlock()
			s.log.Info("forwarded a signal to etcd", zap.Stringer("signal", sig), zap.Bool("running", c != nil), zap.Error(err))
		}
	}
}

func (s *supervisor) Process() Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look(false)
	return s.p
}

// look brings s.p up to date; s.mu is held.
func (s *supervisor) look(fresh bool) {
	s.p.Held = s.held
	if s.cur == nil {
		s.observe(fresh)
		return
	}
	p := s.known
	p.id = s.cur.h.id
	if now, ok := s.find.verify(p); ok {
		s.known = now
		s.p.Waiting, s.p.Paused = now.waiting, now.paused
	} else if state, id, err := stat(p.id.PID); err == nil && id == p.id {
		// It has not opened the database yet.
		s.p.Waiting, s.p.Paused = false, state == 'T' || state == 't'
	}
}

// Stop: see Etcd.
func (s *supervisor) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.held, s.gated = true, false
	s.mu.Unlock()
	return s.endNow(ctx, s.cfg.Grace)
}

// endNow ends the current process and every other etcd of the data directory: the command
// may be a wrapper that does not pass SIGTERM on.
func (s *supervisor) endNow(ctx context.Context, grace time.Duration) error {
	s.mu.Lock()
	c := s.cur
	if c != nil {
		c.wanted = true
	}
	s.mu.Unlock()
	ps, err := s.find.scan()
	if err != nil {
		err = fmt.Errorf("stop etcd: %w", err)
	}
	var others []found
	for _, p := range ps {
		if c == nil || p.id != c.h.id {
			others = append(others, p)
		}
	}
	if c != nil || len(others) > 0 {
		s.log.Info("stopping etcd", zap.Bool("child", c != nil), zap.Ints("others", pids(others)))
	}
	ended := make(chan error, 1)
	go func() { ended <- endAll(ctx, ids(others), grace, s.log) }()
	if c != nil {
		err = errors.Join(err, s.finish(ctx, c, grace))
	}
	return errors.Join(err, <-ended)
}

// Start: see Etcd.
func (s *supervisor) Start(context.Context) error {
	s.mu.Lock()
	s.held, s.gated = false, false
	s.notBefore = time.Time{}
	over := s.over
	s.mu.Unlock()
	if over {
		return errors.New("start etcd: the supervisor has ended")
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

// Restart: see Etcd.
func (s *supervisor) Restart(ctx context.Context) error {
	return errors.Join(s.endNow(ctx, s.cfg.Grace), s.Start(ctx))
}
