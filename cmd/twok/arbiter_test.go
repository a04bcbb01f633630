package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
)

// twok runs the real command line.
func twok(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"twok"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

// Rules: none (command line).
func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"nonsense", `twok has no command "nonsense"`},
		{"--nonsense", "flag provided but not defined"},
		{"arbiter nonsense", `twok arbiter has no command "nonsense"`},
		{"arbiter --nonsense", "flag provided but not defined"},
		{"arbiter show", "needs --arbiter"},
		{"arbiter show --json", "needs --arbiter"},
		{"arbiter show --arbiter http://127.0.0.1:1/x --nonsense", "flag provided but not defined"},
		{"arbiter show --arbiter http://127.0.0.1:1/x extra", `no argument, got "extra"`},
		{"arbiter show --arbiter ftp://bucket/key", `scheme "ftp" is not supported`},
		{"arbiter show --arbiter 127.0.0.1:7379", "--arbiter"},
		{"arbiter show --arbiter host/name", "it has no scheme"},
		{"arbiter show --arbiter http://127.0.0.1:7379", "no path"},
		{"arbiter show http://127.0.0.1:1/x", "a URL goes behind its flag: --arbiter http://127.0.0.1:1/x"},
		{"arbiter show --arbiter http://127.0.0.1:1/x --timeout 0s", "--timeout is 0s: it must be positive"},
		{"arbiter probe --timeout -1s http://127.0.0.1:1/x", "--timeout is -1s: it must be positive"},
		{"arbiter claim --arbiter http://127.0.0.1:1/x --member a --accept-data-loss --wait -1s", "--wait is -1s: it must not be negative"},
		{"agent --data-dir x --arbiter http://127.0.0.1:1/x --hold-down -1s", "--hold-down is -1s: it must not be negative"},
		{"arbiter probe http://127.0.0.1:1/x --json", "hint: flags come before it"},
		{"arbiter probe --arbiter http://127.0.0.1:1/x http://127.0.0.1:1/y", "takes one URL"},
		{"arbiter serve", "needs --dir"},
		{"arbiter serve --dir x extra", `no argument, got "extra"`},
	} {
		stdout, stderr, code := twok(t, strings.Fields(c.args)...)
		if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "twok: error: ") || !strings.Contains(stderr, c.says) {
			t.Errorf("twok %s: exit %d\nstdout: %s\nstderr: %s", c.args, code, stdout, stderr)
		}
	}
}

// Rules: none (command line).
func TestHelp(t *testing.T) {
	for _, args := range []string{"", "--help", "arbiter", "arbiter --help", "arbiter show --help", "arbiter serve --help"} {
		stdout, stderr, code := twok(t, strings.Fields(args)...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, "USAGE") {
			t.Errorf("twok %s: exit %d\nstdout: %s\nstderr: %s", args, code, stdout, stderr)
		}
	}
	stdout, _, _ := twok(t, "arbiter", "show", "--help")
	for _, code := range []int{exitAbsent, exitEmpty, exitGarbage, exitForeign, exitFuture, exitForbidden, exitUnavailable, exitMisconfigured, exitUnknown} {
		if !strings.Contains(stdout, fmt.Sprintf("   %d  ", code)) {
			t.Errorf("exit code %d is not in the help:\n%s", code, stdout)
		}
	}
}

// Rules: none (command line).
func TestHintAndCode(t *testing.T) {
	base := errors.New("line one\nline two")
	err := fmt.Errorf("outer: %w", hint(withCode(hint(base, "inner hint"), 7), "outer hint"))
	var b bytes.Buffer
	if code := report(&b, err); code != 7 {
		t.Errorf("code %d", code)
	}
	if want := "twok: error: outer: line one; line two\nhint: outer hint\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	if !errors.Is(err, base) {
		t.Error("errors.Is does not see through")
	}
	b.Reset()
	if code := report(&b, hint(base, "only")); code != exitError || !strings.HasSuffix(b.String(), "hint: only\n") {
		t.Errorf("%d %q", code, b.String())
	}
	if hint(nil, "x") != nil || withCode(nil, 3) != nil || report(&b, nil) != 0 {
		t.Error("nil is not nil")
	}
}

func aRecord() arbiter.Record {
	r := arbiter.Record{
		ID: "5f0cafe", Nonce: "n2", ClaimNonce: "n1", ClusterID: 0xcdf818194e3a8c32, Generation: 3,
		Survivor: arbiter.Member{ID: 0x8e9e05c52164694d, Name: "m1\x1b[31m"}, Reason: "no contact for 3s",
		CreatedAt: 1767322800123, ClaimedAt: 1767322900000, WrittenAt: 1767322900001,
		ClaimEnd: arbiter.Position{Index: 1041, Term: 7}, Drain: true, Forced: true,
	}
	r.History[0] = arbiter.HistoryEntry{First: 1, Last: 2, Survivor: 0xfd422379fda50e48, Fork: arbiter.Position{Index: 9, Term: 2}}
	r.History[1] = arbiter.HistoryEntry{First: 3, Last: 3, Survivor: 0x8e9e05c52164694d, Forced: true}
	return r
}

