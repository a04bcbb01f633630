package walsurgery

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// operateOnAnything does to a WAL whatever this package can do. It may refuse,
// with a typed error and no changed byte, and must not panic or exit; what it does
// not refuse, etcd reads.
func operateOnAnything(t *testing.T, dir string) {
	before := dirHash(t, filepath.Dir(dir))
	unchanged := func(what string) {
		if dirHash(t, filepath.Dir(dir)) != before {
			t.Fatalf("%s changed the directory", what)
		}
	}
	l, err := Inspect(nil, dir)
	if err == nil {
		for e := range l.Entries() {
			if e.Err != nil && (e.Kind != KindOther || !typed(e.Err)) {
				t.Fatalf("entry %d is %s with %v", e.Index, e.Kind, e.Err)
			}
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
	md, merr := ReadMetadata(dir)
	if merr != nil && !typed(merr) {
		t.Fatalf("ReadMetadata: untyped error %v", merr)
	}
	if _, err := Locked(dir); err != nil && !typed(err) {
		t.Fatalf("Locked: untyped error %v", err)
	}
	unchanged("reading")
	refused := err != nil
	if _, err := RewriteID(nil, dir, 0x4242); err != nil {
		if !typed(err) {
			t.Fatalf("RewriteID: untyped error %v", err)
		}
		unchanged("a refused RewriteID")
	} else if refused && md.MemberID != 0x4242 {
		t.Fatal("RewriteID took what Inspect refused")
	}
	before = dirHash(t, filepath.Dir(dir))
	o, err := Open(nil, dir)
	if err != nil {
		if !typed(err) {
			t.Fatalf("Open: untyped error %v", err)
		}
		if !slices.ContainsFunc(namesIn(t, dir), func(n string) bool { return strings.Contains(n, ".broken") }) { // repaired, then refused
			unchanged("a refused Open")
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
	for _, v := range versions { // the records of a real log, but for the long ones
		s, err := scanDir(seedDir(v))
		if err != nil {
			f.Fatal(err)
		}
		r := newFrameReader(s.segs[0].f, s.segs[0].name, s.segs[0].size, 0, 0, true)
		var recs []string
		for {
			fr, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				f.Fatal(err)
			}
			if len(fr.data) < 256 {
				recs = append(recs, string(byte(fr.typ))+string(fr.data))
			}
		}
		s.close()
		if len(recs) < 20 {
			f.Fatalf("%s: %d records", v, len(recs))
		}
		add(recs...)
	}
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
