package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"twok/internal/member/locktest"
)

// Rules: A0.
func TestParseFlags(t *testing.T) {
	def := Flags{
		PreVote: true, Name: "default", DataDir: "default.etcd", PeerURLs: []string{"http://localhost:2380"},
		ListenClientURLs: []string{"http://localhost:2379"}, ListenPeerURLs: []string{"http://localhost:2380"},
		Heartbeat: 100 * time.Millisecond, Election: time.Second,
	}
	with := func(f func(*Flags)) Flags { g := def; f(&g); return g }
	tests := []struct {
		name, argv, env, file string
		want                  Flags
		err                   string
	}{
		{name: "nothing", want: def},
		{name: "bare booleans", argv: "--force-new-cluster -unsafe-no-fsync --pre-vote=false",
			want: with(func(f *Flags) { f.ForceNewCluster, f.UnsafeNoFsync, f.PreVote = true, true, false })},
		{name: "the last one wins", argv: "--force-new-cluster --force-new-cluster=0 --name a --name=b",
			want: with(func(f *Flags) { f.Name, f.DataDir = "b", "b.etcd" })},
		{name: "values are no flags", argv: "--name --force-new-cluster --initial-cluster-token force-new-cluster --log-outputs x --data-dir /d",
			want: with(func(f *Flags) { f.Name, f.DataDir = "--force-new-cluster", "/d" })},
		{name: "unknown boolean before a flag", argv: "--client-cert-auth --unsafe-no-fsync",
			want: with(func(f *Flags) { f.UnsafeNoFsync = true })},
		{name: "after the end", argv: "-- --force-new-cluster", want: def},
		{name: "urls and timing", argv: "--listen-client-urls=http://a:1,http://b:2 --heartbeat-interval 20 --election-timeout=200 --wal-dir /w",
			want: with(func(f *Flags) {
				f.ListenClientURLs = []string{"http://a:1", "http://b:2"}
				f.Heartbeat, f.Election, f.WALDir = 20*time.Millisecond, 200*time.Millisecond, "/w"
			})},
		{name: "the cluster", argv: "--initial-advertise-peer-urls http://b:1 --initial-cluster a=http://a:1,b=http://b:1,a=http://a:2",
			want: with(func(f *Flags) {
				f.PeerURLs = []string{"http://b:1"}
				f.Cluster = map[string][]string{"a": {"http://a:1", "http://a:2"}, "b": {"http://b:1"}}
			})},
		{name: "environment", env: "ETCD_FORCE_NEW_CLUSTER=true ETCD_PRE_VOTE=f ETCD_NAME=e ETCD_UNSAFE_NO_FSYNC= PATH=/bin",
			want: with(func(f *Flags) { f.ForceNewCluster, f.PreVote, f.Name, f.DataDir = true, false, "e", "e.etcd" })},
		{name: "a flag beats the environment", argv: "--force-new-cluster=false", env: "ETCD_FORCE_NEW_CLUSTER=true", want: def},
		{name: "a file beats both", argv: "--force-new-cluster --config-file=f", env: "ETCD_UNSAFE_NO_FSYNC=1",
			file: "name: x\npre-vote: false\nlisten-peer-urls: http://p:1,http://p:2\nelection-timeout: 500\nclient-transport-security:\n  cert-file: c\n",
			want: with(func(f *Flags) {
				f.Name, f.DataDir, f.PreVote, f.ConfigFile = "x", "x.etcd", false, "f"
				f.ListenPeerURLs, f.Election = []string{"http://p:1", "http://p:2"}, 500*time.Millisecond
			})},
		{name: "a file by the environment, in JSON", env: "ETCD_CONFIG_FILE=f", file: `{"Unsafe-No-Fsync": true, "data-dir": "/d"}`,
			want: with(func(f *Flags) { f.UnsafeNoFsync, f.DataDir, f.ConfigFile = true, "/d", "f" })},
		{name: "not a boolean", argv: "--pre-vote=maybe", err: "maybe"},
		{name: "not a number", env: "ETCD_ELECTION_TIMEOUT=1s", err: "1s"},
		{name: "not YAML", argv: "--config-file f", file: "\t: [", err: "--config-file f"},
		{name: "no file", argv: "--config-file none", err: "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFlags(append([]string{"etcd"}, strings.Fields(tt.argv)...), strings.Fields(tt.env), func(path string) ([]byte, error) {
				if path != "f" {
					return nil, os.ErrNotExist
				}
				return []byte(tt.file), nil
			})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q in it", err, tt.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("got  %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

// What the next start will be told, whatever runs; without a data directory where only a wrapper knows it.
//
// Rules: A0, P20.
func TestCommand(t *testing.T) {
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.WriteFile(etcd, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		argv     []string
		dir, err string
	}{
		{[]string{etcd, "--name", "a"}, "a.etcd", ""},
		{[]string{etcd, "--data-dir", "/d", "--pre-vote=false"}, "/d", ""},
		{[]string{"sh", "-c", "exec etcd"}, "", ""},
		{[]string{"sh", "-c", `"$@"`, "sh", etcd, "--data-dir", "/d"}, "/d", ""},
		{[]string{etcd + "ctl", "--data-dir", "/d"}, "", "no such file"},
		{[]string{etcd, "--config-file", "/no/such/file"}, "", "--config-file"},
	} {
		e, err := NewSupervisor(Config{DataDir: t.TempDir(), Argv: tt.argv, Env: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		f, err := e.(Commander).Command()
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: %v, want %q", tt.argv, err, tt.err)
			}
		} else if err != nil || f.DataDir != tt.dir || f.PreVote == strings.Contains(strings.Join(tt.argv, " "), "pre-vote") {
			t.Errorf("%q: %+v, %v, want %q", tt.argv, f, err, tt.dir)
		}
	}
}

// What is read from a running etcd, from each of the three sources.
//
// Rules: A0.
func TestFlagsOfRunning(t *testing.T) {
	for _, v := range locktest.Versions {
		t.Run(v, func(t *testing.T) {
			s := locktest.NewSite(t, v)
			t.Setenv("ETCD_UNSAFE_NO_FSYNC", "true")
			s.Start(t, "--pre-vote=false")
			e := newSignalled(t, s)
			ctx := locktest.Context(t)
			locktest.Until(t, "found", serving(e))
			f, err := e.Flags(ctx)
			if err != nil || !f.UnsafeNoFsync || f.PreVote || f.ForceNewCluster || f.DataDir != s.Dir || f.Name != "m" ||
				f.Election != 200*time.Millisecond || len(f.ListenClientURLs) != 1 || f.ListenClientURLs[0] != s.Client {
				t.Fatalf("%+v, %v", f, err)
			}
			if err := e.Stop(ctx); err != nil {
				t.Fatal(err)
			}

			// A relative name, through a symbolic link that is absolute.
			dir := t.TempDir()
			text := "name: m\ndata-dir: " + s.Dir + "\nforce-new-cluster: true\n" +
				"listen-client-urls: " + s.Client + "\nadvertise-client-urls: " + s.Client + "\n" +
				"listen-peer-urls: " + s.Peer + "\ninitial-advertise-peer-urls: " + s.Peer + "\ninitial-cluster: m=" + s.Peer + "\n"
			if err := os.WriteFile(dir+"/real.yaml", []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(dir+"/real.yaml", dir+"/etcd.yaml"); err != nil {
				t.Fatal(err)
			}
			t.Chdir(dir)
			cfg := config(t, s)
			cfg.Argv = []string{s.Bin, "--config-file", "etcd.yaml"}
			e2 := supervise(t, cfg)
			s.Ready(t, s.Dial(t))
			t.Chdir(s.Dir) // the process's directory counts, not ours
			f, err = e2.Flags(ctx)
			if err != nil || !f.ForceNewCluster || f.UnsafeNoFsync || !f.PreVote || f.DataDir != s.Dir || f.ConfigFile != "etcd.yaml" {
				t.Fatalf("%+v, %v", f, err)
			}
			t.Chdir(dir)
			if err := e2.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			if g, err := e2.Flags(ctx); err != nil || !reflect.DeepEqual(f, g) {
				t.Fatalf("of the next start: %+v, %v", g, err)
			}
		})
	}
}

// begun waits until a process that was just started shows its command line: between fork and the end of exec it has none.
func begun(t *testing.T, cmd *exec.Cmd) StartID {
	t.Helper()
	_, id, err := stat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	locktest.Until(t, "a command line", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.PID))
		return err == nil && len(b) > 0
	})
	return id
}

