package rejoin

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"twok/walsurgery"
)

// prepare makes a directory as Reset does before its exchange.
func prepare(t *testing.T, dir string, id uint64) {
	t.Helper()
	for _, sub := range []string{"snap", "wal"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := walsurgery.CreateEmpty(zap.NewNop(), filepath.Join(dir, "wal"), walsurgery.Metadata{MemberID: id, ClusterID: 7}); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, pattern string) []string {
	t.Helper()
	ns, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// Reset keeps the old directory whole, puts an empty log of the new ID in its place,
// and can be called again.
//
// Rules: P12, P13; F20.
func TestReset(t *testing.T) {
	dir := t.TempDir()
	prepare(t, filepath.Join(dir, "member"), 1)
	if err := os.WriteFile(filepath.Join(dir, "member", "snap", "db"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	aside, err := Reset(zap.NewNop(), dir, walsurgery.Metadata{MemberID: 2, ClusterID: 7}, "a-reason")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(aside, "snap", "db")); err != nil || string(b) != "precious" {
		t.Errorf("the old database: %q, %v", b, err)
	}
	md, err := walsurgery.ReadMetadata(filepath.Join(dir, "member", "wal"))
	if err != nil || md.MemberID != 2 {
		t.Errorf("the new log: %v, %v", md, err)
	}
	again, err := Reset(zap.NewNop(), dir, walsurgery.Metadata{MemberID: 3, ClusterID: 7}, "a-reason")
	if err != nil || again == aside {
		t.Errorf("again: %q, %v", again, err)
	}
	if left := names(t, filepath.Join(dir, prepared+"*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A killed Reset leaves a directory that was never used, which goes, or one with the
// old data, which is kept whatever it still holds.
//
// Rules: P13; F20.
func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		id   uint64 // of the log in it
		file string
		kept bool
	}{
		"never used":           {id: 0x22},
		"a database":           {id: 0x22, file: "snap/db", kept: true},
		"snapshots only":       {id: 0x22, file: "snap/0000000000000002-0000000000000010.snap", kept: true},
		"another member's log": {id: 0x11, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			left := filepath.Join(dir, prepared+"0000000000000022")
			prepare(t, left, c.id)
			if c.file != "" {
				if err := os.WriteFile(filepath.Join(left, c.file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := Settle(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(left); err == nil {
				t.Error("it is still there")
			}
			if aside := names(t, filepath.Join(dir, setAside+"*")); (len(aside) == 1) != c.kept {
				t.Errorf("set aside: %q", aside)
			}
		})
	}
}

// Whatever the data directory is called, what a killed Reset left is found. What a person keeps under a like name is not ours.
//
// Rules: P12, P13; F20.
func TestSettleInOddDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd[1]")
	prepare(t, filepath.Join(dir, prepared+"0000000000000022"), 0x22)
	old := filepath.Join(dir, prepared+"0000000000000033")
	prepare(t, old, 0x11)
	theirs := filepath.Join(dir, prepared+"by-hand", "notes")
	for _, f := range []string{filepath.Join(old, "snap", "db"), theirs} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{1, 1} { // prepared, then set aside
		if dbs, err := ReplacedDatabases(dir); err != nil || len(dbs) != want {
			t.Errorf("databases: %q, %v", dbs, err)
		}
		if err := Settle(dir); err != nil {
			t.Fatal(err)
		}
	}
	d, err := os.ReadDir(dir)
	if err != nil || len(d) != 2 {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
}
