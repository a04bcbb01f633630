package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