// Rules: P11; F11.
func TestShowExitCodes(t *testing.T) {
	good, err := arbiter.Encode(aRecord())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		status int
		body   string
		code   int
		says   string
	}{
		{"record", 200, string(good), 0, ""},
		{"absent", 404, "", exitAbsent, "absent"},
		{"empty", 200, "", exitEmpty, "empty"},
		{"white space", 200, " \n", exitEmpty, "white space"},
		{"garbage", 200, "hello", exitGarbage, "garbage"},
		{"truncated", 200, string(good[:100]), exitGarbage, "truncated"},
		{"foreign", 200, `{"a":1}`, exitForeign, "not a twok record"},
		{"future", 200, `{"format":"twok-record","version":2}`, exitFuture, "newer format"},
		{"forbidden", 403, "", exitForbidden, "refused access"},
		{"unavailable", 503, "", exitUnavailable, "unavailable"},
		{"misconfigured", 302, "", exitMisconfigured, "redirects are not followed"},
	} {
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"t1"`)
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		}))
		for _, asJSON := range []bool{false, true} {
			args := []string{"arbiter", "show", "--arbiter", hs.URL + "/pair"}
			if asJSON {
				args = append(args, "--json")
			}
			stdout, stderr, code := twok(t, args...)
			if code != c.code || !strings.Contains(stderr, c.says) {
				t.Errorf("%s: exit %d, want %d: %s", c.name, code, c.code, stderr)
			}
			if code != 0 && (stdout != "" || strings.Count(stderr, "\n") != 2 || !strings.Contains(stderr, "\nhint: ")) {
				t.Errorf("%s: want nothing, an error and a hint\nstdout: %s\nstderr: %s", c.name, stdout, stderr)
			}
			if code == 0 {
				checkShown(t, stdout, asJSON)
			}
		}
		hs.Close()
	}
	_, stderr, code := twok(t, "arbiter", "show", "--arbiter", "http://127.0.0.1:1/pair")
	if code != exitUnavailable {
		t.Errorf("nobody listens: exit %d: %s", code, stderr)
	}
}

func checkShown(t *testing.T, stdout string, asJSON bool) {
	t.Helper()
	if asJSON {
		var got struct {
			Arbiter, Version string
			Record           json.RawMessage
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatalf("%v: %s", err, stdout)
		}
		r, err := arbiter.Decode(got.Record)
		if err != nil || r != aRecord() || got.Version != `"t1"` || !strings.HasSuffix(got.Arbiter, "/pair") {
			t.Errorf("%v %+v", err, got)
		}
		return
	}
	for _, want := range []string{"8e9e05c52164694d", `m1\x1b[31m`, "cdf818194e3a8c32", "no contact for 3s", "index 1041, term 7", "drain forced", "1-2 ", "fd422379fda50e48"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "\x1b") {
		t.Error("a stored text controls the terminal")
	}
}

// lineWriter hands each write to a channel.
type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) { w <- string(b); return len(b), nil }

// Rules: P1, P3; F11.
func TestServeAndShow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "arbiter")
	ctx, stop := context.WithCancel(t.Context())
	lines := make(lineWriter, 10)
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"twok", "arbiter", "serve", "--listen", "127.0.0.1:0", "--dir", dir, "--json"}, lines, &errs)
	}()
	var ready struct {
		URL, Listen, Dir string
		PID              int
		Leftovers        []string
	}
	select {
	case line := <-lines:
		if err := json.Unmarshal([]byte(line), &ready); err != nil || ready.Dir != dir || ready.PID != os.Getpid() || ready.Leftovers == nil {
			t.Fatalf("%v: %s", err, line)
		}
	case code := <-done:
		t.Fatalf("exit %d: %s", code, errs.String())
	case <-time.After(30 * time.Second):
		t.Fatal("the arbiter does not start")
	}
	url := ready.URL + "pair"
	if _, stderr, code := twok(t, "arbiter", "show", "--arbiter", url); code != exitAbsent {
		t.Errorf("before: exit %d: %s", code, stderr)
	}
	r, err := arbiterRegister(url)
	if err != nil {
		t.Fatal(err)
	}
	value, err := arbiter.Encode(aRecord())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.CompareAndSwap(ctx, arbiter.Absent, value); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := twok(t, "arbiter", "show", "--arbiter", url); code != 0 || !strings.Contains(stdout, "5f0cafe") {
		t.Errorf("after: exit %d: %s%s", code, stdout, stderr)
	}
	if _, stderr, code := twok(t, "arbiter", "serve", "--dir", dir, "--listen", "127.0.0.1:0"); code != exitInUse || !strings.Contains(stderr, "in use") {
		t.Errorf("second arbiter on the directory: exit %d: %s", code, stderr)
	}
	if _, stderr, code := twok(t, "arbiter", "serve", "--dir", filepath.Join(t.TempDir(), "x"), "--listen", ready.Listen); code != exitInUse {
		t.Errorf("second arbiter on the address: exit %d: %s", code, stderr)
	}
	stop()
	if code := <-done; code != 0 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	if _, _, code := twok(t, "arbiter", "show", "--arbiter", url); code != exitUnavailable {
		t.Errorf("after the end: exit %d", code)
	}
}
