package member

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// someDatabase is a data directory with a database of etcd's buckets and no WAL.
func someDatabase(t *testing.T, fill func(*bbolt.Tx) error) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(DBPath(dir)), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(DBPath(dir), 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range []string{bucketKey, bucketMeta, bucketMembers, bucketRemoved} {
			if _, err := tx.CreateBucket([]byte(b)); err != nil {
				return err
			}
		}
		return fill(tx)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The careful reader sees what bbolt sees, in both directions: inline buckets, branches,
// overflow pages, keys of every length.
//
// Rules: P6.
func TestTreeReadsAsBolt(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct{ n, key, value int }{{0, 1, 1}, {3, 20, 20}, {50, 200, 10}, {2000, 40, 300}, {300, 30, 20_000}, {20_000, 17, 60}, {3000, 900, 900}} {
		dir := someDatabase(t, func(tx *bbolt.Tx) error {
			for _, name := range []string{bucketKey, bucketMembers} {
				b := tx.Bucket([]byte(name))
				for i := range c.n {
					k := fmt.Appendf(nil, "%06d%s", rnd.IntN(10*c.n), bytes.Repeat([]byte("k"), rnd.IntN(c.key)))
					if err := b.Put(k, bytes.Repeat([]byte{byte(i)}, rnd.IntN(c.value))); err != nil {
						return err
					}
				}
			}
			return nil
		})
		l := mustTry(t, dir)
		err := l.View(func(tx *bbolt.Tx) error {
			size, err := lockedFile{l}.size()
			if err != nil {
				return err
			}
			for _, name := range []string{bucketKey, bucketMeta, bucketMembers, bucketRemoved} {
				for _, back := range []bool{false, true} {
					tr, err := newTree(tx, lockedFile{l}, size)
					if err != nil {
						return err
					}
					cur := tx.Bucket([]byte(name)).Cursor()
					k, v := cur.First()
					if back {
						k, v = cur.Last()
					}
					n := 0
					err = tr.each(name, back, func(e element) (bool, error) {
						got, err := e.value()
						if err != nil {
							return false, err
						}
						head, err := e.head(5)
						if err != nil || !bytes.Equal(e.key, k) || !bytes.Equal(got, v) || !bytes.HasPrefix(v, head) || len(head) != min(5, len(v)) {
							return false, fmt.Errorf("element %d: %.20q = %.20q (%d), bbolt has %.20q = %.20q (%d), %v", n, e.key, got, len(got), k, v, len(v), err)
						}
						n++
						if back {
							k, v = cur.Prev()
						} else {
							k, v = cur.Next()
						}
						return false, nil
					})
					if err != nil || k != nil {
						return fmt.Errorf("%d elements, %s backwards %t: bbolt goes on with %q: %w", c.n, name, back, k, err)
					}
				}
			}
			return nil
		})
		if err := errors.Join(err, l.Release()); err != nil {
			t.Error(err)
		}
	}
}

// A branch that points to itself, or to its parent, ends in an error. (bbolt's cursor
// follows it until the process is killed for its memory.)
//
// Rules: P6, P11.
func TestPagesInCircles(t *testing.T) {
	dir := someDatabase(t, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucketKey))
		for i := range uint64(20_000) {
			rev := append(append(binary.BigEndian.AppendUint64(nil, i+1), '_'), make([]byte, 8)...)
			if err := b.Put(rev, append([]byte{0x0a, 1, 'k'}, make([]byte, 200)...)); err != nil {
				return err
			}
		}
		return nil
	})
	whole, err := os.ReadFile(DBPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	l := mustTry(t, dir)
	if _, err := readDatabase(l); err != nil {
		t.Fatal(err)
	}
	branches := 0
	for id := 2; id < len(whole)/page; id++ {
		if binary.NativeEndian.Uint16(whole[id*page+8:]) != flagBranch || binary.NativeEndian.Uint64(whole[id*page:]) != uint64(id) {
			continue
		}
		branches++
		for i := range int(binary.NativeEndian.Uint16(whole[id*page+10:])) {
			if i%61 != 0 {
				continue
			}
			data := bytes.Clone(whole)
			binary.NativeEndian.PutUint64(data[id*page+headerLen+i*elementLen+8:], uint64(id))
			if err := os.WriteFile(DBPath(dir), data, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := readDatabase(l); !errors.Is(err, ErrDatabase) {
				t.Errorf("element %d of page %d points to the page: %v", i, id, err)
			}
		}
	}
	if branches == 0 {
		t.Fatal("no branch page: nothing was shown")
	}
}
