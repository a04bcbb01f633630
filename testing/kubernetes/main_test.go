package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestState: a change of what is watched, committed or not, is another state; any
// other change is not.
//
// Rules: none (tools).
func TestState(t *testing.T) {
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@t.invalid", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	now := func() string {
		t.Helper()
		p, err := state(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		return p.trees
	}
	if _, err := state(t.Context(), root); err == nil {
		t.Error("no checkout, no error")
	}
	git("init", "-q")
	for _, dir := range watched {
		name := dir + "/a"
		if filepath.Ext(dir) != "" {
			name = dir
		}
		write(name, "1")
	}
	git("add", ".")
	git("commit", "-qm", "one")
	one := now()
	if one == "" {
		t.Fatal("a clean checkout has no trees")
	}
	write("README", "x")
	git("add", ".")
	if now() != one {
		t.Error("another file changed, and the state with it")
	}
	write("arbiter/b", "2")
	if now() != "" {
		t.Error("a new file under arbiter is not seen")
	}
	git("add", ".")
	git("commit", "-qm", "two")
	if two := now(); two == one || two == "" {
		t.Errorf("%q after %q", two, one)
	}
	file := filepath.Join(t.TempDir(), "commit")
	if p, err := load(file); err != nil || p != (passed{}) {
		t.Errorf("%v %v", p, err)
	}
	if err := os.WriteFile(file, []byte("abc\n"+one+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if p, err := load(file); err != nil || p != (passed{"abc", one}) {
		t.Errorf("%v %v", p, err)
	}
}
