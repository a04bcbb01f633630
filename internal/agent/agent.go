package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// Agent is one member's agent.
type Agent struct {
	cfg    Config
	log    *zap.Logger
	dialer *etcdapi.Dialer
	mem    *memory
	watch  *watcher
	trace  *tracer
	echo   echoes
	post   postMortems
	checks checks
	dir    fs.FileInfo // the data directory that is locked

	events chan failover.Event
	status atomic.Pointer[Status]
	alive  atomic.Pointer[time.Time] // the loop's last turn; nil: it does not run

	// The section belongs to the site action that runs; there is one at a time.
	sec     section
	compFor time.Duration // for the next comparison; zero: compareFirst
}

// section is what is held between Stop and Release.
type section struct {
	lock   *member.Lock
	log    *walsurgery.Log
	walErr error // why log is nil although the locks are held
	space  error // not enough room to operate
}

// A comparison has compareFirst, or twice what the last one had if a hash did not end in it, up to compareMax.
const (
	compareFirst = 2 * time.Second
	compareMax   = 5 * time.Minute
)

// shutdownGrace is how long an open section may take to end when the agent is
// told to stop.
const shutdownGrace = 20 * time.Second

// maxTicks is how many ticks one tick event may stand for. A busy machine delivers
// ticks late; a machine that was suspended has not watched etcd in the meantime, so that
// time does not count.
const maxTicks = 5

// stuckAfter is how long the loop's turn may take before status says so: it waits for nothing but the files of the data directory
// and whoever reads the log.
var stuckAfter = 10 * time.Second

// New checks the configuration and prepares an agent; Run runs it.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.Default()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg, log: cfg.Logger,
		dialer: &etcdapi.Dialer{ClientTLS: cfg.ClientTLS, PeerTLS: cfg.PeerTLS, ClientRoots: cfg.ClientRoots, PeerRoots: cfg.PeerRoots},
		events: make(chan failover.Event, 8),
		trace:  newTracer(cfg.Trace),
		checks: checks{phase: make(chan struct{}, 1)},
	}
	a.status.Store(&Status{Role: failover.Starting.String(), Unprotected: true, Reason: "starting"})
	return a, nil
}

