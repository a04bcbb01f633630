package fault

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/history"
)

// The catalogue: names are unique and can stand in a test's name, every fault says what it is, can
// be aimed, and needs what there is. Rows are rows of docs/scenarios.md.
//
// Rules: none (the harness).
func TestCatalogue(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "scenarios.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^[A-Za-z0-9-]+$`)
	seen := map[string]bool{}
	for _, f := range All() {
		if seen[f.Name] || !name.MatchString(f.Name) || f.About == "" || len(f.Roles) == 0 || f.Run == nil {
			t.Errorf("%+v", f)
		}
		seen[f.Name] = true
		if f.Breaks != "" && f.Breaks != "A1" || f.Holds && f.Breaks == "" {
			t.Errorf("%s breaks %q, and holds: %t", f.Name, f.Breaks, f.Holds)
		}
		if (f.Untraced != "") != (f.Breaks != "") {
			t.Errorf("%s: only a fault that breaks an assumption is untraced, and each of these is: %q", f.Name, f.Untraced)
		}
		for _, r := range f.Rows {
			if !strings.Contains(string(doc), "| "+r+" |") {
				t.Errorf("%s: docs/scenarios.md has no row %s", f.Name, r)
			}
		}
		for _, r := range f.Roles {
			if !slices.Contains([]string{Leader, Follower, Pair}, r) {
				t.Errorf("%s: no role %q", f.Name, r)
			}
		}
		for _, a := range f.Needs.Arbiters {
			if !slices.Contains(cluster.Arbiters, a) {
				t.Errorf("%s: no arbiter %q", f.Name, a)
			}
		}
		for _, m := range f.Needs.Minors {
			if !slices.Contains(lab.Minors, m) {
				t.Errorf("%s: no release line %q", f.Name, m)
			}
		}
		for _, m := range f.Needs.Modes {
			if _, ok := cluster.Modes[m]; !ok {
				t.Errorf("%s: no mode %q", f.Name, m)
			}
		}
	}
}

// A fault that may pass without a claim shows in another way that it was in force: by what a cut has dropped, by who was killed, by a
// silence, by a log.
//
// Rules: none (the harness).
func TestShown(t *testing.T) {
	without := []string{"cut-large", "loss", "flap", "cut-unclaimed", "etcd-kill", "etcd-term", "etcd-hiccup", "both-down", "chaos", "disk-full", "F4", "F33"}
	for _, f := range All() {
		if free := slices.Contains(without, f.Name); free != (f.Claims == 0) {
			t.Errorf("%s takes %d claims", f.Name, f.Claims)
		}
		if f.Random != (f.Name == "chaos") {
			t.Errorf("%s is random: %t", f.Name, f.Random)
		}
		if f.Claims > 0 && f.Shown(f.Claims-1) == nil || f.Shown(f.Claims) != nil {
			t.Errorf("%s, which takes %d claims: %v, %v", f.Name, f.Claims, f.Shown(f.Claims-1), f.Shown(f.Claims))
		}
	}
}

// Two sites have to ask for the same generation.
//
// Rules: F2.
func TestContested(t *testing.T) {
	a2, b2, b3 := history.Claim{Site: "a", Generation: 2, Won: true}, history.Claim{Site: "b", Generation: 2}, history.Claim{Site: "b", Generation: 3}
	if contested([]history.Claim{a2, a2, b3}) || !contested([]history.Claim{a2, b3, b2}) {
		t.Error("two sites that ask for one generation, or for two, or one that asks twice")
	}
}

// A signal that meets no process is an error, but SIGCONT, for what was frozen may have been killed.
//
// Rules: none (the harness).
func TestSend(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{0, gone.Process.Pid} {
		if err := send("etcd", "a", pid, syscall.SIGSTOP); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("SIGSTOP to process %d: %v", pid, err)
		}
		if err := send("etcd", "a", pid, syscall.SIGCONT); err != nil {
			t.Errorf("SIGCONT to process %d: %v", pid, err)
		}
	}
	if err := send("agent", "a", os.Getpid(), syscall.SIGCONT); err != nil {
		t.Error(err)
	}
}

// Every step of claim, return and token is a step that the program has, and none of them is left out.
//
// Rules: none (the harness).
func TestSteps(t *testing.T) {
	declared := map[string]bool{}
	for _, name := range []string{"walsurgery/plan.go", "walsurgery/rewrite.go"} {
		src, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(wal/(?:append|rewrite)/[a-z]+)"`).FindAllStringSubmatch(string(src), -1) {
			declared[m[1]] = true
		}
	}
	if len(declared) < 10 {
		t.Fatalf("only %d steps were found in walsurgery", len(declared))
	}
	all := claimSteps + " " + returnSteps
	for step := range declared {
		if !slices.Contains(strings.Fields(all), step) {
			t.Errorf("no scenario stops at %s", step)
		}
	}
	for step := range strings.FieldsSeq(all + " " + tokenSteps) {
		name, _, _ := strings.Cut(step, "@")
		if strings.HasPrefix(step, "wal/") && !declared[name] {
			t.Errorf("walsurgery declares no %s", name)
		}
	}
	if got := pauseAt("agent/swap/after@2", "/g"); got != "agent/swap/after=pause:/g@2" {
		t.Errorf("the specification is %q", got)
	}
}

// A WAL is spoiled in one bit of a client's entry.
//
// Rules: none (the harness).
func TestSpoil(t *testing.T) {
	dir := t.TempDir()
	if _, err := spoil(dir); err == nil {
		t.Error("an empty directory was spoiled")
	}
	before := append([]byte("head u/1/1 more and more and then u/2/2 end"), make([]byte, 100)...)
	if err := os.WriteFile(filepath.Join(dir, "0.wal"), before, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := spoil(dir); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(filepath.Join(dir, "0.wal"))
	if err != nil {
		t.Fatal(err)
	}
	diff := 0
	for i := range after {
		if after[i] != before[i] {
			diff++
		}
	}
	if len(after) != len(before) || diff != 1 {
		t.Errorf("%d bytes differ", diff)
	}
}
