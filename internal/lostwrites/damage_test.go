package lostwrites

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"twok/internal/member"
	"twok/walsurgery"
)

// A damaged or incomplete directory is an error that says which, or is read; never a panic, and never a change. A directory that
// was set aside, without "member" above it, is read as well as a data directory.
//
// Rules: P18, P11.
func TestDamaged(t *testing.T) {
	p := startPair(t, "3.7")
	before(p, p.client("a"))
	p.split()
	aside := filepath.Join(t.TempDir(), "member.set-aside-overridden-20260101T000000Z")
	old := filepath.Join(t.TempDir(), "old")
	p.must(os.CopyFS(old, os.DirFS(filepath.Join(p.Site("a").DataDir, "member"))))
	p.lead("a")
	workload(p, p.client("a"))
	time.Sleep(300 * time.Millisecond)
	p.kill("a")
	p.must(os.CopyFS(aside, os.DirFS(filepath.Join(p.Site("a").DataDir, "member"))))
	whole, err := Open(aside, p.atFork())
	p.must(err)
	n := len(whole.Changes)
	p.must(whole.Close())
	if n < 50 {
		t.Fatalf("%d changes", n)
	}

	change := func(fn func(dir string)) error {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "x")
		p.must(os.CopyFS(dir, os.DirFS(aside)))
		fn(dir)
		was := files(t, dir)
		l, err := Open(dir, p.atFork())
		if err == nil {
			err = errors.Join(l.Script(io.Discard, true), l.Close())
		}
		if now := files(t, dir); now != was {
			t.Fatalf("the directory changed:\n%s\n%s", was, now)
		}
		return err
	}
	db := func(dir string) string { return filepath.Join(dir, "snap", "db") }
	segment := func(dir string) string {
		s, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
		if err != nil || len(s) == 0 {
			t.Fatal(s, err)
		}
		return s[0]
	}
	for name, c := range map[string]struct {
		is error
		fn func(dir string)
	}{
		"no database": {ErrNoDatabase, func(d string) { p.must(os.Remove(db(d))) }},
		"no WAL":      {walsurgery.ErrNoWAL, func(d string) { p.must(os.RemoveAll(filepath.Join(d, "wal"))) }},
		"neither": {ErrNoMember, func(d string) {
			p.must(os.RemoveAll(filepath.Join(d, "wal")))
			p.must(os.RemoveAll(filepath.Join(d, "snap")))
		}},
		"nothing":         {ErrNoMember, func(d string) { p.must(os.RemoveAll(d)); p.must(os.Mkdir(d, 0o700)) }},
		"database cut":    {member.ErrDatabase, func(d string) { p.must(os.Truncate(db(d), 20000)) }},
		"database empty":  {member.ErrDatabase, func(d string) { p.must(os.Truncate(db(d), 0)) }},
		"database zeroed": {member.ErrDatabase, func(d string) { p.must(os.WriteFile(db(d), make([]byte, 1<<16), 0o600)) }},
		"a WAL from before the database": {member.ErrInsane, func(d string) {
			p.must(os.RemoveAll(filepath.Join(d, "wal")))
			p.must(os.CopyFS(filepath.Join(d, "wal"), os.DirFS(filepath.Join(old, "wal"))))
		}},
		"WAL damaged": {walsurgery.ErrCorrupt, func(d string) {
			b, err := os.ReadFile(segment(d))
			p.must(err)
			b[2000] ^= 8
			p.must(os.WriteFile(segment(d), b, 0o600))
		}},
		"whole": {nil, func(string) {}},
	} {
		err := change(c.fn)
		if !errors.Is(err, c.is) || (c.is == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
	}

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	orig, err := os.ReadFile(db(aside))
	p.must(err)
	var used []int // pages with a head, not those with the rest of a large value
	for i := range len(orig) / 4096 {
		if h := orig[i*4096:]; binary.NativeEndian.Uint64(h) == uint64(i) && (h[8] == 1 || h[8] == 2) {
			used = append(used, i)
		}
	}
	dir := filepath.Join(t.TempDir(), "x")
	p.must(os.CopyFS(dir, os.DirFS(aside)))
	failed := 0
	for range 60 {
		b := append([]byte(nil), orig...)
		for range 1 + rnd.IntN(20) {
			page := used[rnd.IntN(len(used))]
			b[page*4096+rnd.IntN([]int{16, 200, 4096}[rnd.IntN(3)])] = byte(rnd.Uint32())
		}
		p.must(os.WriteFile(db(dir), b, 0o600))
		l, err := Open(dir, p.atFork())
		if err == nil {
			err = errors.Join(l.Script(io.Discard, true), l.Close())
		}
		if err != nil {
			failed++
			if !errors.Is(err, member.ErrDatabase) && !errors.Is(err, member.ErrInsane) && !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("an error of no class: %v", err)
			}
		}
	}
	if failed < 12 {
		t.Errorf("only %d of 60 damaged databases were noticed", failed)
	}
	t.Logf("%d of 60 damaged databases were noticed", failed)
}
