package scenario

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/fault"
)

// The matrix has every fault, every role that a fault can be aimed at, every release line, every arbiter and both
// modes; names are unique and select their own cell.
//
// Rules: none (the harness).
func TestMatrix(t *testing.T) {
	all := Matrix()
	seen := map[string]bool{}
	parts := map[string]bool{}
	for _, c := range all {
		if seen[c.Name()] {
			t.Errorf("%s is there twice", c.Name())
		}
		seen[c.Name()] = true
		for p := range strings.SplitSeq(c.Name(), "/") {
			parts[p] = true
		}
	}
	want := slices.Concat(lab.Minors, cluster.Arbiters, modes, []string{fault.Leader, fault.Follower, fault.Pair})
	for _, f := range fault.All() {
		want = append(want, f.Name)
	}
	for _, p := range want {
		if !parts[p] {
			t.Errorf("no cell has %s", p)
		}
	}
	for _, c := range []Cell{all[0], all[len(all)/2], all[len(all)-1]} {
		if got, err := Select(all, c.Name()); err != nil || len(got) != 1 || got[0].Name() != c.Name() {
			t.Errorf("%s selects %d cells: %v", c.Name(), len(got), err)
		}
	}
	for expr, n := range map[string]int{"^cut-both$": 0, "^cut-both/": 24, "^cut-both$/pair/3.6": 8, "^cut-both$//3.6/serve/signal": 1, "nothing": 0} {
		if got, err := Select(all, expr); err != nil || len(got) != n {
			t.Errorf("%q selects %d cells, want %d: %v", expr, len(got), n, err)
		}
	}
	got, err := Select(all, "F32//3.6/serve/signal")
	if err != nil {
		t.Fatal(err)
	}
	faults := map[string]bool{}
	for _, c := range got {
		faults[c.Fault.Name] = true
		if !slices.Contains(c.Fault.Rows, "F32") || c.Minor != "3.6" {
			t.Errorf("F32 selects %s", c.Name())
		}
	}
	if len(faults) < 4 {
		t.Errorf("F32 is shown by %v", faults)
	}
	if _, err := Select(all, "("); err == nil {
		t.Error("a malformed expression was taken")
	}
}

// go test -run selects the same: faults by name, and rows with every fault that shows them, once each; what names no row has no rows.
//
// Rules: none (the harness).
func TestGroups(t *testing.T) {
	all := Matrix()
	of := func(run string) []group {
		t.Helper()
		gs, err := groups(all, run)
		if err != nil {
			t.Fatal(err)
		}
		return gs
	}
	names := func(run string) (out []string) {
		for _, g := range of(run) {
			out = append(out, g.name)
			for _, c := range g.cells {
				if shows := c.Fault.Name == g.name || slices.Contains(c.Fault.Rows, g.name); g.row != rowsOnly.MatchString(g.name) || !shows {
					t.Errorf("%q: %s has %s", run, g.name, c.Name())
				}
			}
		}
		return out
	}
	for run, want := range map[string][]string{
		"TestSafety/F32": {"F32"}, "TestSafety/^F3$/pair": {"F3"}, "TestSafety/(F31|F32)//3.6": {"F31", "F32"}, "^TestSafety$/^(F2|F4)$": {"F2", "F4"},
	} {
		if got := names(run); !slices.Equal(got, want) {
			t.Errorf("-run %q has %q, want %q", run, got, want)
		}
		for _, g := range of(run) {
			want, err := Select(all, g.name)
			if err != nil || len(want) == 0 || len(g.cells) != len(want) {
				t.Errorf("-run %q: %s has %d cells, and --select %d, %v", run, g.name, len(g.cells), len(want), err)
			}
		}
	}
	for _, run := range []string{"", "TestSafety", "TestSafety/cut-both", "TestSafety/(cut-both|flap)"} {
		n := 0
		for _, g := range of(run) {
			if n += len(g.cells); g.row {
				t.Errorf("-run %q has the row %s", run, g.name)
			}
		}
		if n != len(all) {
			t.Errorf("-run %q has %d of %d cells", run, n, len(all))
		}
	}
	for _, run := range []string{
		"TestSafety/(cut-both|F32)", "TestSafety/(cut-both|F2)", "TestSafety/cut-both|TestSafety/F32", "TestSafety/F31|F32", "TestSafety/F31/leader|TestSafety/F32", "TestSafety/F3[12]",
	} {
		if gs, err := groups(all, run); err == nil {
			t.Errorf("-run %q, which go test reads otherwise: %d groups", run, len(gs))
		}
	}
	seen := map[string]int{}
	for _, g := range of("TestSafety/F32") {
		t.Run(g.name, func(t *testing.T) {
			nest(t, g.cells, 1, g.row, func(t *testing.T, c Cell) { seen[t.Name()+" "+c.Name()]++ })
		})
	}
	if want, _ := Select(all, "F32"); len(seen) != len(want) {
		t.Errorf("subtests of F32: %d, want %d", len(seen), len(want))
	}
	if n := seen["TestGroups/F32/leader/3.7/serve/signal/both-down both-down/leader/3.7/serve/signal"]; n != 1 {
		t.Errorf("both-down was played %d times", n)
	}
}

