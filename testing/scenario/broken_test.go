package scenario

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"twok/internal/lab"
)

// TestBrokenPrograms: the patches with which docs/harness.md shows that the harness bites fit the code as it is, and each has a row
// there that names a cell in which it is seen.
//
// Rules: none (the harness).
func TestBrokenPrograms(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "harness.md"))
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]bool{}
	for _, c := range Matrix() {
		cells[c.Name()] = true
	}
	patches, err := filepath.Glob("testdata/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("%q, %v", patches, err)
	}
	told := map[string]bool{} // by the table: a name in bold has a patch
	inBold, inCode := regexp.MustCompile("^\\| \\*\\*`([a-z0-9-]+)`\\*\\*"), regexp.MustCompile("`([^` ]+/[^` ]+)`")
	for line := range strings.Lines(string(doc)) {
		name := inBold.FindStringSubmatch(line)
		if name == nil {
			continue
		}
		told[name[1]] = true
		seen := false
		for _, c := range inCode.FindAllStringSubmatch(line, -1) {
			seen = seen || cells[c[1]]
		}
		if !seen {
			t.Errorf("docs/harness.md names no cell of the matrix that shows %s: %s", name[1], line)
		}
	}
	for _, p := range patches {
		name := strings.TrimSuffix(filepath.Base(p), ".patch")
		if !told[name] {
			t.Errorf("docs/harness.md has no row on %s", p)
		}
		delete(told, name)
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
	for name := range told {
		t.Errorf("docs/harness.md has a row on %s, and testdata no patch", name)
	}
}
