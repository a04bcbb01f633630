package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// toyTool is a checkout with one tool, which needs no network to build, and an empty cache.
func toyTool(t *testing.T) (tool, string) {
	t.Helper()
	root, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	for name, text := range map[string]string{
		"go.mod":                            "module twok\n",
		"testing/tools/toy/go.mod":          "module toy.invalid/tool\n\ngo 1.24\n\nrequire toy.invalid/toy v1.2.3\n\nreplace toy.invalid/toy => ./toy\n",
		"testing/tools/toy/go.sum":          "",
		"testing/tools/toy/toy/go.mod":      "module toy.invalid/toy\n\ngo 1.24\n",
		"testing/tools/toy/toy/cmd/main.go": "package main\n\nfunc main() { println(\"toy 1.2.3\") }\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TWOK_ROOT", root)
	t.Setenv("TWOK_CACHE", cache)
	return tool{
		name: "toy", module: "toy", pins: "toy.invalid/toy",
		programs: map[string]string{"toy": "toy.invalid/toy/cmd", "toy2": "toy.invalid/toy/cmd"},
		check:    []string{"toy"},
	}, cache
}

// TestToolIsBuiltOnce by several at the same time, and again only if it is incomplete.
//
// Rules: none (tools).
func TestToolIsBuiltOnce(t *testing.T) {
	toy, cache := toyTool(t)
	var mu sync.Mutex
	built := 0
	get := func() string {
		var log bytes.Buffer
		version, dir, err := toy.get(t.Context(), &log)
		if err != nil || version != "1.2.3" || !toy.complete(dir) {
			t.Errorf("version %q, %q, %v", version, dir, err)
		}
		mu.Lock()
		defer mu.Unlock()
		built += strings.Count(log.String(), "built toy ")
		return dir
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { get() })
	}
	wg.Wait()
	if built != 1 {
		t.Fatalf("built %d times", built)
	}
	// What a killed build leaves, and a directory that lacks a program.
	dir := get()
	if err := os.Mkdir(dir+".tmp-1", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "toy2"), 0); err != nil {
		t.Fatal(err)
	}
	get()
	if built != 2 {
		t.Errorf("an incomplete directory: built %d times", built)
	}
	names, err := filepath.Glob(filepath.Join(cache, "toy", "*"))
	if err != nil || len(names) != 2 { // the directory and its lock
		t.Errorf("the cache holds %q, %v", names, err)
	}
}

// TestToolErrors name the operation and the remedy, and leave no half of a tool.
//
// Rules: none (tools).
func TestToolErrors(t *testing.T) {
	toy, cache := toyTool(t)
	get := func(ctx context.Context) error {
		_, dir, err := toy.get(ctx, &bytes.Buffer{})
		if err == nil || toy.complete(dir) {
			t.Errorf("no error, %q", dir)
		}
		return err
	}
	good := toy.programs
	toy.programs = map[string]string{"toy": "toy.invalid/toy/none"}
	if err := get(t.Context()); err == nil || !strings.Contains(err.Error(), "go build") {
		t.Errorf("a package that does not exist: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "toy", "*.tmp-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	toy.programs = good
	toy.pins = "other.invalid/toy"
	if err := get(t.Context()); err == nil || !strings.Contains(err.Error(), "does not require") {
		t.Errorf("a pin that is missing: %v", err)
	}
	toy.pins = "toy.invalid/toy"

	_, key, err := toy.key(t.Context(), filepath.Join(os.Getenv("TWOK_ROOT"), "testing", "tools", "toy"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := lockFile(t.Context(), filepath.Join(cache, "toy", key)+".lock", func() {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := get(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another one builds: %v", err)
	}
	unlock()

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TWOK_CACHE", file)
	if err := get(t.Context()); err == nil || !strings.Contains(err.Error(), "set TWOK_CACHE") {
		t.Errorf("a cache that cannot be written: %v", err)
	}
	t.Setenv("TWOK_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("GOCACHE", filepath.Join(t.TempDir(), "go"))
	t.Setenv("GOPATH", t.TempDir())
	t.Setenv("HOME", "")
	if err := get(t.Context()); err == nil || !strings.Contains(err.Error(), "set TWOK_CACHE") {
		t.Errorf("no home: %v", err)
	}
	t.Setenv("TWOK_ROOT", t.TempDir())
	if err := get(t.Context()); !errors.Is(err, ErrNoSource) {
		t.Errorf("a root that is none: %v", err)
	}
}

// TestRoot finds the checkout from below.
//
// Rules: none (tools).
func TestRoot(t *testing.T) {
	t.Setenv("TWOK_ROOT", "")
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "internal", "lab", "tools_test.go")); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	if dir, err := Root(); !errors.Is(err, ErrNoSource) {
		t.Errorf("outside a checkout: %q, %v", dir, err)
	}
}

// Programs that the machine lacks are unpacked from Debian packages and found by name from then on.
//
// Rules: none (tools of the tests).
func TestOnPath(t *testing.T) {
	if _, err := os.Stat("/usr/bin/apt-get"); err != nil {
		t.Skip("no Debian")
	}
	// A PATH without them, and with everything that unpacking needs.
	bin := t.TempDir()
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range files {
			if n := f.Name(); n != "nft" && n != "ip" && n != "strace" {
				_ = os.Symlink(filepath.Join(dir, n), filepath.Join(bin, n)) // the first one counts
			}
		}
	}
	t.Setenv("PATH", bin)
	if err := OnPath(t.Context(), os.Stderr, "nft", "ip", "strace"); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]string{"nft": "-v", "ip": "-V", "strace": "-V"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(name, ask).CombinedOutput()
		if err != nil || !strings.Contains(path, "twok") {
			t.Errorf("%s: %s: %v %s", name, path, err, out)
		}
		t.Logf("%s: %s", path, out)
	}
	if err := OnPath(t.Context(), os.Stderr, "no-such-tool"); err == nil {
		t.Error("a tool that nobody knows")
	}
}
