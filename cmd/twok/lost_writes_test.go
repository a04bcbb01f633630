package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/lab"
	"twok/walsurgery"
)

// lostPair is a pair whose member a was overridden by b: a's directory, set aside, and b running.
func lostPair(t *testing.T) (aside string, fork walsurgery.Position, c *lab.Cluster) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bin, err := lab.Etcd(t.Context(), "3.7", os.Stderr)
	must(err)
	c, err = lab.NewCluster(lab.Config{Dir: t.TempDir(), Etcd: bin, Mode: lab.Plain, Timing: lab.Fast})
	must(err)
	t.Cleanup(func() { c.Close() })
	ids := map[string]uint64{}
	for _, s := range lab.Sites {
		must(c.Site(s).StartEtcd())
	}
	must(c.WaitServing(t.Context()))
	cl, err := c.Site("a").Client()
	must(err)
	_, err = cl.Put(t.Context(), "k", "shared")
	must(err)
	for _, s := range lab.Sites {
		st, err := c.Site(s).Status(t.Context())
		must(err)
		ids[s] = st.Header.MemberId
	}
	operate := func(site string, term uint64) walsurgery.Position {
		must(c.Site(site).Kill())
		wal := filepath.Join(c.Site(site).DataDir, "member", "wal")
		l, err := walsurgery.Open(nil, wal)
		for end := time.Now().Add(10 * time.Second); errors.Is(err, walsurgery.ErrLocked) && time.Now().Before(end); l, err = walsurgery.Open(nil, wal) {
			time.Sleep(10 * time.Millisecond)
		}
		must(err)
		p, err := l.Plan([]uint64{ids[lab.Other(site)]}, walsurgery.MinTerm(term))
		must(err)
		must(errors.Join(l.Apply(p), l.Close()))
		return p.Fork
	}
	must(c.Site("b").Kill())
	operate("a", 0)
	fork = operate("b", 2<<32)
	must(c.Site("a").StartEtcd())
	must(c.Site("a").WaitServing(t.Context()))
	for _, op := range []clientv3.Op{clientv3.OpPut("k", "lost"), clientv3.OpPut("\x00bin\n", "\xff"), clientv3.OpPut("gone", "x"), clientv3.OpDelete("gone"), clientv3.OpPut("conflict", "a")} {
		_, err := cl.Do(t.Context(), op)
		must(err)
	}
	cl.Close()
	must(c.Site("a").Kill())
	aside = filepath.Join(c.Site("a").DataDir, "member.set-aside-overridden-20260101T000000Z")
	must(os.Rename(filepath.Join(c.Site("a").DataDir, "member"), aside))
	must(c.Site("b").StartEtcd())
	must(c.Site("b").WaitServing(t.Context()))
	cb, err := c.Site("b").Client()
	must(err)
	defer cb.Close()
	_, err = cb.Put(t.Context(), "conflict", "b")
	must(err)
	return aside, fork, c
}

