package walsurgery

import (
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"go.etcd.io/raft/v3/raftpb"
)

func crc32Update(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

const (
	testMeta  = "\x08\x0a\x10\x07"
	entry1    = "\x08\x00\x10\x02\x18\x01"
	entry2    = "\x08\x00\x10\x02\x18\x02"
	state2    = "\x08\x02\x10\x0b\x18\x01"
	snap1     = "\x08\x01\x10\x02\x1a\x02\x08\x0a"
	oldSnap1  = "\x08\x01\x10\x02"
	entry2in1 = "\x08\x00\x10\x01\x18\x02"
)

func openRecords(t *testing.T, r ...any) *Log {
	t.Helper()
	l, err := Open(nil, records(append([]any{recCRC, "", recMetadata, testMeta, recSnapshot, "\x08\x00\x10\x00"}, r...)...)(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// What Plan computes, and what it refuses.
//
// Rules: P8, P18.
func TestPlan(t *testing.T) {
	smallSegments(t, 4096)
	l := openRecords(t, recEntry, entry1, recEntry, entry2, recState, state2)
	before := segmentsHash(t, l.dir)
	p, err := l.Plan([]uint64{11, 12})
	if err != nil {
		t.Fatal(err)
	}
	if p.Term != 3 || p.Last != (Position{2, 2}) || p.Fork != (Position{3, 3}) || p.End != (Position{4, 3}) || p.State != (HardState{2, 11, 1}) {
		t.Fatalf("%+v", p)
	}
	if s := p.String(); !strings.Contains(s, "the removal of b, c as 3@3 to 4@3") {
		t.Fatal(s)
	}
	if p, err := l.Plan(nil); err != nil || p.Fork != p.End || !strings.Contains(p.String(), "one empty entry") {
		t.Fatalf("%v %v", p, err)
	}
	if p, err := l.Plan(nil, MinTerm(5<<32)); err != nil || p.Term != 5<<32 || p.End.Term != 5<<32 {
		t.Fatalf("%v %v", p, err)
	}
	if p, err := l.Plan(nil, MinTerm(1)); err != nil || p.Term != 3 {
		t.Fatalf("%v %v", p, err)
	}
	for _, bad := range [][]uint64{{10}, {0}, {11, 11}} {
		if p, err := l.Plan(bad); err == nil {
			t.Errorf("planned %v", p)
		}
	}
	if segmentsHash(t, l.dir) != before {
		t.Fatal("Plan changed the directory")
	}
	b, err := json.Marshal(p)
	if err != nil || !strings.Contains(string(b), `"remove":["b","c"]`) {
		t.Fatalf("%s %v", b, err)
	}
	var q Plan
	if err := json.Unmarshal(b, &q); err != nil {
		t.Fatal(err)
	}
	if err := l.Apply(q); err != nil {
		t.Fatalf("a plan that was stored: %v", err)
	}
	if err := l.Apply(q); !errors.Is(err, ErrClosed) {
		t.Fatalf("twice: %v", err)
	}
	if err := json.Unmarshal([]byte(`{"remove":["zz"]}`), &q); err == nil {
		t.Fatal("bad hexadecimal was taken")
	}
}

// Logs on which no append is legal.
//
// Rules: P6, P8, P11; F22.
func TestPlanRefuses(t *testing.T) {
	smallSegments(t, 4096)
	l := openRecords(t, recEntry, entry1, recState, state2, recSnapshot, oldSnap1)
	if s := l.Summary(); s.HasConfState || s.Snapshot.Index != 1 {
		t.Fatalf("%+v", s)
	}
	if _, err := l.Plan(nil); !errors.Is(err, ErrTooOld) || !errors.Is(err, ErrUnexpectedFormat) {
		t.Fatalf("before 3.5: %v", err)
	}
	l = openRecords(t)
	if _, err := l.Plan(nil); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("empty: %v", err)
	}
	l = openRecords(t, recEntry, entry1, recEntry, entry2in1, recState, state2)
	if _, err := l.Plan(nil); !errors.Is(err, ErrCorrupt) || l.Summary().Inconsistent == "" {
		t.Fatalf("terms decrease: %v", err)
	}
	// A tail that a received snapshot has replaced, not yet overwritten.
	l = openRecords(t, recEntry, "\x08\x00\x10\x01\x18\x01", recEntry, "\x08\x00\x10\x05\x18\x02", recSnapshot, snap1, recState, state2)
	if _, err := l.Plan(nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(l.Summary().Inconsistent, "saved before snapshot") {
		t.Fatalf("stale tail: %v, %q", err, l.Summary().Inconsistent)
	}
	if got := slices.Collect(l.Entries()); len(got) != 1 || got[0].Index != 2 {
		t.Fatalf("entries that a snapshot replaced: %v", got)
	}
	if term, ok := l.Term(1); !ok || term != 2 {
		t.Fatalf("Term(1) = %d, %v: not the snapshot's", term, ok)
	}
	// A received snapshot whose hard state was never saved: an append would make
	// the record count. Below the append's commit index, and above it.
	for _, snap := range []string{"\x08\x02\x10\x05\x1a\x02\x08\x0a", "\x08\x09\x10\x05\x1a\x02\x08\x0a"} {
		l = openRecords(t, recEntry, entry1, recEntry, entry2, recState, state2, recSnapshot, snap)
		if _, err := l.Plan(nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(l.Summary().Inconsistent, "above the commit index") {
			t.Fatalf("foreign snapshot record: %v, %q", err, l.Summary().Inconsistent)
		}
	}
	// A local one is in the log: the commit index just lags.
	l = openRecords(t, recEntry, entry1, recEntry, entry2, recState, state2, recSnapshot, "\x08\x02\x10\x02\x1a\x02\x08\x0a")
	if _, err := l.Plan(nil); err != nil {
		t.Fatalf("local snapshot record: %v", err)
	}
	l = openRecords(t, recEntry, entry1, recEntry, "\x08\x00\x10\x02\x18\x02", recState, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x0b\x18\x01")
	if _, err := l.Plan(nil); err == nil || l.Summary().HardState.Term != math.MaxUint64 {
		t.Fatalf("no term left: %v", err)
	}
	// A save was torn between its entries and its hard state: the term still grows.
	l = openRecords(t, recEntry, entry1, recState, state2, recEntry, "\x08\x00\x10\x07\x18\x02")
	if p, err := l.Plan(nil); err != nil || p.Term != 8 {
		t.Fatalf("%v %v", p, err)
	}
}

// A plan is good for the log end it was made from and for no other.
//
// Rules: P7, P8.
func TestStalePlan(t *testing.T) {
	smallSegments(t, 4096)
	l := openRecords(t, recEntry, entry1, recEntry, entry2, recState, state2)
	good, err := l.Plan([]uint64{11})
	if err != nil {
		t.Fatal(err)
	}
	before := segmentsHash(t, l.dir)
	for name, change := range map[string]func(*Plan){
		"term": func(p *Plan) { p.Term-- }, "fork": func(p *Plan) { p.Fork.Index++ }, "end": func(p *Plan) { p.End.Index++ },
		"last": func(p *Plan) { p.Last.Term++ }, "crc": func(p *Plan) { p.At.CRC++ }, "offset": func(p *Plan) { p.At.Offset-- },
		"owner": func(p *Plan) { p.Owner.MemberID++ }, "state": func(p *Plan) { p.State.Commit++ }, "dir": func(p *Plan) { p.Dir = "/else" },
		"self": func(p *Plan) { p.Remove = []uint64{10} }, "more": func(p *Plan) { p.Remove = []uint64{11, 12} },
	} {
		p := good
		p.Remove = slices.Clone(good.Remove)
		change(&p)
		if err := l.Apply(p); !errors.Is(err, ErrStalePlan) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if segmentsHash(t, l.dir) != before {
		t.Fatal("a refused plan changed the log")
	}
	if err := l.Apply(good); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(nil, l.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Apply(good); !errors.Is(err, ErrStalePlan) {
		t.Fatalf("a plan applied twice: %v", err)
	}
	ro, err := Inspect(nil, l.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if p, err := ro.Plan(nil); err != nil {
		t.Fatalf("a plan may be made from a log that is only read: %v", err)
	} else if err := ro.Apply(p); !errors.Is(err, ErrClosed) {
		t.Fatalf("but not applied: %v", err)
	}
}

// The append's bytes: V1, removal, ID 0, no context, every scalar set.
//
// Rules: P8; F21.
func TestAppendedBytes(t *testing.T) {
	p := Plan{Term: 9, Remove: []uint64{0xb}, Fork: Position{5, 9}}
	ents, err := p.entries()
	if err != nil || len(ents) != 1 {
		t.Fatal(ents, err)
	}
	b, err := proto.Marshal(ents[0])
	if err != nil {
		t.Fatal(err)
	}
	if want := "\x08\x01\x10\x09\x18\x05\x22\x06\x08\x00\x10\x01\x18\x0b"; string(b) != want {
		t.Fatalf("%x, not %x", b, want)
	}
}

// What a caller must deny on is reported as such: V2 changes, unknown types,
// changes that do not decode, and entries that changed since they were read.
//
// Rules: P5, P6, P11.
func TestUnsupportedEntries(t *testing.T) {
	smallSegments(t, 4096)
	v2, err := proto.Marshal(&raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: proto.Uint64(3)}}})
	if err != nil {
		t.Fatal(err)
	}
	ent := func(typ byte, index byte, data string) string {
		return string([]byte{8, typ, 0x10, 2, 0x18, index, 0x22, byte(len(data))}) + data
	}
	dir := records(recCRC, "", recMetadata, testMeta,
		recEntry, ent(2, 1, string(v2)), recEntry, ent(7, 2, "x"), recEntry, ent(1, 3, "\xff"), recEntry, ent(1, 4, "\x10\x09"),
		recEntry, ent(1, 5, "\x08\x00\x10\x03\x18\x0b\x22\x02{}"), recEntry, ent(0, 6, "data"), recState, "\x08\x02\x10\x0b\x18\x06")(t)
	l, err := Inspect(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := slices.Collect(l.Entries())
	for i, e := range got[:4] {
		if e.Kind != KindOther || e.Err == nil || e.Index != uint64(i+1) {
			t.Errorf("%+v", e)
		}
	}
	if c := got[4].Change; got[4].Kind != KindConfChange || c.Type != AddLearner || c.NodeID != 11 || string(c.Context) != "{}" {
		t.Errorf("%+v", got[4])
	}
	if got[5].Kind != KindNormal || string(got[5].Data) != "data" {
		t.Errorf("%+v", got[5])
	}
	if s := l.Summary(); s.Unsupported != 4 || s.ConfChanges != 1 {
		t.Errorf("%+v", s)
	}
	name := filepath.Join(dir, namesIn(t, dir)[0])
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.WriteFile(name, []byte(strings.Replace(string(b), "data", "DATA", 1)), 0o600))
	for e := range l.From(6) {
		if e.Kind != KindOther || !errors.Is(e.Err, ErrCorrupt) {
			t.Errorf("an entry that changed meanwhile: %+v", e)
		}
	}
	must(t, os.Truncate(name, 10))
	for e := range l.From(6) {
		if e.Kind != KindOther || e.Err == nil {
			t.Errorf("an entry that is gone: %+v", e)
		}
	}
}

// Leftovers of earlier rewrites are finished or removed by what they are, and
// nothing foreign is touched.
//
// Rules: P12; F20.
func TestRewriteLeftovers(t *testing.T) {
	smallSegments(t, 4096)
	dir := records(recCRC, "", recMetadata, testMeta, recSnapshot, "\x08\x00\x10\x00", recEntry, entry1, recState, state2)(t)
	original := dirHash(t, dir)
	if aside, err := RewriteID(nil, dir, 10); err != nil || aside != "" || dirHash(t, dir) != original {
		t.Fatalf("to its own ID: %q %v", aside, err)
	}
	if _, err := RewriteID(nil, dir, 0); err == nil {
		t.Fatal("to 0")
	}
	// An unfinished copy for another ID, and one for this ID.
	for _, id := range []uint64{0x77, 0x20} {
		must(t, os.Mkdir(stagingName(dir, id), 0o700))
		must(t, os.WriteFile(filepath.Join(stagingName(dir, id), namesIn(t, dir)[0]), []byte("half"), 0o600))
	}
	aside, err := RewriteID(nil, dir, 0x20)
	if err != nil || aside != dir+".before-a" || dirHash(t, aside) != original {
		t.Fatalf("%q %v", aside, err)
	}
	if n := namesIn(t, filepath.Dir(dir)); len(n) != 2 {
		t.Fatal(n)
	}
	// Back to the first ID and forth again: nothing set aside is overwritten.
	if aside, err = RewriteID(nil, dir, 10); err != nil || aside != dir+".before-20" || dirHash(t, dir) != original {
		t.Fatalf("%q %v", aside, err)
	}
	if aside, err = RewriteID(nil, dir, 0x20); err != nil || aside != dir+".before-a.1" {
		t.Fatalf("%q %v", aside, err)
	}
	if r, err := Replaced(dir); err != nil || len(r) != 3 {
		t.Fatalf("%v %v", r, err)
	}
	// A staging directory of the WAL's own ID may hold the old log: whatever can be
	// read of it, it is kept.
	must(t, os.Mkdir(stagingName(dir, 0x20), 0o700))
	must(t, os.WriteFile(filepath.Join(stagingName(dir, 0x20), namesIn(t, dir)[0]), []byte("unreadable"), 0o600))
	if aside, err = RewriteID(nil, dir, 0x20); err != nil || aside != dir+".before-leftover" || len(namesIn(t, aside)) != 1 {
		t.Fatalf("%q %v", aside, err)
	}
	// A foreign file in a staging directory stops everything.
	must(t, os.Mkdir(stagingName(dir, 0x78), 0o700))
	foreign := filepath.Join(stagingName(dir, 0x78), "precious")
	must(t, os.WriteFile(foreign, nil, 0o600))
	if _, err := RewriteID(nil, dir, 0x30); err == nil {
		t.Fatal("a foreign file was ignored")
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Fatal(err)
	}
}

// Exchange: both names, or a clear error.
//
// Rules: P12.
func TestExchange(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "a"), filepath.Join(root, "sub", "b")
	must(t, os.MkdirAll(filepath.Join(a, "was-a"), 0o700))
	must(t, os.MkdirAll(filepath.Join(b, "was-b"), 0o700))
	must(t, Exchange(a, b))
	if namesIn(t, a)[0] != "was-b" || namesIn(t, b)[0] != "was-a" {
		t.Fatal("not exchanged")
	}
	if err := Exchange(a, filepath.Join(root, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("nothing there: %v", err)
	}
	if err := Exchange(a, "/proc/sys"); !errors.Is(err, ErrCannotExchange) {
		t.Fatalf("another file system: %v", err)
	}
	if namesIn(t, a)[0] != "was-b" {
		t.Fatal("a failed exchange changed something")
	}
}

// Too little space is refused before anything is written, with both figures.
//
// Rules: P7; F31.
func TestNoSpace(t *testing.T) {
	if err := spaceFor(t.TempDir(), math.MaxUint64); !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "MB free") {
		t.Fatal(err)
	}
	if err := spaceFor(t.TempDir(), 1); err != nil {
		t.Fatal(err)
	}
}

// Run as root, files made here belong to whoever owns the files beside them.
//
// Rules: P8, P12.
func TestOwnerIsKept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	smallSegments(t, 1024)
	dir := records(recCRC, "", recMetadata, testMeta, recSnapshot, "\x08\x00\x10\x00", recEntry, entry1, recState, state2)(t)
	seg := filepath.Join(dir, namesIn(t, dir)[0])
	must(t, os.Chown(dir, 4321, 4322))
	must(t, os.Chown(seg, 4321, 4322))
	check := func(dir string) {
		t.Helper()
		for _, n := range append(namesIn(t, dir), ".") {
			if u, g, err := owner(filepath.Join(dir, n)); err != nil || u != 4321 || g != 4322 {
				t.Fatalf("%s/%s belongs to %d:%d %v", dir, n, u, g, err)
			}
		}
	}
	if _, err := RewriteID(nil, dir, 0x20); err != nil {
		t.Fatal(err)
	}
	check(dir)
	l, err := Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	var many []uint64
	for i := range 40 {
		many = append(many, uint64(100+i))
	}
	p, err := l.Plan(many)
	if err != nil {
		t.Fatal(err)
	}
	must(t, l.Apply(p))
	if l.Summary().Segments < 2 {
		t.Fatalf("the append was to begin a segment: %+v", l.Summary())
	}
	must(t, l.Close())
	check(dir)
	parent := filepath.Join(t.TempDir(), "member")
	must(t, os.Mkdir(parent, 0o700))
	must(t, os.Chown(parent, 4321, 4322))
	must(t, CreateEmpty(nil, filepath.Join(parent, "wal"), Metadata{1, 2}))
	check(filepath.Join(parent, "wal"))
}