// Run is the agent's life. It returns when ctx ends, after an open section and,
// in supervise mode, etcd have ended. An error before that: another agent has the
// data directory, or its memory cannot be read.
func (a *Agent) Run(ctx context.Context) (err error) {
	if err := a.dataDir(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	lock, err := member.AgentLock(a.cfg.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if a.dir, err = os.Stat(a.cfg.DataDir); err != nil {
		return fmt.Errorf("the data directory: %w", err)
	}
	if err := evictStrays(ctx, a.cfg.DataDir); err != nil {
		a.log.Warn("an etcd on replaced data", zap.Error(err))
	}
	mem, warn, err := loadMemory(a.cfg.DataDir)
	if err != nil {
		return err
	}
	if warn != nil {
		a.log.Warn("memory set aside", zap.Error(warn))
	}
	a.mem = mem
	if a.watch, err = newWatcher(a.cfg, a.dialer, mem); err != nil {
		return err
	}
	a.holdBlank()

	// etcd and the watcher outlive ctx until the loop has ended.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var g sync.WaitGroup
	etcdEnd := make(chan error, 1)
	g.Go(func() { etcdEnd <- a.cfg.Etcd.Run(life) })
	g.Go(func() { a.watch.run(life) })
	g.Go(func() { a.runChecks(life) })
	if a.cfg.Scratch != nil {
		a.watch.trust(a.storeAtStart())
		g.Go(func() { a.probeStore(life) })
	}
	a.loop(ctx, life)
	a.post.end(a.cfg)
	end()
	g.Wait()
	return errors.Join(<-etcdEnd, a.trace.err())
}

// dataDir makes the data directory for an etcd of our own, as etcd would. In
// signal mode it waits for it: the directory has to belong to etcd's user.
func (a *Agent) dataDir(ctx context.Context) error {
	if a.cfg.Etcd.Process().Mode == etcdproc.ModeSupervise {
		return os.MkdirAll(a.cfg.DataDir, 0o700)
	}
	for told := false; ; told = true {
		st, err := os.Stat(a.cfg.DataDir)
		switch {
		case err == nil && !st.IsDir():
			return fmt.Errorf("the data directory: %s is not a directory: give etcd's own --data-dir", a.cfg.DataDir)
		case err == nil:
			return nil
		case !errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("the data directory: %w", err)
		case !told:
			a.log.Warn("waiting for etcd's data directory", zap.String("data-dir", a.cfg.DataDir))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(a.cfg.Tick):
		}
	}
}

// loop owns the core's state.
func (a *Agent) loop(ctx, life context.Context) {
	s := failover.New(a.cfg.Params(), a.mem.own())
	a.trace.step(startLine(s, a.mem.seen(), false))
	defer a.trace.flush()
	t := time.NewTicker(a.cfg.Tick)
	defer t.Stop()
	ticks := t.C
	stop := ctx.Done()
	var deadline <-chan time.Time
	out := 0 // actions that are out
	work, giveUp := context.WithCancel(life)
	defer giveUp()
	last := time.Now()
	defer a.alive.Store(nil)
	for {
		if turn := time.Now(); stop != nil {
			a.alive.Store(&turn)
		}
		var e failover.Event
		select {
		case <-stop:
			stop, ticks = nil, nil
			a.alive.Store(nil) // no ticks any more
			deadline = time.After(shutdownGrace)
			a.log.Info("stopping", zap.Stringer("phase", s.Phase))
		case <-deadline:
			a.log.Error("an operation did not end in time; stopping all the same", zap.Stringer("phase", s.Phase))
			return
		case <-ticks:
			now := time.Now()
			n := uint32(min(max((now.Sub(last)+a.cfg.Tick/2)/a.cfg.Tick, 1), maxTicks))
			last = last.Add(time.Duration(n) * a.cfg.Tick)
			if now.Sub(last) > a.cfg.Tick {
				last = now
			}
			e = failover.Event{Kind: failover.Tick, Ticks: n, Obs: a.watch.take(s.Whole())}
		case e = <-a.events:
			out--
		}
		if e.Kind != failover.NoEvent {
			e.Stamp = failover.Stamp{Nonce: arbiter.NewNonce(), Now: time.Now().UnixMilli()}
			e.RecordID, e.Random, e.FreshID = arbiter.NewID(), rand.Uint32(), rand.Uint64()|1
			next, actions := failover.Step(s, e)
			line := lineOf(s, e, next, actions)
			if stop == nil && !inSection(next) {
				// Stopping: a section is completed, nothing new is begun.
				actions, line.Actions, line.Dropped = nil, []string{}, true
			}
			a.note(s, e, next, line)
			s = next
			for _, act := range actions {
				out++
				own := s.Mine
				go func() { a.events <- a.execute(work, act, own) }()
			}
		}
		if stop == nil && (out == 0 || !inSection(s)) {
			giveUp() // a comparison, say, may take minutes
			a.abandon(out)
			return
		}
	}
}

// inSection says whether etcd is, or is about to be, stopped by this agent.
func inSection(s failover.State) bool {
	switch s.Phase {
	case failover.Stopping, failover.Deciding, failover.Claiming, failover.Appending, failover.Rechecking, failover.Releasing, failover.Preparing:
		return true
	}
	return s.Locked
}

// abandon waits for what is out, and gives back what a fenced member held: the
// agent's end is the operator's decision.
func (a *Agent) abandon(out int) {
	end := time.After(shutdownGrace)
	for ; out > 0; out-- {
		select {
		case <-a.events:
		case <-end:
			a.log.Warn("operations are still out", zap.Int("count", out))
			return
		}
	}
	if err := a.unlock(); err != nil {
		a.log.Warn("the locks", zap.Error(err))
	}
}

// note logs, traces and publishes a step.
func (a *Agent) note(s failover.State, e failover.Event, next failover.State, line Line) {
	a.trace.step(line)
	if s.Phase != next.Phase || (s.Why != next.Why && next.Phase != failover.Lost && next.Phase != failover.CatchingUp) {
		a.log.Info("decision", zap.Stringer("from", s.Phase), zap.Stringer("event", e.Kind), zap.Stringer("to", next.Phase),
			zap.Stringer("reason", next.Why), zap.Strings("actions", line.Actions), zap.Uint64("generation", line.Generation))
	}
	st := statusOf(next, a.cfg.ArbiterName, a.cfg.Etcd.Process())
	a.checks.onto(&st)
	old := a.status.Swap(&st)
	if s.Phase != next.Phase {
		a.checks.wake()
	}
	if old.differs(st) {
		f := a.log.Info
		if st.Unprotected && !old.Unprotected && s.Phase != failover.Starting {
			f = a.log.Warn
		}
		f("status", zap.String("role", st.Role), zap.Bool("armed", st.Armed), zap.Bool("unprotected", st.Unprotected),
			zap.String("reason", st.Reason), zap.String("remedy", st.Remedy), zap.Uint64("generation", st.Generation))
	}
}

func hex(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", id)
}
