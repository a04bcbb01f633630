package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twok/internal/agent"
	"twok/internal/etcdproc"
	"twok/internal/preflight"
)

// Without an etcd the check refuses and says what is missing; with wrong usage it ends with 2. (On real pairs: testing/e2e.)
//
// Rules: P11.
func TestAgentCheckUsage(t *testing.T) {
	dir := t.TempDir()
	check := func(want int, args ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"twok", "agent"}, args...)
		process := os.Args
		os.Args = args // where the agent looks for "--"
		defer func() { os.Args = process }()
		if code := run(t.Context(), args, &out, &errs); code != want {
			t.Errorf("%q: exit %d, want %d: %s%s", args, code, want, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
	base := []string{"--data-dir", dir, "--arbiter", "http://127.0.0.1:1/pair", "--client-url", "http://127.0.0.1:1", "--peer-url", "http://127.0.0.1:1"}
	with := func(more ...string) []string { return append(append([]string{}, base...), more...) }

	out, stderr := check(exitError, with("--check")...)
	for _, name := range []string{"data-dir", "locks", "etcd-process", "record"} {
		if !strings.Contains(out, "\n"+name+" ") && !strings.HasPrefix(out, name+" ") {
			t.Errorf("the table lacks %s:\n%s", name, out)
		}
	}
	if !strings.HasPrefix(out, "CHECK ") || !strings.Contains(out, "\nrefused: ") || strings.Count(stderr, "\n") != 2 ||
		!strings.Contains(stderr, "twok: error: this member cannot be armed: ") || !strings.Contains(stderr, "#check-") {
		t.Errorf("%s%s", out, stderr)
	}

	// In supervise mode a program that is no etcd is named, and what it was told is read.
	out, _ = check(exitError, with("--check", "--json", "--", "/bin/true", "--data-dir", "/elsewhere")...)
	var r struct {
		OK     bool
		Checks []preflight.Result
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.OK || len(r.Checks) != len(preflight.Checks()) {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range r.Checks {
		for name, says := range map[string]string{"etcd-version": "is it etcd?", "etcd-flags": "/elsewhere", "etcd-process": "etcd-down", "record": "arbiter-unavailable"} {
			if c.Name == name && (c.State != preflight.Refused || !strings.Contains(c.Detail, says)) {
				t.Errorf("%+v, want %q", c, says)
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}

	check(exitUsage, with("--json")...)
	check(exitUsage, with("--check", "--claim-after", "1s", "--election-timeout", "1s")...)
	check(exitUsage, with("--check", "--head-start", "1h")...)
	check(exitUsage, "--check", "--data-dir", dir)
	check(exitUsage, "--check", "--data-dir", dir, "--arbiter", "ftp://x/y")
	check(exitUsage, with("--check", "--client-cert", "x")...)
	check(exitUsage, with("--check", "etcd")...)
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// An agent does not supervise an etcd that says another data directory than its own, or a default one: nothing is
// started and nothing is made. A wrapper that says none, and the same directory by another name, pass.
//
// Rules: P12, P20.
func TestSameDirectory(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "etcd.yml")
	if err := os.WriteFile(config, []byte("data-dir: /elsewhere\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.WriteFile(etcd, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv []string
		want string // empty: the same
	}{
		{[]string{etcd, "--data-dir", dir}, ""},
		{[]string{etcd, "--data-dir=" + dir + "/"}, ""},
		{[]string{etcd, "--data-dir", link}, ""},
		{[]string{"/bin/sh", "-c", "exec etcd --data-dir x"}, ""},
		{[]string{"/no/such/etcd", "--data-dir", "/elsewhere"}, ""},
		{[]string{etcd, "--data-dir", "/elsewhere"}, "has --data-dir /elsewhere, the agent " + dir},
		{[]string{etcd, "--config-file", config}, "has --data-dir /elsewhere"},
		{[]string{"/bin/sh", "-c", `"$@"`, "sh", etcd, "--data-dir", "/elsewhere"}, "has --data-dir /elsewhere"},
		{[]string{etcd}, "has --data-dir default.etcd"},
	} {
		e, err := etcdproc.NewSupervisor(etcdproc.Config{DataDir: dir, Argv: c.argv})
		if err != nil {
			t.Fatal(err)
		}
		err = sameDirectory(agent.Config{DataDir: dir, Etcd: e})
		if (c.want == "") != (err == nil) || (err != nil && (!strings.Contains(err.Error(), c.want) || codeOf(err) != exitUsage || hintOf(err) == "")) {
			t.Errorf("%q: %v, want %q", c.argv, err, c.want)
		}
	}
	process := os.Args
	os.Args = []string{"twok", "agent", "--data-dir", filepath.Join(dir, "new"), "--arbiter", "http://127.0.0.1:1/pair", "--", etcd, "--data-dir", dir}
	defer func() { os.Args = process }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // of an agent that starts after all
	defer cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, os.Args, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), "give both the same --data-dir") {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("made: %v, %v", names, err)
	}
}
