package walsurgery

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// operateOnAnything does to a WAL whatever this package can do. It may refuse,
// with a typed error and an unchanged directory, and must not panic; what it does
// not refuse, etcd reads.
func operateOnAnything(t *testing.T, dir string) {
	before := dirHash(t, dir)
	l, err := Inspect(nil, dir)
	if err == nil {
		for range l.Entries() {
		}
		for range l.Changes() {
		}
		_ = l.Summary().String()
		_, _ = l.Term(l.Summary().Last.Index)
		if p, err := l.Plan([]uint64{1}); err == nil {
			_ = p.String()
		}
		l.Close()
	} else if !typed(err) {
		t.Fatalf("Inspect: untyped error %v", err)
	}
	if _, err := ReadMetadata(dir); err != nil && !typed(err) {
		t.Fatalf("ReadMetadata: untyped error %v", err)
	}
	if _, err := Locked(dir); err != nil && !typed(err) {
		t.Fatalf("Locked: untyped error %v", err)
	}
	if dirHash(t, dir) != before {
		t.Fatal("reading changed the directory")
	}
	refused := err != nil
	if _, err := RewriteID(nil, dir, 0x4242); err != nil && !typed(err) {
		t.Fatalf("RewriteID: untyped error %v", err)
	} else if err != nil && dirHash(t, dir) != before {
		t.Fatal("RewriteID refused and changed the log")
	}
	o, err := Open(nil, dir)
	if err != nil {
		if !typed(err) {
			t.Fatalf("Open: untyped error %v", err)
		}
		return
	}
	defer o.Close()
	if refused {
		t.Fatal("Open took what Inspect refused")
	}
	p, err := o.Plan([]uint64{0x99})
	if err != nil {
		return
	}
	if err := o.Apply(p); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if e := readAsEtcd(dir); e.err != nil || e.last != p.End || e.hs.Commit != p.End.Index {
		t.Fatalf("after %s etcd reads %+v", p, e)
	}
}

func fuzzDir(t testing.TB, segment []byte) string {
	dir := filepath.Join(fastDir(t), "wal")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%016x-%016x.wal", 0, 0)), segment, 0o600))
	return dir
}

// The bytes of a segment are anything.
//
// Rules: P6.
func FuzzSegment(f *testing.F) {
	smallSegments(f, 4096)
	for _, v := range versions {
		dir := seedDir(v)
		b, err := os.ReadFile(filepath.Join(dir, namesIn(f, dir)[0]))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, segment []byte) { operateOnAnything(t, fuzzDir(t, segment)) })
}

// The frames and CRCs are right, the records are anything: a type byte, a length
// byte, data.
//
// Rules: P6.
func FuzzRecords(f *testing.F) {
	smallSegments(f, 4096)
	add := func(recs ...string) {
		var b []byte
		for _, r := range recs {
			b = append(append(b, r[0], byte(len(r)-1)), r[1:]...)
		}
		f.Add(b)
	}
	add("\x04", "\x01"+testMeta, "\x05\x08\x00\x10\x00", "\x02"+entry1, "\x02"+entry2, "\x03"+state2, "\x05"+snap1)
	add("\x04", "\x01"+testMeta, "\x05"+oldSnap1, "\x02"+entry2, "\x03"+state2)
	add("\x04", "\x01"+testMeta, "\x02\x08\x01\x10\x02\x18\x01\x22\x06\x08\x00\x10\x01\x18\x0b", "\x02"+entry2in1, "\x03"+state2)
	f.Fuzz(func(t *testing.T, in []byte) {
		var b []byte
		var crc uint32
		for len(in) >= 2 {
			n := min(int(in[1]), len(in)-2)
			b, crc = appendRecord(b, crc, int64(in[0]), in[2:2+n])
			in = in[2+n:]
		}
		operateOnAnything(t, fuzzDir(t, append(b, make([]byte, 512)...)))
	})
}
