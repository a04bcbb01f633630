package cluster

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What returns have replaced is found by its name, with its segments, and so is a file in it that somebody writes.
//
// Rules: F20.
func TestReplaced(t *testing.T) {
	data := t.TempDir()
	const log, aside = "member/wal.before-1", "member.set-aside-wal-unreadable-1"
	for _, path := range []string{log + "/0.wal", log + "/1.wal", aside + "/wal/0.wal", aside + "/snap/db", "member/wal/0.wal", "member/snap/db"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(data, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, path), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Minute)
	for _, path := range []string{log + "/0.wal", log + "/1.wal", aside + "/wal/0.wal", aside + "/snap/db"} {
		if err := os.Chtimes(filepath.Join(data, path), old, old); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{filepath.Base(log): 2, aside: 1}
	got, touched, err := replaced(data)
	if err != nil || !maps.Equal(got, want) || len(touched) != 0 {
		t.Errorf("%v, %v, %v; want %v", got, touched, err, want)
	}
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(filepath.Join(data, aside, "snap", "db"), later, later); err != nil {
		t.Fatal(err)
	}
	if _, touched, err := replaced(data); err != nil || len(touched) != 1 {
		t.Errorf("%v, %v", touched, err)
	}
}
