package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"twok/internal/lab"
)

var builtTwok = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "twok-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "twok")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build twok: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := builtTwok(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// shown is what a demo printed.
type shown struct {
	demoResult
	code   int
	events []map[string]any
	stderr string
}

// runDemo runs the real program with --json and --json-events.
func runDemo(t *testing.T, args ...string) shown {
	t.Helper()
	twok, err := builtTwok()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "demo")
	cmd := exec.Command(twok, append([]string{"demo", "--json", "--json-events", "--dir", dir}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	s := shown{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()}
	dec := json.NewDecoder(&stdout)
	if err := dec.Decode(&s.demoResult); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s", err, s.stderr)
	}
	if dec.More() {
		t.Error("stdout holds more than one JSON object")
	}
	for line := range strings.Lines(s.stderr) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("stderr %q: %v", line, err)
		}
		s.events = append(s.events, m)
	}
	t.Cleanup(func() {
		if t.Failed() || s.code != 0 {
			t.Logf("%s", s.stderr)
		}
	})
	return s
}

// at is the place of the first event of that kind, at that site if it is not
// empty, at or behind place from; -1 if there is none.
func (s shown) at(kind lab.EventKind, site string, from int) int {
	for i := max(from, 0); i < len(s.events); i++ {
		if m := s.events[i]; m["event"] == string(kind) && (site == "" || m["site"] == site) {
			return i
		}
	}
	return -1
}

// inOrder checks that the steps ("kind" or "kind site") come one after the other.
func (s shown) inOrder(t *testing.T, steps ...string) {
	t.Helper()
	place := 0
	for i, step := range steps {
		kind, site, _ := strings.Cut(step, " ")
		next := s.at(lab.EventKind(kind), site, place)
		if next < 0 {
			t.Errorf("%q does not come after %q", step, steps[max(i-1, 0)])
			return
		}
		place = next + 1
	}
}

// good checks what every demo must show.
func (s shown) good(t *testing.T, cut lab.CutKind, rounds int) {
	t.Helper()
	if s.code != 0 || s.Lost != 0 || !s.HashesEqual || s.Acked == 0 || s.Cut != string(cut) || len(s.Rounds) != rounds ||
		s.FirstWrite == nil || s.WholeAfterHeal == nil {
		t.Fatalf("status %d: %+v", s.code, s.demoResult)
	}
	if want := fmt.Sprintf("%d acknowledged", s.Acked); !strings.HasPrefix(s.Rounds[rounds-1].Audit, want) {
		t.Errorf("the last audit does not cover all %d writes: %s", s.Acked, s.Rounds[rounds-1].Audit)
	}
	last := -1.0
	for _, m := range s.events {
		if at := m["t"].(float64); at < last {
			t.Errorf("the timeline goes back from %v to %v", last, m)
		} else {
			last = at
		}
	}
	if s.at("failed", "", 0) >= 0 {
		t.Error("a step failed, the status is 0")
	}
	if !cut.Claims() {
		if s.Survivor != nil || s.Generation != 1 {
			t.Errorf("survivor %v, generation %d: nobody should have claimed", s.Survivor, s.Generation)
		}
		s.inOrder(t, "start", "token", "whole", "cut", "heal", "first-write", "whole", "audit", "done")
		return
	}
	if s.Survivor == nil || s.Generation < uint64(1+rounds) {
		t.Fatalf("survivor %v, generation %d after %d cuts", s.Survivor, s.Generation, rounds)
	}
	if rounds > 1 {
		return
	}
	won := *s.Survivor
	lost := lab.Other(won)
	s.inOrder(t, "start", "token", "whole", "cut", "no-leader "+won, "claim "+won, "stop "+won, "named "+won, "append "+won,
		"lead "+won, "first-write", "heal", "learner "+lost, "rewritten "+lost, "caught-up "+lost, "hash "+lost,
		"promoted "+lost, "token", "whole", "audit", "done")
}

// TestDemoFast shows each cut with fast timing, one etcd release for each run in turn.
//
// Rules: P1, P2, P3, P4, P7, P8, P10, P12, P13, P14; F6, F24.
func TestDemoFast(t *testing.T) {
	for i, cut := range lab.CutKinds {
		t.Run(string(cut), func(t *testing.T) {
			minor := lab.Minors[i%len(lab.Minors)]
			args := []string{"--cut", string(cut), "--etcd-version", minor, "--fast", "--claim-after", "1s"}
			if !cut.Claims() {
				args[len(args)-1] = "5s" // both are down for a while, and nobody shall claim
			}
			s := runDemo(t, args...)
			s.good(t, cut, 1)
			if !strings.HasPrefix(s.EtcdVersion, minor+".") {
				t.Errorf("etcd %s, want %s", s.EtcdVersion, minor)
			}
			if cut == lab.CutKillLeader && *s.Survivor == s.Rounds[0].Leader || cut == lab.CutKillFollower && *s.Survivor != s.Rounds[0].Leader {
				t.Errorf("%s led, %s survives", s.Rounds[0].Leader, *s.Survivor)
			}
		})
	}
}

// TestDemoExternal: etcd is not the agent's child.
//
// Rules: P1, P2, P7, P8, P12, P14.
func TestDemoExternal(t *testing.T) {
	for _, cut := range []lab.CutKind{lab.CutLink, lab.CutKillLeader} {
		t.Run(string(cut), func(t *testing.T) {
			runDemo(t, "--cut", string(cut), "--fast", "--claim-after", "1s", "--etcd-run", "external").good(t, cut, 1)
		})
	}
}

// TestDemoRounds: several losses and returns of one pair.
//
// Rules: P2, P12, P13, P14.
func TestDemoRounds(t *testing.T) {
	s := runDemo(t, "--cut", "link", "--fast", "--claim-after", "1s", "--rounds", "3")
	s.good(t, lab.CutLink, 3)
	var acked int64
	generation := uint64(1)
	for i, r := range s.Rounds {
		acked += r.Acked
		// Each cut is a claim. A machine that stands still for claim-after may make one more.
		if r.Round != i+1 || r.Generation <= generation || *r.FirstWrite > *s.FirstWrite || *r.WholeAfterHeal > *s.WholeAfterHeal {
			t.Errorf("round %+v of %+v", r, s.demoResult)
		}
		generation = r.Generation
	}
	if acked != s.Acked {
		t.Errorf("%d acknowledged in all, %d in the rounds", s.Acked, acked)
	}
}
