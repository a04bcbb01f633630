package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.uber.org/zap"
)

var (
	// ErrNotRunning: there is no etcd on this data directory to ask.
	ErrNotRunning = errors.New("no etcd runs on this data directory")
	// ErrNoAccess: processes could not be looked into, one of them may be etcd.
	// Remedy: run the agent as etcd's user or with CAP_SYS_PTRACE, in etcd's or the host's PID namespace.
	ErrNoAccess = errors.New("not allowed to look into other processes (run as etcd's user or with CAP_SYS_PTRACE, in a shared or the host's PID namespace)")
	// ErrStuck: a process did not end, not even by SIGKILL, before the context did
	// (waiting for a disk, usually). It may end at any time later.
	ErrStuck = errors.New("the process does not end")
)

// Mode says who starts etcd.
type Mode string

const (
	ModeSignal    Mode = "signal"
	ModeSupervise Mode = "supervise"
)

// Etcd is the etcd of one data directory. Safe for concurrent use; Run at most once.
type Etcd interface {
	// Run is the life of the agent's etcd; it returns after ctx ended. Supervise: starts
	// and restarts etcd; at the end SIGTERM, after ShutdownGrace SIGKILL; returns when etcd is gone, or
	// ErrStuck. Signal: watches, and leaves etcd running (F4).
	Run(ctx context.Context) error

	// Stop ends every etcd of the data directory that there is at the call: SIGTERM, SIGKILL
	// after Grace. nil when all are gone (invariant 1), also when there was none. Supervise:
	// nothing is started until Start or Restart, also after an error. Signal: somebody may have started
	// another one by now; queue the lock before (member.Queue), and call Stop again if need be.
	// ErrStuck when ctx ended first, ErrNoAccess when the one that has the database cannot be seen.
	Stop(ctx context.Context) error

	// Start lets etcd run again, at once and without backoff. It does not wait for it.
	// Signal: does nothing.
	Start(ctx context.Context) error

	// Restart ends etcd as Stop does, without holding it: supervise starts it again at once (a hold by
	// Stop is lifted), signal leaves that to whoever runs it. nil when the old one is gone.
	Restart(ctx context.Context) error

	// Process says what is known now. It is cheap enough to be called a few times a second: a known
	// process is verified, a search of all processes happens at most every ScanEvery.
	Process() Process

	// Version is the version of the etcd binary, such as "3.6.16". Supervise: of argv[0],
	// what the next start will run; if that is a wrapper, of the etcd that it started, or of the last one. Signal: of the running process's
	// executable; when none is found, the last one seen, else ErrNotRunning. It runs the binary
	// with --version, once for each file seen; never a script, which may start etcd whatever it is asked.
	Version(ctx context.Context) (string, error)

	// Flags is what the running etcd was told: the process that has the data open, which a wrapper may have started. Supervise: without
	// one, what the next start will be told; of a wrapper, what its last etcd was told. Signal: without one, ErrNotRunning.
	Flags(ctx context.Context) (Flags, error)
}

// Commander is an Etcd that starts etcd itself: supervise mode.
type Commander interface {
	// Command is what the next start will be told, whatever runs now. DataDir is empty where the command does not
	// say it: a wrapper may know it. An error: the program cannot be found or executed, or what it is told cannot be read.
	Command() (Flags, error)
}

// Gated is an Etcd that starts etcd itself: supervise mode.
type Gated interface {
	// MayStart sets what is asked right before each start, not before an adoption. False: etcd is held, and f is asked again every
	// WatchEvery, and at Start; not after Stop. f must not call the Etcd.
	MayStart(f func() bool)
}

// StartID tells two starts of etcd apart, also across restarts of the agent (until
// the machine boots). The zero value names no start.
type StartID struct {
	PID   int
	Ticks uint64 // start time in clock ticks since boot, /proc/PID/stat field 22
}

