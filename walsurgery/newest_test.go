package walsurgery

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Rules: P5.
func TestNewestSegment(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewestSegment(dir); !errors.Is(err, ErrNoWAL) {
		t.Errorf("empty: %v", err)
	}
	for i, name := range []string{"0000000000000003-0000000000000040.wal", "0000000000000004-0000000000000050.wal", "1.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if seq, err := NewestSegment(dir); err != nil || seq != uint64(min(3+i, 4)) {
			t.Errorf("%d: %d %v", i, seq, err)
		}
	}
}