// The default selection has all release lines, both modes, both roles and all arbiters but the
// apiserver. Of the faults and of the rows that faults show it lacks what doc.go says, and nothing else.
//
// Rules: none (the harness).
func TestDefault(t *testing.T) {
	parts := map[string]bool{}
	rows := map[string]bool{}
	for _, c := range Default() {
		for p := range strings.SplitSeq(c.Name(), "/") {
			parts[p] = true
		}
		for _, r := range c.Fault.Rows {
			rows[r] = true
		}
		if got, err := Select(Matrix(), c.Name()); err != nil || len(got) != 1 {
			t.Errorf("%s is no cell of the matrix", c.Name())
		}
	}
	for _, p := range slices.Concat(lab.Minors, modes, []string{"serve", "s3", "etcd", fault.Leader, fault.Follower}) {
		if !parts[p] {
			t.Errorf("no cell has %s", p)
		}
	}
	if parts["configmap"] {
		t.Error("the apiserver is in the default selection")
	}
	// Of the rows that some fault shows: F12 is rotation's and F15 etcd-term's, and neither is among them.
	var lacks, left []string
	steps, stepsLeft, total := 0, 0, 0
	for _, f := range fault.All() {
		if total++; strings.HasPrefix(f.Name, "step-") {
			steps++
		}
		for _, r := range f.Rows {
			if !rows[r] && !slices.Contains(lacks, r) {
				lacks = append(lacks, r)
			}
		}
		switch {
		case parts[f.Name]:
		case strings.HasPrefix(f.Name, "step-"):
			stepsLeft++
		default:
			left = append(left, f.Name)
		}
	}
	if slices.Sort(lacks); !slices.Equal(lacks, []string{"F12", "F15"}) {
		t.Errorf("the default selection shows nothing of the rows %s", lacks)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(strings.ReplaceAll(string(doc), "//", "")), " ")
	_, list, _ := strings.Cut(text, " steps and ")
	list, _, _ = strings.Cut(list, " Each of these")
	if list = strings.ReplaceAll(list, "and by selection alone big.", "big"); !sameNames(strings.Fields(list), left) {
		t.Errorf("doc.go says that %s are left out, and %s are", list, left)
	}
	for _, said := range []string{fmt.Sprintf("%d cells", len(Default())), fmt.Sprintf("of the %d named steps", steps), fmt.Sprintf("the other %d steps", stepsLeft)} {
		if !strings.Contains(text, said) {
			t.Errorf("doc.go does not say %q", said)
		}
	}
	if len(Default()) != total-stepsLeft-len(left) {
		t.Errorf("%d cells for %d faults: one is there twice", len(Default()), total-stepsLeft-len(left))
	}
}

func sameNames(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// Without namespaces the subset is smaller, and says what is missing.
//
// Rules: none (the harness).
func TestProxySubset(t *testing.T) {
	t.Setenv("TWOK_HARNESS", "proxy")
	all := Default()
	some := Possible(all)
	if len(some) == 0 || len(some) == len(all) {
		t.Errorf("%d of %d cells are possible with a proxy", len(some), len(all))
	}
	for _, c := range all {
		if err := c.Fault.Possible(); c.Fault.Needs.Namespaces != errors.Is(err, cluster.ErrNoNamespaces) {
			t.Errorf("%s: %v", c.Fault.Name, err)
		}
	}
}

// A cell's seed follows from the run's and its name.
//
// Rules: none (the harness).
func TestSeed(t *testing.T) {
	a, b := Default()[0], Default()[1]
	again := Default()[0]
	if a.Seed(1) != again.Seed(1) || a.Seed(1) == a.Seed(2) || a.Seed(1) == b.Seed(1) {
		t.Errorf("seeds %d, %d, %d", a.Seed(1), a.Seed(2), b.Seed(1))
	}
}

// Programs and scenarios of a dead run are removed; those of a living one, red ones and other people's stay.
//
// Rules: none (the harness).
func TestReap(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{ // and whether they stay
		fmt.Sprintf("%s%d-1", binPrefix, dead.Process.Pid): false, fmt.Sprintf("%s%d-1", binPrefix, os.Getpid()): true, binPrefix + "x-1": true, "other": true,
		fmt.Sprintf("%s%d-1", runPrefix, dead.Process.Pid): false, fmt.Sprintf("%s%d-2", runPrefix, dead.Process.Pid): true, fmt.Sprintf("%s%d-1", runPrefix, os.Getpid()): true,
	}
	for n := range names {
		if err := os.MkdirAll(filepath.Join(tmp, n, "below"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tmp, fmt.Sprintf("%s%d-2", runPrefix, dead.Process.Pid), keptFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reap(); err != nil {
		t.Fatal(err)
	}
	for n, stays := range names {
		if _, err := os.Stat(filepath.Join(tmp, n)); (err == nil) != stays {
			t.Errorf("%s: it should stay: %t; %v", n, stays, err)
		}
	}
}
