package e2e

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// digest has a line for each file of a directory: name, mode, size and hash. The empty
// segment that etcd prepares (wal/N.tmp, and leaves when it is killed) holds nothing and is left out.
func digest(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if filepath.Ext(path) == ".tmp" {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			fmt.Fprintf(&out, "%s %s\n", rel, info.Mode())
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s %s %d %x\n", rel, info.Mode(), info.Size(), h.Sum(nil))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// unchanged compares a directory with its digest from before.
func unchanged(t *testing.T, what, dir, before string) {
	t.Helper()
	after := digest(t, dir)
	if after == before {
		return
	}
	old := map[string]bool{}
	for line := range strings.Lines(before) {
		old[line] = true
	}
	for line := range strings.Lines(after) {
		if !old[line] {
			t.Errorf("%s: now %s", what, strings.TrimSpace(line))
		}
		delete(old, line)
	}
	for line := range old {
		t.Errorf("%s: before %s", what, strings.TrimSpace(line))
	}
}
