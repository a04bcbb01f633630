package walsurgery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Small real WALs are kept under testdata/wal-<version>: what a member that led a
// pair left after a few writes and a learner that came and went. They seed the
// fuzzers and the differential tests.

func seedDir(version string) string { return filepath.Join("testdata", "wal-"+version) }

// seed returns a copy of the stored WAL of a version.
func seed(t testing.TB, version string) string {
	t.Helper()
	dir := filepath.Join(fastDir(t), "wal")
	must(t, os.CopyFS(dir, os.DirFS(seedDir(version))))
	return dir
}

// TestMakeSeeds writes the stored WALs anew when TWOK_MAKE_SEEDS is set, and
// checks that the present ones read otherwise.
//
// Rules: none (test data).
func TestMakeSeeds(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		if os.Getenv("TWOK_MAKE_SEEDS") != "" {
			makeSeed(t, version)
		}
		l, err := Inspect(nil, seedDir(version))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s := l.Summary()
		if s.ConfChanges < 4 || s.Entries < 20 || s.Snapshot.Index == 0 || len(s.Voters) != 2 || s.Torn || s.Inconsistent != "" {
			t.Fatalf("%+v", s)
		}
	})
}

func makeSeed(t *testing.T, version string) {
	pair := newPair(t, version, t.TempDir())
	for _, m := range pair {
		m.start("--snapshot-count", "10")
	}
	c := pair[0].awaitLeader()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for i := range 12 {
		if _, err := c.Put(ctx, fmt.Sprintf("k%d", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	added, err := c.MemberAddAsLearner(ctx, []string{"http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.MemberRemove(ctx, added.Member.ID); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := c.Put(ctx, fmt.Sprintf("l%d", i), "v"); err != nil {
			t.Fatal(err)
		}
	}
	pair[0].kill()
	pair[1].kill()
	s, err := scanDir(pair[0].wal())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := os.RemoveAll(seedDir(version)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(seedDir(version), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, seg := range s.segs { // one: drop most of the preallocated space
		b := make([]byte, s.off+512)
		if _, err := seg.f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(seedDir(version), seg.name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
