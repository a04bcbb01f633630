package cluster

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"twok/testing/history"
)

func revision(rev, sub uint64, tombstone bool) []byte {
	b := append(binary.BigEndian.AppendUint64(nil, rev), '_')
	b = binary.BigEndian.AppendUint64(b, sub)
	if tombstone {
		b = append(b, 't')
	}
	return b
}

// A database is read as etcd writes it: revisions, places, deletes, the last compaction. What is none is an error.
//
// Rules: none (the harness).
func TestReadDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	write := func(f func(meta, key *bbolt.Bucket) error) {
		t.Helper()
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		err = db.Update(func(tx *bbolt.Tx) error {
			meta, err := tx.CreateBucketIfNotExists([]byte("meta"))
			if err != nil {
				return err
			}
			key, err := tx.CreateBucketIfNotExists([]byte("key"))
			if err != nil {
				return err
			}
			leases, err := tx.CreateBucketIfNotExists([]byte("lease"))
			if err != nil {
				return err
			}
			if err := leases.Put(binary.BigEndian.AppendUint64(nil, 0x1122334455667788), []byte("whatever")); err != nil {
				return err
			}
			return f(meta, key)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	value := func(kv *mvccpb.KeyValue) []byte {
		b, err := proto.Marshal(kv)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	write(func(meta, key *bbolt.Bucket) error {
		for _, err := range []error{
			meta.Put([]byte("finishedCompactRev"), revision(4, 0, false)),
			key.Put(revision(5, 0, false), value(&mvccpb.KeyValue{Key: []byte("k"), Value: []byte("v"), CreateRevision: 5, ModRevision: 5, Version: 1})),
			key.Put(revision(6, 1, true), value(&mvccpb.KeyValue{Key: []byte("k")})),
		} {
			if err != nil {
				return err
			}
		}
		return nil
	})
	got, leases, compact, err := readDatabase(path)
	want := []history.Change{{Rev: 5, Key: "k", Value: "v", Create: 5, Version: 1}, {Rev: 6, Sub: 1, Key: "k", Delete: true}}
	if err != nil || compact != 4 || !slices.Equal(leases, []int64{0x1122334455667788}) || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, leases %x, compacted at %d, %v", got, leases, compact, err)
	}
	write(func(_, key *bbolt.Bucket) error { return key.Put([]byte("x"), []byte("y")) })
	if _, _, _, err := readDatabase(path); err == nil {
		t.Error("a key that is no revision was read")
	}
	if _, _, _, err := readDatabase(path + ".none"); err == nil {
		t.Error("a missing database was read")
	}
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := readDatabase(path); err == nil {
		t.Error("a file of zeros was read")
	}
}

// Options that cannot be are refused before anything starts.
//
// Rules: none (the harness).
func TestRefusedOptions(t *testing.T) {
	t.Setenv("TWOK_HARNESS", "proxy")
	for _, o := range []Options{
		{Mode: "supervise", Arbiter: "none"}, {Mode: "none", Arbiter: "serve"}, {Mode: "signal", Arbiter: "serve", Auth: true},
	} {
		o.Dir = t.TempDir()
		if c, err := New(t.Context(), o); err == nil {
			t.Errorf("%+v was taken", o)
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Certificates are replaced in place, by the same authority.
//
// Rules: F12.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	p, files, err := certificates(dir, []string{"127.0.0.1", "fd77::1"})
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{pki: p}
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ca, etcd, agent := read(files.CA), read(files.Cert), read(files.AgentCert)
	if err := c.Rotate(); err != nil {
		t.Fatal(err)
	}
	if read(files.CA) != ca || read(files.Cert) == etcd || read(files.AgentCert) == agent {
		t.Error("the authority changed, or a leaf did not")
	}
	if _, err := files.Client(); err != nil {
		t.Error(err)
	}
	if (&Cluster{}).Rotate() == nil {
		t.Error("a pair without certificates rotated them")
	}
}
