package etcdproc

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"twok/internal/member/locktest"
)

// TestMain lets the test binary be another process of our own executable.
func TestMain(m *testing.M) {
	if os.Getenv("TWOK_TEST_SLEEP") != "" {
		time.Sleep(time.Minute)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testLog(t *testing.T) *zap.Logger {
	return zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
}

// config has timings for tests: a quick backoff, a search at every look.
func config(t *testing.T, s *locktest.Site, extra ...string) Config {
	t.Helper()
	f, err := os.OpenFile(s.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return Config{
		DataDir: s.Dir, Argv: s.Argv(extra...), Stdout: f, Stderr: f,
		BackoffMin: 5 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
		ScanEvery: time.Millisecond, WatchEvery: 20 * time.Millisecond,
		Logger: testLog(t),
	}
}

func newSignalled(t *testing.T, s *locktest.Site) *signalled {
	t.Helper()
	e, err := NewSignal(config(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return e.(*signalled)
}

// supervised is a running supervisor; end ends its context and returns what Run said.
type supervised struct {
	*supervisor
	end func() error
}

func supervise(t *testing.T, cfg Config) supervised {
	t.Helper()
	e, err := NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- e.Run(ctx) }()
	end := sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { end() })
	return supervised{e.(*supervisor), end}
}

func serving(e Etcd) func() bool {
	return func() bool { p := e.Process(); return p.Running && !p.Waiting }
}

// hasDB is true when the process is seen to hold the database's lock.
func holdsDB(t *testing.T, s *locktest.Site) func() bool {
	f, err := newFinder(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	return func() bool {
		ps, err := f.scan()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			if p.isDB && !p.waiting {
				return true
			}
		}
		return false
	}
}

// mustBeGone checks that nothing of the process is left that the caller is
// responsible for, and that the lock and the ports are free.
func mustBeGone(t *testing.T, s *locktest.Site, id StartID, reaped bool) {
	t.Helper()
	state, now, err := stat(id.PID)
	switch {
	case errors.Is(err, os.ErrProcessDone), err == nil && now != id:
	case err != nil:
		t.Fatal(err)
	case reaped || state != 'Z':
		t.Fatalf("process %d is still there, state %c", id.PID, state)
	}
	if !s.Silent() {
		t.Fatal("the client port is still open")
	}
	fd, err := unix.Open(s.Dir+"/member/snap/db", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("the database's lock: %v", err)
	}
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("no process to signal: %d", pid)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

func children(t *testing.T) string {
	t.Helper()
	var all []string
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + e.Name() + "/children")
		if err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return strings.Join(all, " ")
}

// asNobody runs f on a thread without root's user ID and capabilities.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	var run func()
	run = func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			// The main thread would live on as nobody.
			defer runtime.UnlockOSThread()
			next := make(chan struct{})
			go func() { defer close(next); run() }()
			<-next
			return
		}
		defer close(done)
		if syscall.Getuid() != 0 {
			f() // nobody special already
			return
		}
		// The raw call changes this thread alone.
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			done <- errno
			return
		}
		f()
	}
	go run()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
