package etcdproc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"twok/internal/member/locktest"
)

// quoted is a command line for a shell.
func quoted(argv []string) string {
	var q []string
	for _, a := range argv {
		q = append(q, "'"+strings.ReplaceAll(a, "'", `'\''`)+"'")
	}
	return strings.Join(q, " ")
}

// A script that starts etcd whatever it is asked is not run for a version: nothing starts but by Run, least of
// all on a directory on which etcd is held back.
//
// Rules: P12; F13.
func TestWrapperIsNotAskedForItsVersion(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	marker := filepath.Join(t.TempDir(), "runs")
	script := filepath.Join(t.TempDir(), "etcd")
	text := "#!/bin/sh\necho run >>" + quoted([]string{marker}) + "\nexec " + quoted(cfg.Argv) + "\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg.Argv = []string{script}
	ctx := locktest.Context(t)
	e, err := NewSupervisor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := e.Version(ctx); err == nil {
		t.Errorf("version %q, although nothing runs that could be asked", v)
	}
	if b, err := os.ReadFile(marker); err == nil {
		t.Errorf("the question for a version ran the script: %q", b)
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "member")); err == nil {
		t.Error("the question for a version started an etcd")
	}
	run := supervise(t, cfg)
	s.Ready(t, s.Dial(t))
	if v, err := run.Version(ctx); err != nil || !strings.HasPrefix(v, "3.6.") {
		t.Errorf("version %q, %v", v, err)
	}
	if err := run.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if v, err := run.Version(ctx); err != nil || !strings.HasPrefix(v, "3.6.") {
		t.Errorf("version of the last one %q, %v", v, err)
	}
	if b, err := os.ReadFile(marker); err != nil || string(b) != "run\n" {
		t.Errorf("the script ran as %q, %v, want once", b, err)
	}
}

// A wrapper that stays etcd's parent, and whose command line says nothing that can be read: what counts is what etcd itself was told,
// also while it is stopped.
//
// Rules: P11; A0.
func TestFlagsBehindAWrapper(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	cfg := config(t, s)
	cfg.Argv = []string{"sh", "-c", quoted(append(cfg.Argv, "--pre-vote=false")) + "; exit $?"}
	e := supervise(t, cfg)
	ctx := locktest.Context(t)
	s.Ready(t, s.Dial(t))
	for _, when := range []string{"running", "stopped"} {
		f, err := e.Flags(ctx)
		if err != nil || f.PreVote || f.DataDir != s.Dir || f.Name != "m" {
			t.Errorf("%s: %+v, %v: etcd was told --pre-vote=false", when, f, err)
		}
		v, err := e.Version(ctx)
		if err != nil || !strings.HasPrefix(v, "3.6.") {
			t.Errorf("%s: version %q, %v", when, v, err)
		}
		if err := e.Stop(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// What may not start is held, at the first start and after an end that nobody asked for, until it may; what was stopped is not
// even asked about.
//
// Rules: P12.
func TestMayStart(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	e, err := NewSupervisor(config(t, s))
	if err != nil {
		t.Fatal(err)
	}
	var may atomic.Bool
	var asked atomic.Int32
	e.(Gated).MayStart(func() bool { asked.Add(1); return may.Load() })
	ctx, cancel := context.WithCancel(locktest.Context(t))
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	again := func(starts uint64) func() bool {
		from := asked.Load()
		return func() bool {
			p := e.Process()
			return p.Held && !p.Running && p.Starts == starts && asked.Load() > from+3
		}
	}
	locktest.Until(t, "held at the start", again(0))
	may.Store(true)
	s.Ready(t, s.Dial(t))
	if p := e.Process(); p.Held || p.Starts != 1 {
		t.Fatalf("%+v", p)
	}
	may.Store(false)
	kill(t, e.Process().PID, syscall.SIGKILL)
	locktest.Until(t, "held after an end", again(1))
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	may.Store(true)
	last := asked.Load()
	time.Sleep(10 * e.(*supervisor).cfg.WatchEvery)
	if p := e.Process(); !p.Held || p.Running || asked.Load() != last {
		t.Fatalf("stopped, and asked %d times more: %+v", asked.Load()-last, p)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.Ready(t, s.Dial(t))
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