// Process is the state of etcd's process.
type Process struct {
	Mode    Mode
	Running bool
	StartID // of the running process, else of the last one seen
	// Starts counts the starts seen by this value: in supervise mode its own and
	// adopted ones, in signal mode each new process found.
	Starts uint64
	// LastExit is how the last one ended ("exit status 1", "signal: killed"), for people.
	LastExit string
	// Waiting: it has the database open but not its lock: it waits for whoever has.
	Waiting bool
	// Paused: it is stopped by a signal or a debugger (state T).
	Paused bool
	// Adopted: in supervise mode, it was started by somebody else.
	Adopted bool
	// Held: in supervise mode, Stop was called and Start not yet.
	Held bool
	// Others counts further etcds of the data directory, at the last full search.
	Others int
	// Err: the search failed, so Running false means "not seen" (ErrNoAccess).
	Err error
}

// Config configures either mode. DataDir is needed, and Argv to supervise; the rest has defaults.
type Config struct {
	DataDir string
	// Argv is etcd and its flags. Env is its environment; nil: the agent's own.
	Argv []string
	Env  []string
	// Stdout, Stderr of the child; nil: the agent's. An *os.File is passed as it is (see invariant 7).
	Stdout, Stderr io.Writer
	// Grace is the time from SIGTERM to SIGKILL in Stop and Restart: 200 ms. What
	// was acknowledged is fsynced, so nothing is lost by it (etcd-facts.md).
	Grace time.Duration
	// ShutdownGrace is the same at the end of Run: 20 s.
	ShutdownGrace time.Duration
	// The wait before a restart: BackoffMin (100 ms), doubled by each end to BackoffMax
	// (10 s), BackoffMin again after BackoffReset (30 s) of running.
	BackoffMin, BackoffMax, BackoffReset time.Duration
	// ScanEvery limits how often Process searches all processes while none is known: 250 ms.
	ScanEvery time.Duration
	// WatchEvery is how often Run looks at a process that is not its child: 500 ms.
	WatchEvery time.Duration
	// Forward are the agent's signals that Run passes on to etcd in supervise mode, SIGHUP
	// and SIGUSR1 say. SIGTERM and SIGINT are the caller's, by ctx.
	Forward []os.Signal
	// Logger gets starts, ends, adoptions and escalations; nil: none.
	Logger *zap.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.DataDir == "" {
		return c, errors.New("etcdproc: no data directory given")
	}
	def := func(d *time.Duration, v time.Duration) error {
		if *d < 0 {
			return fmt.Errorf("etcdproc: negative duration %v", *d)
		}
		if *d == 0 {
			*d = v
		}
		return nil
	}
	err := errors.Join(
		def(&c.Grace, 200*time.Millisecond),
		def(&c.ShutdownGrace, 20*time.Second),
		def(&c.BackoffMin, 100*time.Millisecond),
		def(&c.BackoffMax, 10*time.Second),
		def(&c.BackoffReset, 30*time.Second),
		def(&c.ScanEvery, 250*time.Millisecond),
		def(&c.WatchEvery, 500*time.Millisecond),
	)
	if c.BackoffMax < c.BackoffMin {
		c.BackoffMax = c.BackoffMin
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	return c, err
}

// NewSignal is the etcd that somebody else runs.
func NewSignal(cfg Config) (Etcd, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w, err := newWatcher(cfg, ModeSignal)
	if err != nil {
		return nil, err
	}
	return &signalled{watcher: w}, nil
}

// NewSupervisor is the etcd that this agent runs, once Run is called.
func NewSupervisor(cfg Config) (Etcd, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(cfg.Argv) == 0 || cfg.Argv[0] == "" {
		return nil, errors.New("etcdproc: no command of etcd to supervise (put it behind --)")
	}
	w, err := newWatcher(cfg, ModeSupervise)
	if err != nil {
		return nil, err
	}
	return &supervisor{watcher: w, wake: make(chan struct{}, 1)}, nil
}
