package member

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// A database that nobody uses is read as bbolt reads it: small and large buckets and values, one that is not there, and the older of
// the two metadata pages if the newer one is damaged. It is neither locked nor changed.
//
// Rules: P11.
func TestDBFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	b, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{"small": {}, "large": {}}
	fill := func(n int) {
		t.Helper()
		err := b.Update(func(tx *bbolt.Tx) error {
			for name, kvs := range want {
				bu, err := tx.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				m := 3
				if name == "large" {
					m = 3000
				}
				for i := range m {
					k, v := fmt.Sprintf("key-%05d", i), fmt.Sprint(n, name, i)
					if name == "large" && i%500 == 0 {
						v += string(bytes.Repeat([]byte{0xff}, 50_000))
					}
					kvs[k] = v
					if err := bu.Put([]byte(k), []byte(v)); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string) {
		t.Helper()
		was, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := OpenDB(path)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer d.Close()
		for name, kvs := range want {
			n, last := 0, ""
			err := d.Each(name, func(e Element) (bool, error) {
				v, err := e.Value()
				if err == nil && (kvs[string(e.Key)] != string(v) || string(e.Key) <= last) {
					err = fmt.Errorf("%q behind %q: %.40q", e.Key, last, v)
				}
				if ref, ok := e.Ref(); ok && err == nil {
					var again []byte
					if again, err = d.Read(ref); err == nil && !bytes.Equal(again, v) {
						err = fmt.Errorf("%q read again: %.40q", e.Key, again)
					}
				}
				n, last = n+1, string(e.Key)
				return false, err
			})
			if err != nil || n != len(kvs) {
				t.Fatalf("%s: bucket %s: %d of %d, %v", what, name, n, len(kvs), err)
			}
		}
		stop := errors.New("stop")
		if err := d.Each("large", func(Element) (bool, error) { return false, stop }); err != stop {
			t.Errorf("%s: %v, want the visitor's error", what, err)
		}
		if err := d.Each("none", func(Element) (bool, error) { return false, stop }); err != nil {
			t.Errorf("%s: a bucket that is not there: %v", what, err)
		}
		if now, err := os.Stat(path); err != nil || now.ModTime() != was.ModTime() || now.Size() != was.Size() {
			t.Errorf("%s: the file changed: %v", what, err)
		}
	}
	fill(1)
	check("while it is locked")
	fill(2)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check("later")
	fill(3)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	check("closed")

	// Transaction 3 is the newest; damage its metadata page, and the one before it counts.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := os.Getpagesize()
	newest := 0
	a, aok := parseMeta(data)
	z, zok := parseMeta(data[size:])
	if !aok || !zok {
		t.Fatal("bbolt's own metadata pages are not accepted")
	}
	if z.tx > a.tx {
		newest = size
	}
	broken := bytes.Clone(old) // the newest of these is transaction 2, in the other page
	copy(broken[newest:newest+size], make([]byte, size))
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kvs := range want {
		for k, v := range kvs {
			kvs[k] = "2" + v[1:]
		}
	}
	check("without the first or second metadata page")

	for name, b := range map[string][]byte{"empty": nil, "cut": data[:3*size], "zero": make([]byte, 8*size), "text": bytes.Repeat([]byte("text"), size)} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDB(path); !errors.Is(err, ErrDatabase) {
			t.Errorf("%s: %v, want ErrDatabase", name, err)
		}
	}
	if _, err := OpenDB(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
