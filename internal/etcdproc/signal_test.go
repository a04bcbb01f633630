package etcdproc

import (
	"context"
	"errors"
	"os"
	"os/exec"
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
			// Neither a reader of the files nor a process of our own executable is etcd.
			reader := holdOpen(t, s, os.O_RDONLY, "sleep", "60")
			writer := holdOpen(t, s, os.O_RDWR, os.Args[0])
			if ps, err := fresh.find.scan(); err != nil || len(ps) != 1 {
				t.Fatalf("found %+v, %v, want etcd alone", ps, err)
			}

			kill(t, p.PID, syscall.SIGSTOP)
			locktest.Until(t, "etcd is paused", func() bool { q := e.Process(); return q.Running && q.Paused })
			if err := e.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			mustBeGone(t, s, p.StartID, false)
			for _, id := range []StartID{reader, writer} {
				if state, now, err := stat(id.PID); err != nil || now != id || state == 'Z' {
					t.Fatalf("Stop ended another process: state %c, %v", state, err)
				}
			}
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

// holdOpen starts a process with the database as its standard input.
func holdOpen(t *testing.T, s *locktest.Site, flag int, argv ...string) StartID {
	t.Helper()
	f, err := os.OpenFile(s.Dir+"/member/snap/db", flag, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = f
	cmd.Env = append(os.Environ(), "TWOK_TEST_SLEEP=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locktest.End(cmd) })
	_, id, err := stat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Of two etcds the one that has the lock is the one to talk about; Stop ends both.
//
// Rules: P7; F10.
func TestSignalTwo(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	o := locktest.NewSite(t, "3.6")
	second := *s
	second.Client, second.Peer = o.Client, o.Peer
	one := s.Start(t)
	s.Ready(t, s.Dial(t))
	two := second.Start(t)
	f, err := newFinder(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	locktest.Until(t, "both have the database open", func() bool {
		ps, err := f.scan()
		if err != nil {
			t.Fatal(err)
		}
		return len(ps) == 2
	})
	e := newSignalled(t, s)
	if p := e.Process(); p.PID != one.Process.Pid || p.Waiting || p.Others != 1 {
		t.Fatalf("%+v, want process %d and another one", p, one.Process.Pid)
	}
	// Whatever the order in /proc: the first one ends, the waiting one takes over.
	kill(t, one.Process.Pid, syscall.SIGKILL)
	one.Wait()
	third := s.Start(t)
	locktest.Until(t, "both have the database open", func() bool {
		ps, err := f.scan()
		if err != nil {
			t.Fatal(err)
		}
		return len(ps) == 2 && (!ps[0].waiting || !ps[1].waiting)
	})
	ps, err := f.scan()
	if err != nil {
		t.Fatal(err)
	}
	want := two.Process.Pid
	for _, p := range ps {
		if !p.waiting {
			want = p.id.PID
		}
	}
	for _, order := range [][]found{ps, {ps[1], ps[0]}} {
		if got := primary(order); got.id.PID != want {
			t.Fatalf("primary of %+v is %d, want %d", order, got.id.PID, want)
		}
	}
	if err := e.Stop(locktest.Context(t)); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{two, third} {
		if state, _, err := stat(cmd.Process.Pid); err != nil || state != 'Z' {
			t.Fatalf("process %d: state %c, %v, want a zombie of ours", cmd.Process.Pid, state, err)
		}
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
