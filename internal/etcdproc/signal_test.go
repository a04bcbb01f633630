package etcdproc

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"twok/internal/member/locktest"
)

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Found by inode on every version: in an empty directory, running, after a defrag replaced
// the file, waiting for the lock, gone.
//
// Rules: P7; F10, F15.
func TestSignalFinds(t *testing.T) {
	for _, v := range locktest.Versions {
		t.Run(v, func(t *testing.T) {
			s := locktest.NewSite(t, v)
			e := newSignalled(t, s)
			ctx := locktest.Context(t)
			if p := e.Process(); p.Running || p.Err != nil || p.Mode != ModeSignal {
				t.Fatalf("empty directory: %+v", p)
			}
			if err := e.Stop(ctx); err != nil {
				t.Fatalf("nothing to stop: %v", err)
			}
			if _, err := e.Version(ctx); !errors.Is(err, ErrNotRunning) {
				t.Fatalf("version: %v, want ErrNotRunning", err)
			}
			if _, err := e.Flags(ctx); !errors.Is(err, ErrNotRunning) {
				t.Fatalf("flags: %v, want ErrNotRunning", err)
			}

			cmd := s.Start(t)
			c := s.Dial(t)
			s.Ready(t, c)
			p := e.Process()
			if !p.Running || p.PID != cmd.Process.Pid || p.Starts != 1 || p.Waiting || p.Others != 0 {
				t.Fatalf("%+v, want process %d", p, cmd.Process.Pid)
			}
			if got, err := e.Version(ctx); err != nil || !strings.HasPrefix(got, v+".") {
				t.Fatalf("version %q, %v", got, err)
			}
			if _, err := c.Defragment(ctx, s.Client); err != nil {
				t.Fatal(err)
			}
			if q := e.Process(); q != p {
				t.Fatalf("after a defrag: %+v\nbefore: %+v", q, p)
			}
			fresh := newSignalled(t, s)
			if q := fresh.Process(); q.StartID != p.StartID {
				t.Fatalf("a new search after the defrag: %+v", q)
			}
			// A reader of the files is not etcd.
			r, err := os.Open(s.Dir + "/member/snap/db")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()

			kill(t, p.PID, syscall.SIGSTOP)
			locktest.Until(t, "etcd is paused", func() bool { q := e.Process(); return q.Running && q.Paused })
			if err := e.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			mustBeGone(t, s, p.StartID, false)
			q := e.Process()
			if q.Running || q.PID != p.PID || q.LastExit == "" {
				t.Fatalf("%+v", q)
			}
			if got, err := e.Version(ctx); err != nil || !strings.HasPrefix(got, v+".") {
				t.Fatalf("the remembered version: %q, %v", got, err)
			}
			locktest.End(cmd)
		})
	}
}

// While its file is defragmented etcd never disappears, so that no poll can take it for a restart.
//
// Rules: F10.
func TestDefragIsNoRestart(t *testing.T) {
	s := locktest.NewSite(t, "3.7")
	e := newSignalled(t, s)
	s.Start(t)
	c := s.Dial(t)
	s.Ready(t, c)
	locktest.Until(t, "found", serving(e))
	want := e.Process()
	stop := make(chan error, 1)
	go func() {
		for range 30 {
			if _, err := c.Defragment(context.Background(), s.Client); err != nil {
				stop <- err
				return
			}
		}
		stop <- nil
	}()
	polls := 0
	for {
		select {
		case err := <-stop:
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d polls", polls)
			return
		default:
		}
		p := e.Process()
		p.Waiting = false // for a moment the new file is open and not locked
		if p != want {
			t.Fatalf("poll %d: %+v, want %+v", polls, p, want)
		}
		polls++
	}
}