// The table, the one JSON object as documented, the script, and the exit codes with their remedies.
//
// Rules: P18.
func TestLostWrites(t *testing.T) {
	aside, fork, c := lostPair(t)
	at := fmt.Sprintf("%d/%d", fork.Index, fork.Term)
	endpoint := c.Site("b").ClientURL

	out, errs, code := twok(t, "lost-writes", "--data-dir", aside, "--fork", at, "--endpoints", endpoint)
	for _, want := range []string{"5 changes of 4 keys", "2 lost, 1 the same, 1 superseded", `"k"`, `"shared"`, `"lost"`, `"\x00bin\n"`, "(deleted)", "superseded", "remove-node"} {
		if code != 0 || errs != "" || !strings.Contains(out, want) {
			t.Fatalf("exit %d, %q is missing:\n%s%s", code, want, out, errs)
		}
	}

	out, errs, code = twok(t, "lost-writes", "--data-dir", aside, "--fork", at, "--endpoints", endpoint, "--json")
	var r lostReport
	dec := json.NewDecoder(strings.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil || dec.More() || code != 0 || errs != "" {
		t.Fatalf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	status := map[string]string{}
	for _, k := range r.Keys {
		status[string(k.Key)] = k.Status
	}
	if r.Version != 1 || len(r.Changes) != 5 || len(status) != 4 || status["k"] != "lost" || status["\x00bin\n"] != "lost" || status["gone"] != "same" || status["conflict"] != "superseded" ||
		!r.Compared || !r.Alone || r.Fork.Other != fork || r.Fork.LowRevision != r.Fork.HighRevision {
		t.Fatalf("%s", out)
	}
	if c := r.Changes[0]; string(c.Key) != "k" || string(c.New.Value) != "lost" || c.Old.Is == nil || string(c.Old.Is.Value) != "shared" || c.Op != "put" || c.Index == 0 {
		t.Fatalf("%+v\n%s", c, out)
	}
	// Every field is documented.
	doc, err := os.ReadFile("../../docs/lost-writes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range fieldNames(t, out) {
		if !bytes.Contains(doc, []byte("`"+name+"`")) {
			t.Errorf("docs/lost-writes.md does not have `%s`", name)
		}
	}

	out, _, code = twok(t, "lost-writes", "--data-dir", aside, "--fork", at, "--endpoints", endpoint, "--script")
	for _, want := range []string{"#!/bin/sh\n", `write 'mod("k") = "`, `'put -- "\x00bin\x0a" "\xff"'`, "CONFLICT", "\n#write 'mod(\"conflict\")"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Fatalf("exit %d, %q is missing:\n%s", code, want, out)
		}
	}

	// A fork above the own claim: the own claim counts.
	out, _, code = twok(t, "lost-writes", "--data-dir", aside, "--fork", "1000/7", "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || len(r.Changes) != 5 || r.Compared || r.Fork.Exact {
		t.Fatalf("exit %d, %v\n%s", code, err, out)
	}
	// The record says the same, and while it does not know the fork yet it says that.
	md, err := walsurgery.ReadMetadata(filepath.Join(aside, "wal"))
	if err != nil {
		t.Fatal(err)
	}
	rec := aRecord()
	rec.ClusterID, rec.History[0] = md.ClusterID, arbiter.HistoryEntry{First: 3, Last: 3, Survivor: rec.Survivor.ID, Fork: arbiter.Position(fork), Forced: true}
	rec.History[1] = arbiter.HistoryEntry{}
	serve := func(rec arbiter.Record) string {
		b, err := arbiter.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"t1"`)
			w.Write(b)
		}))
		t.Cleanup(hs.Close)
		return hs.URL + "/pair"
	}
	known := serve(rec)
	rec.History[0].Fork = arbiter.Position{}
	unknown := serve(rec)
	out, errs, code = twok(t, "lost-writes", "--data-dir", aside, "--arbiter", known)
	if code != 0 || !strings.Contains(out, "the record's history, generation 3") || !strings.Contains(out, "5 changes of 4 keys") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	empty := t.TempDir()
	for _, x := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--data-dir", aside}, exitUsage, "needs --arbiter"},
		{[]string{"--fork", at}, exitUsage, "needs --data-dir"},
		{[]string{"--data-dir", aside, "--fork", "7"}, exitUsage, "INDEX/TERM"},
		{[]string{"--data-dir", aside, "--fork", at, "--against", empty}, exitUsage, "exclude"},
		{[]string{"--data-dir", aside, "--fork", at, "--json", "--script"}, exitUsage, "exclude"},
		{[]string{"--data-dir", aside, "--fork", at, "--overwrite-conflicts"}, exitUsage, "--script"},
		{[]string{"--data-dir", aside, "--fork", at, "--endpoints", endpoint, "--user", "u"}, exitUsage, "--password-file"},
		{[]string{"--data-dir", empty, "--fork", at}, exitNoWAL, "hint: give the member.set-aside"},
		{[]string{"--data-dir", c.Site("b").DataDir, "--fork", at}, exitDirInUse, "etcd runs"},
		{[]string{"--data-dir", aside, "--against", empty}, exitNoWAL, "hint:"},
		{[]string{"--data-dir", aside, "--fork", at, "--endpoints", "http://127.0.0.1:1", "--timeout", "1s"}, exitNotCompared, "hint: check --endpoints"},
		{[]string{"--data-dir", aside, "--arbiter", unknown}, exitForkUnknown, "hint: give another source"},
		{[]string{"--data-dir", aside, "--arbiter", "http://127.0.0.1:1/pair"}, exitUnavailable, "hint:"},
		{[]string{"--data-dir", aside, "--arbiter", "nonsense"}, exitUsage, "--arbiter"},
	} {
		out, errs, code := twok(t, append([]string{"lost-writes"}, x.args...)...)
		if code != x.code || !strings.Contains(errs, x.says) || out != "" {
			t.Errorf("%v: exit %d, want %d; %q, stdout %q", x.args, code, x.code, errs, out)
		}
	}
	help, _, _ := twok(t, "lost-writes", "--help")
	for _, want := range []string{"30 no member", "31 damaged", "32 the fork", "34 the endpoints"} {
		if !strings.Contains(help, want) {
			t.Errorf("--help does not say %q", want)
		}
	}
}

// fieldNames are all names in an object, and below.
func fieldNames(t *testing.T, text string) []string {
	t.Helper()
	var x any
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var names []string
	var walk func(any)
	walk = func(x any) {
		switch x := x.(type) {
		case []any:
			for _, y := range x {
				walk(y)
			}
		case map[string]any:
			for name, y := range x {
				if !seen[name] {
					seen[name] = true
					names = append(names, name)
				}
				walk(y)
			}
		}
	}
	walk(x)
	return names
}
