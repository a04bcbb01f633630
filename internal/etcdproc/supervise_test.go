package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"twok/internal/member/locktest"
)

// The whole life on every version: start, crash, restart, hold, start, restart, end.
//
// Rules: P7; F4, F15, F18.
func TestSuperviseLife(t *testing.T) {
	for _, v := range locktest.Versions {
		t.Run(v, func(t *testing.T) {
			s := locktest.NewSite(t, v)
			c := s.Dial(t)
			ctx := locktest.Context(t)
			e := supervise(t, config(t, s))
			s.Ready(t, c)
			first := e.Process()
			if !first.Running || first.Starts != 1 || first.Mode != ModeSupervise || first.Adopted || first.Held {
				t.Fatalf("%+v", first)
			}
			if pg, err := unix.Getpgid(first.PID); err != nil || pg != first.PID {
				t.Fatalf("process group %d of process %d, %v: a Ctrl-C would reach it", pg, first.PID, err)
			}
			if got, err := e.Version(ctx); err != nil || !strings.HasPrefix(got, v+".") {
				t.Fatalf("version %q, %v", got, err)
			}

			kill(t, first.PID, syscall.SIGKILL) // a crash
			locktest.Until(t, "a second start", func() bool { return e.Process().Starts == 2 && e.Process().Running })
			if p := e.Process(); p.StartID == first.StartID || p.LastExit != "signal: killed" {
				t.Fatalf("%+v", p)
			}
			s.Ready(t, c)

			second := e.Process()
			for range 2 {
				if err := e.Stop(ctx); err != nil {
					t.Fatal(err)
				}
				mustBeGone(t, s, second.StartID, true)
			}
			time.Sleep(10 * e.cfg.BackoffMax)
			if p := e.Process(); p.Running || !p.Held || p.Starts != 2 {
				t.Fatalf("held, yet %+v", p)
			}
			if err := e.Start(ctx); err != nil {
				t.Fatal(err)
			}
			s.Ready(t, c)
			third := e.Process()
			if third.Starts != 3 || third.Held {
				t.Fatalf("%+v", third)
			}
			if err := e.Restart(ctx); err != nil {
				t.Fatal(err)
			}
			s.Ready(t, c)
			fourth := e.Process()
			if fourth.Starts != 4 || fourth.StartID == third.StartID {
				t.Fatalf("%+v", fourth)
			}

			// One crash was punished; what was asked for is not.
			if b := e.backoffNow(); b != e.cfg.BackoffMin {
				t.Fatalf("backoff %v, want %v", b, e.cfg.BackoffMin)
			}

			if err := e.end(); err != nil {
				t.Fatal(err)
			}
			mustBeGone(t, s, fourth.StartID, true)
			if p := e.Process(); p.Running {
				t.Fatalf("%+v", p)
			}
			if left := children(t); left != "" {
				t.Fatalf("children left: %s", left)
			}
			if err := e.Start(ctx); err == nil {
				t.Fatal("Start after the end of Run must be refused")
			}
		})
	}
}

// A stopped etcd delays Stop and the end of Run by the grace, no more.
//
// Rules: P7; F13.
func TestStopLadder(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	cfg.ShutdownGrace = 50 * time.Millisecond
	e := supervise(t, cfg)
	ctx := locktest.Context(t)
	pause := func() Process {
		locktest.Until(t, "etcd holds its database", holdsDB(t, s))
		p := e.Process()
		kill(t, p.PID, syscall.SIGSTOP)
		locktest.Until(t, "etcd is paused", func() bool { return e.Process().Paused })
		return p
	}
	p := pause()
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, p.StartID, true)
	if p := e.Process(); p.LastExit != "signal: killed" || p.Paused {
		t.Fatalf("%+v", p)
	}
	e.Start(ctx)
	p = pause()
	// Nobody waits for ever: with a grace beyond the deadline Stop says who is stuck.
	e.cfg.Grace = time.Hour
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err := e.Stop(short)
	if !errors.Is(err, ErrStuck) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprintf("process %d (state T)", p.PID)) {
		t.Fatalf("stop: %v, want ErrStuck that names the process", err)
	}
	if !e.Process().Held {
		t.Fatal("a failed Stop must hold etcd")
	}
	if err := e.end(); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, p.StartID, true)
}

// A clean end by SIGTERM needs no SIGKILL when there is time.
//
// Rules: F4.
func TestEndIsGraceful(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	e := supervise(t, config(t, s))
	s.Ready(t, s.Dial(t))
	id := e.Process().StartID
	if err := e.end(); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, id, true)
	// etcd ends itself with the signal after it has closed everything.
	if p := e.Process(); p.LastExit != "signal: terminated" && p.LastExit != "exit status 0" {
		t.Fatalf("ended by %q", p.LastExit)
	}
}

