package scenario

import (
	"os/exec"
	"path/filepath"
	"testing"

	"twok/internal/lab"
)

// TestBrokenPrograms: the patches with which docs/harness.md shows that the harness bites fit the code as it is.
//
// Rules: none (the harness).
func TestBrokenPrograms(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	patches, err := filepath.Glob("testdata/*.patch")
	if err != nil || len(patches) != 2 {
		t.Fatalf("%q, %v", patches, err)
	}
	for _, p := range patches {
		abs, err := filepath.Abs(p)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "apply", "--check", abs)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", p, err, out)
		}
	}
}
