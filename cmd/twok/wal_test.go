package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"twok/walsurgery"
)

// dataDir is a data directory with a small WAL that a real etcd wrote.
func dataDir(t *testing.T, version string) (dir, segment string) {
	t.Helper()
	dir = t.TempDir()
	wal := filepath.Join(dir, "member", "wal")
	if err := os.CopyFS(wal, os.DirFS("../../walsurgery/testdata/wal-"+version)); err != nil {
		t.Fatal(err)
	}
	d, err := os.ReadDir(wal)
	if err != nil || len(d) != 1 {
		t.Fatal(d, err)
	}
	return dir, filepath.Join(wal, d[0].Name())
}

// The report says the same for people and as JSON, for the data directory and
// for the WAL directory, and changes nothing.
//
// Rules: none (command line).
func TestWALInspect(t *testing.T) {
	for _, version := range []string{"3.5", "3.6", "3.7"} {
		dir, segment := dataDir(t, version)
		before, err := os.ReadFile(segment)
		if err != nil {
			t.Fatal(err)
		}
		var r walReport
		for _, d := range []string{dir, filepath.Dir(segment)} {
			out, errs, code := twok(t, "wal", "inspect", "--json", "--tail", "3", d)
			if code != 0 || errs != "" {
				t.Fatalf("exit %d, %s", code, errs)
			}
			dec := json.NewDecoder(strings.NewReader(out))
			dec.DisallowUnknownFields()
			r = walReport{}
			if err := dec.Decode(&r); err != nil || dec.More() {
				t.Fatalf("not one object: %v\n%s", err, out)
			}
			if len(r.Voters) != 2 || len(r.Changes) != 4 || len(r.Tail) != 3 || r.Tail[2].Index != r.Last.Index {
				t.Fatalf("%s", out)
			}
			if r.Locked || r.Torn || r.Inconsistent != "" || r.Last.Index < 20 || r.Commit > r.Last.Index || r.Segments != 1 {
				t.Fatalf("%s", out)
			}
			if strings.Count(out, `"kind": "add-learner"`) != 1 || strings.Count(out, `"kind": "normal"`) != 3 {
				t.Fatalf("changes or tail: %s", out)
			}
		}
		out, _, code := twok(t, "wal", "inspect", dir)
		md, err := walsurgery.ReadMetadata(filepath.Dir(segment))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{hexID(md.MemberID).String(), hexID(md.ClusterID).String(), "add-learner", "remove-node", "torn tail   no", "locked      no"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Fatalf("exit %d, %q is missing:\n%s", code, want, out)
			}
		}
		if after, err := os.ReadFile(segment); err != nil || !bytes.Equal(after, before) {
			t.Fatalf("the segment changed: %v", err)
		}
	}
}

// A WAL in use is read all the same and reported as locked.
//
// Rules: none (command line).
func TestWALInspectLocked(t *testing.T) {
	dir, segment := dataDir(t, "3.6")
	l, err := walsurgery.Open(nil, filepath.Dir(segment))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if out, errs, code := twok(t, "wal", "inspect", dir); code != 0 || !strings.Contains(out, "locked      yes") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
}

// Exit codes, with a remedy, and nothing on stdout.
//
// Rules: none (command line).
func TestWALInspectErrors(t *testing.T) {
	damaged, segment := dataDir(t, "3.7")
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	b[700] ^= 4
	if err := os.WriteFile(segment, b, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "a.wal"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{damaged}, exitDamaged, "hint: keep the directory"},
		{[]string{foreign}, exitDamaged, "hint: twok knows etcd"},
		{[]string{t.TempDir()}, exitNoWAL, "hint: give etcd's --data-dir"},
		{[]string{"/nonexistent"}, exitNoWAL, "hint: give etcd's --data-dir"},
		{nil, exitUsage, "one directory"},
		{[]string{"a", "b"}, exitUsage, "one directory"},
		{[]string{"--tail", "-1", damaged}, exitUsage, "--tail"},
	} {
		out, errs, code := twok(t, append([]string{"wal", "inspect", "--json"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("%v: exit %d, %q, stdout %q", c.args, code, errs, out)
		}
	}
	help, _, _ := twok(t, "wal", "inspect", "--help")
	for _, want := range []string{"30 no WAL", "31 damaged"} {
		if !strings.Contains(help, want) {
			t.Errorf("--help does not say %q", want)
		}
	}
}
