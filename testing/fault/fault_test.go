package fault

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/zap"

	core "twok/internal/failover"
	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/history"
	"twok/walsurgery"
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
		if (f.Untraced != "") != (f.Breaks != "" || f.Name == "F3" || f.Name == "F24") {
			t.Errorf("%s: only F3, F24 and a fault that breaks an assumption are untraced, and each of these is: %q", f.Name, f.Untraced)
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
	without := []string{"cut-large", "loss", "flap", "cut-unclaimed", "etcd-kill", "etcd-term", "etcd-hiccup", "both-down", "chaos", "disk-full", "F3", "F4", "F33",
		"step-wake-restart-before", "step-wake-restart-after"}
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

// At every step that the program has stands a scenario, or a reason says why none does; no scenario stands at a step that it has not.
//
// Rules: none (the harness).
func TestSteps(t *testing.T) {
	program := declared(t, filepath.Join("..", ".."))
	if len(program) < 50 {
		t.Fatalf("only %d steps were found in the program", len(program))
	}
	played := map[string]bool{}
	for _, list := range []string{claimSteps, returnSteps, tokenSteps, wakeSteps} {
		for step := range strings.FieldsSeq(list) {
			name, _, _ := strings.Cut(step, "@")
			if played[name] = true; !program[name] {
				t.Errorf("the program has no step %s", name)
			}
		}
	}
	used := map[string]bool{}
	for step := range program {
		explained := ""
		for prefix := range elsewhere {
			if strings.HasPrefix(step, prefix) {
				explained, used[prefix] = prefix, true
			}
		}
		if played[step] == (explained != "") {
			t.Errorf("%s: a scenario stands there: %t; why none does: %q", step, played[step], elsewhere[explained])
		}
	}
	for prefix := range elsewhere {
		if !used[prefix] {
			t.Errorf("the program has no step %s", prefix)
		}
	}
	if got := pauseAt("agent/swap/after@2", "/g"); got != "agent/swap/after=pause:/g@2" {
		t.Errorf("the specification is %q", got)
	}
}

// declared are the steps that the packages of the program hand to failpoint.Declare: constants, and in internal/agent one
// before and one after each action. A declaration of another form fails the test.
func declared(t *testing.T, root string) map[string]bool {
	t.Helper()
	steps := map[string]bool{}
	err := filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); name == "testing" || name == "testdata" || name == "bin" || name == "failpoint" || name != ".." && strings.HasPrefix(name, ".") {
			return fs.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return err
		}
		consts := map[string]string{}
		var args []ast.Expr
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.ValueSpec:
					for i, v := range x.Values {
						if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
							consts[x.Names[i].Name], _ = strconv.Unquote(lit.Value)
						}
					}
				case *ast.CallExpr:
					if sel, ok := x.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Declare" && fmt.Sprint(sel.X) == "failpoint" {
						args = append(args, x.Args...)
					}
				}
				return true
			})
		}
		actions := 0
		for _, arg := range args {
			if id, ok := arg.(*ast.Ident); ok && consts[id.Name] != "" {
				steps[consts[id.Name]] = true
			} else if actions++; filepath.Base(dir) != "agent" || actions > 2 {
				t.Errorf("%s declares a step in a form that this test does not read: %#v", dir, arg)
			}
		}
		if actions > 0 {
			for _, k := range core.ActionKinds() {
				steps["agent/"+k.String()+"/before"], steps["agent/"+k.String()+"/after"] = true, true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return steps
}

// A torn write is one that walsurgery cuts off, keeping the segment, and loses nothing that was there before.
//
// Rules: none (the harness).
func TestTear(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wal")
	if _, err := tear(dir); err == nil {
		t.Error("a log that is not there was torn")
	}
	if err := walsurgery.CreateEmpty(zap.NewNop(), dir, walsurgery.Metadata{MemberID: 1, ClusterID: 2}); err != nil {
		t.Fatal(err)
	}
	summary := func() walsurgery.Summary {
		l, err := walsurgery.Inspect(zap.NewNop(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Summary()
	}
	before := summary()
	half, err := tear(dir)
	if err != nil {
		t.Fatal(err)
	}
	torn := summary()
	if before.Torn || !torn.Torn || torn.Last != before.Last || torn.Metadata != before.Metadata {
		t.Errorf("torn: %+v, before: %+v", torn, before)
	}
	if err := half.repaired(false); err == nil {
		t.Error("nothing was copied aside, and nobody says so")
	}
	l, err := walsurgery.Open(zap.NewNop(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(half.path)
	if err != nil {
		t.Fatal(err)
	}
	// etcd's code preallocates again what was cut off.
	for _, c := range []struct {
		name string
		b    []byte
		bad  bool
	}{{"cut", now[:half.end], false}, {"a frame too much", now[:half.end-8], true}, {"not cut", half.whole, true}} {
		if err := os.WriteFile(half.path, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := half.repaired(true); (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := os.WriteFile(half.path+".broken", now, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := half.repaired(false); err == nil {
		t.Error("another copy")
	}
}

// What strace saw of a claim and of a return has to have the agents' own files in it.
//
// Rules: F14.
func TestDurable(t *testing.T) {
	files := func() map[cluster.Sync]int {
		m := map[cluster.Sync]int{{Site: "b", Path: "data/member/wal/0.wal"}: 7}
		for _, path := range []string{"data/twok-memory.json.tmp", "data", "data/member/wal/0.wal"} {
			m[cluster.Sync{Agent: true, Site: "a", Path: path}] = 1
		}
		for _, path := range []string{"data/member/wal.staging-b2/0.wal", "data/member/wal.staging-b2", "data/member"} {
			m[cluster.Sync{Agent: true, Site: "b", Path: path}] = 1
		}
		return m
	}
	claims := []history.Claim{{Site: "a", Generation: 2, Won: true}, {Site: "b", Generation: 2}}
	judge := func(m map[cluster.Sync]int) error {
		return durable(m, claims, map[string]bool{"b": true}, func(string, ...any) {})
	}
	if err := judge(files()); err != nil {
		t.Error(err)
	}
	for f := range files() {
		m := files()
		if delete(m, f); f.Agent && judge(m) == nil {
			t.Errorf("without %v nobody says anything", f)
		}
	}
	m := files()
	delete(m, cluster.Sync{Agent: true, Site: "a", Path: "data/member/wal/0.wal"})
	m[cluster.Sync{Site: "a", Path: "data/member/wal/0.wal"}] = 9
	if judge(m) == nil {
		t.Error("etcd's sync was taken for the agent's")
	}
}

// A log that was set aside is found if it is whole there, under the name that a killed Reset leaves as well.
//
// Rules: F20.
func TestSetAside(t *testing.T) {
	for _, name := range []string{"member.set-aside-wal-unreadable-1", "member.prepared-0000000000000001"} {
		dir := t.TempDir()
		want := map[string][]byte{"0.wal": []byte("0"), "1.wal": []byte("1")}
		for _, got := range []string{"", "0", "x"} {
			if got != "" {
				if err := os.WriteFile(filepath.Join(dir, name, "wal", "1.wal"), []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if err := os.MkdirAll(filepath.Join(dir, name, "wal"), 0o700); err != nil {
				t.Fatal(err)
			}
			if setAside(dir, want) == nil {
				t.Errorf("%s with %q counts as the log", name, got)
			}
		}
		for file, data := range want {
			if err := os.WriteFile(filepath.Join(dir, name, "wal", file), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := setAside(dir, want); err != nil {
			t.Error(err)
		}
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