// Somebody restarts etcd at once: Stop ends the one that is there, and the next
// one waits for the lock that was queued before. Run leaves etcd alone.
//
// Rules: P7; F4.
func TestSignalWithRestarter(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	e := newSignalled(t, s)
	ctx, cancel := context.WithCancel(locktest.Context(t))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	s.StartLoop(t)
	c := s.Dial(t)
	s.Ready(t, c)

	fd, err := unix.Open(s.Dir+"/member/snap/db", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	first := e.Process()
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(fd, unix.LOCK_EX) }()
	time.Sleep(20 * time.Millisecond) // the test of the locks proper is in package member
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	mustNotRun(t, first.StartID)
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	// Those that wait are ended too, again and again.
	last := first
	for range 3 {
		locktest.Until(t, "the next one waits", func() bool { p := e.Process(); return p.Waiting && p.StartID != last.StartID })
		last = e.Process()
		if v, err := e.Version(ctx); err != nil || !strings.HasPrefix(v, "3.6.") {
			t.Fatalf("version of a waiting etcd: %q, %v", v, err)
		}
		if err := e.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		mustNotRun(t, last.StartID)
	}
	if err := unix.Flock(fd, unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	s.Ready(t, c)
	p := e.Process()
	if p.Starts < 5 {
		t.Fatalf("%+v, want 5 starts or more", p)
	}
	if err := e.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	mustNotRun(t, p.StartID)
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.Ready(t, c)
	p = e.Process()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if q := e.Process(); !q.Running || q.StartID != p.StartID {
		t.Fatalf("after the end of Run: %+v, want %+v", q, p)
	}
}

// A database that is replaced under its lock: the etcd that waits has the old one
// open and is found by its inode alone.
//
// Rules: P7, P13.
func TestEvict(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cmd := s.Start(t)
	s.Ready(t, s.Dial(t))
	locktest.End(cmd)
	db := s.Dir + "/member/snap/db"
	f, err := os.Open(db)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	e := newSignalled(t, s)
	cmd = s.Start(t)
	locktest.Until(t, "etcd waits", func() bool { return e.Process().Waiting })
	if err := os.Rename(s.Dir+"/member", s.Dir+"/member.aside"); err != nil {
		t.Fatal(err)
	}
	if p := e.Process(); p.Running {
		t.Fatalf("found by the path: %+v; then Evict is not needed", p)
	}
	i, err := inodeAt(s.Dir + "/member.aside/snap/db")
	if err != nil {
		t.Fatal(err)
	}
	_, id, err := stat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := Evict(locktest.Context(t), i.dev, i.ino, 0); err != nil {
		t.Fatal(err)
	}
	mustNotRun(t, id)
}

// Without the right to look, the answer is an error that names the remedy, not "not running".
//
// Rules: P11.
func TestNoAccess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	s := locktest.NewSite(t, "3.6")
	s.Start(t)
	s.Ready(t, s.Dial(t))
	for d := s.Dir; len(d) > len(os.TempDir()); d = d[:strings.LastIndexByte(d, '/')] {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{s.Dir + "/member", s.Dir + "/member/snap", s.Dir + "/member/wal"} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f, err := newFinder(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	asNobody(t, func() {
		if ps, err := f.scan(); !errors.Is(err, ErrNoAccess) || !strings.Contains(err.Error(), "CAP_SYS_PTRACE") {
			t.Errorf("scan: %v, %v, want ErrNoAccess", ps, err)
		}
	})
	if ps, err := f.scan(); err != nil || len(ps) != 1 {
		t.Fatalf("as root again: %v, %v", ps, err)
	}
}

// A pidfd that is opened late is checked: the start time tells a successor from the one that was meant.
//
// Rules: F10.
func TestHandleIsOneStart(t *testing.T) {
	_, self, err := stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	wrong := self
	wrong.Ticks++
	if _, err := openHandle(wrong); !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("another start with our number: %v, want os.ErrProcessDone", err)
	}
	if err := endAll(context.Background(), []StartID{wrong}, 0, testLog(t)); err != nil {
		t.Fatal(err)
	}
	h, err := openHandle(self)
	if err != nil {
		t.Fatal(err)
	}
	h.close()
}