// A process on its way out shows no command line and no environment any more. That is not an etcd
// without flags: taken for one, it has etcd's defaults, and an agent started in that moment refused its --claim-after by them.
//
// Rules: A0.
func TestFlagsOfEnding(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := begun(t, cmd)
	if _, err := flagsOf(id); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for { // dead, and not yet reaped
		if state, _, err := stat(id.PID); err != nil {
			t.Fatal(err)
		} else if state == 'Z' {
			break
		}
	}
	if f, err := flagsOf(id); !errors.Is(err, ErrNotRunning) {
		t.Errorf("of a dead process: %+v, %v", f, err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was killed")
	}
	if f, err := flagsOf(id); !errors.Is(err, ErrNotRunning) {
		t.Errorf("of none: %+v, %v", f, err)
	}
}

// A question for flags that cannot be answered, since a read hangs, costs one goroutine, however often it is asked; it is answered when
// the read can go on.
//
// Rules: F13.
func TestHungFlagsAreReadOnce(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "etcd.yml")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "read line", "--config-file", fifo) // waits on its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	id := begun(t, cmd)
	var r flagReads
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if f, err := r.within(ctx, id); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%+v, %v", f, err)
		}
		cancel()
	}
	if now := runtime.NumGoroutine(); now > before+1 {
		t.Errorf("%d goroutines more than before", now-before)
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		fmt.Fprintln(w, "name: piped")
		w.Close()
	}()
	if f, err := r.within(locktest.Context(t), id); err != nil || f.Name != "piped" {
		t.Errorf("%+v, %v", f, err)
	}
}