// An agent that was killed leaves an orphan: it is adopted, used until it ends,
// and only then replaced. Stop and Flags work on it.
//
// Rules: P7; F10, F19.
func TestAdoptOrphan(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	pid := s.StartOrphan(t, "--pre-vote=false")
	c := s.Dial(t)
	s.Ready(t, c)
	ctx := locktest.Context(t)

	// Before Run the orphan is seen already.
	before, err := NewSupervisor(config(t, s))
	if err != nil {
		t.Fatal(err)
	}
	if p := before.Process(); !p.Running || p.PID != pid {
		t.Fatalf("%+v, want process %d", p, pid)
	}

	e := supervise(t, config(t, s))
	locktest.Until(t, "adopted", func() bool { return e.Process().Adopted })
	if p := e.Process(); p.PID != pid || p.Starts != 1 {
		t.Fatalf("%+v, want process %d", p, pid)
	}
	if f, err := e.Flags(ctx); err != nil || f.PreVote {
		t.Fatalf("flags of the orphan: %+v, %v", f, err)
	}
	s.Ready(t, c)
	orphan := e.Process().StartID
	kill(t, pid, syscall.SIGKILL)
	locktest.Until(t, "our own", func() bool { p := e.Process(); return p.Running && !p.Adopted })
	if p := e.Process(); p.PID == pid || p.Starts != 2 {
		t.Fatalf("%+v", p)
	}
	mustNotRun(t, orphan)
	s.Ready(t, c)
	if f, err := e.Flags(ctx); err != nil || !f.PreVote {
		t.Fatalf("flags of our own: %+v, %v", f, err)
	}
	e.end()

	// An adopted one is stopped, held, and ended with the agent as our own is.
	s.StartOrphan(t)
	s.Ready(t, c)
	e = supervise(t, config(t, s))
	locktest.Until(t, "adopted", func() bool { return e.Process().Adopted })
	id := e.Process().StartID
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, id, false)
	if p := e.Process(); p.Running || !p.Held {
		t.Fatalf("%+v", p)
	}
	s.StartOrphan(t) // somebody else
	s.Ready(t, c)
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	locktest.Until(t, "the foreign one is gone", s.Silent)
}

func mustNotRun(t *testing.T, id StartID) {
	t.Helper()
	if state, now, err := stat(id.PID); err == nil && now == id && state != 'Z' {
		t.Fatalf("process %d still runs", id.PID)
	}
}

// An orphan that had not opened its database when we looked: ours waits for it and gives way.
//
// Rules: P7; F19.
func TestYieldToEarlierEtcd(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	other := *s // same data directory, other ports: both can live
	o := locktest.NewSite(t, "3.6")
	other.Client, other.Peer = o.Client, o.Peer
	cfg := config(t, s)
	cfg.WatchEvery = time.Hour // no giving way yet
	first := supervise(t, cfg)
	s.Ready(t, s.Dial(t))
	if err := first.Stop(locktest.Context(t)); err != nil {
		t.Fatal(err)
	}

	pid := other.StartOrphan(t)
	locktest.Until(t, "the other one has the lock", holdsDB(t, s))
	e, err := NewSupervisor(config(t, s))
	if err != nil {
		t.Fatal(err)
	}
	sup := e.(*supervisor)
	sup.mu.Lock()
	c, err := sup.start() // as if the search had found nobody
	sup.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sup.Run(ctx) }()
	locktest.Until(t, "the other one is adopted", func() bool { p := sup.Process(); return p.Adopted && p.PID == pid })
	mustNotRun(t, c.h.id)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Starting is never given up: not for a missing binary, not for one that fails at once.
//
// Rules: F18.
func TestNeverGivesUp(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	bin := t.TempDir() + "/etcd"
	cfg.Argv[0] = bin
	e := supervise(t, cfg)
	locktest.Until(t, "a failed start", func() bool { return strings.Contains(e.Process().LastExit, "no such file") })
	if _, err := e.Version(locktest.Context(t)); err == nil {
		t.Fatal("version of a binary that is not there")
	}
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexit 7\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	locktest.Until(t, "many failed starts", func() bool { p := e.Process(); return p.Starts >= 10 && p.LastExit == "exit status 7" })
	if e.backoffNow() != cfg.BackoffMax {
		t.Fatalf("backoff %v, want the cap %v", e.backoffNow(), cfg.BackoffMax)
	}
	if err := os.Symlink(s.Bin, bin+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(bin+".new", bin); err != nil {
		t.Fatal(err)
	}
	s.Ready(t, s.Dial(t))
}

func (s *supervisor) backoffNow() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backoff
}

// Rules: F18.
func TestBackoff(t *testing.T) {
	cfg, err := Config{DataDir: "x"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := &supervisor{watcher: &watcher{cfg: cfg}}
	var got []time.Duration
	for range 9 {
		got = append(got, s.punish(cfg.BackoffReset-1))
	}
	got = append(got, s.punish(cfg.BackoffReset), s.punish(0))
	const ms = time.Millisecond
	want := fmt.Sprint([]time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 10000 * ms, 10000 * ms, 100 * ms, 200 * ms})
	if fmt.Sprint(got) != want {
		t.Fatalf("backoff %v\nwant    %v", got, want)
	}
}

// Rules: none (signals).
func TestForwardsSignals(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	cfg.Forward = []os.Signal{syscall.SIGHUP}
	e := supervise(t, cfg)
	s.Ready(t, s.Dial(t))
	kill(t, os.Getpid(), syscall.SIGHUP)
	locktest.Until(t, "etcd was hung up and started again", func() bool {
		p := e.Process()
		return p.Starts == 2 && p.LastExit == "signal: hangup"
	})
}

// A wrapper that dies of SIGTERM and leaves its etcd: that one is ended too.
//
// Rules: F4, F15.
func TestWrapper(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	cfg.Argv = append([]string{"sh", "-c", `"$@"; exit $?`, "sh"}, cfg.Argv...)
	e := supervise(t, cfg)
	ctx := locktest.Context(t)
	locktest.Until(t, "etcd holds its database", holdsDB(t, s))
	s.Ready(t, s.Dial(t))
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, e.Process().StartID, true)
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.Ready(t, s.Dial(t))
	if err := e.end(); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, e.Process().StartID, true)
}

// Output that is no file is copied.
//
// Rules: none (output).
func TestOutputIsPassed(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	var w lockedBuffer
	cfg.Stderr = &w
	supervise(t, cfg)
	locktest.Until(t, "a line of etcd's log", func() bool { return strings.Contains(w.String(), `"level"`) })
}
