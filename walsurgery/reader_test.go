package walsurgery

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// long tells that the long versions of the tests were asked for.
func long() bool { return os.Getenv("TWOK_LONG") != "" }

// fastDir is a directory for logs that no etcd runs on, in memory where possible:
// these tests would spend their time in fsync.
func fastDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "walsurgery")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// smallSegments sets etcd's segment size for one test, which must not be parallel.
func smallSegments(t testing.TB, n int64) {
	old := wal.SegmentSizeBytes
	wal.SegmentSizeBytes = n
	t.Cleanup(func() { wal.SegmentSizeBytes = old })
}

// theirs is what etcd's own code finds when it starts on a WAL.
type theirs struct {
	snap  Position
	snaps []Position
	hs    HardState
	last  Position
	ents  []*raftpb.Entry
	err   error
}

// readAsEtcd does what etcd does at its start (etcdserver/bootstrap.go), without
// the repair. It changes dir.
func readAsEtcd(dir string) (out theirs) {
	defer func() {
		if r := recover(); r != nil {
			out.err = fmt.Errorf("panic: %v", r)
		}
	}()
	lg := quiet(nil)
	snaps, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil {
		return theirs{err: err}
	}
	for _, s := range snaps {
		out.snap = Position{s.GetIndex(), s.GetTerm()}
		out.snaps = append(out.snaps, out.snap)
	}
	w, err := wal.Open(lg, dir, &walpb.Snapshot{Index: &out.snap.Index, Term: &out.snap.Term})
	if err != nil {
		return theirs{err: err}
	}
	defer w.Close()
	_, hs, ents, err := w.ReadAll()
	if err != nil {
		return theirs{err: err}
	}
	out.hs, out.ents, out.last = HardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}, ents, out.snap
	if n := len(ents); n > 0 {
		out.last = Position{ents[n-1].GetIndex(), ents[n-1].GetTerm()}
	}
	return out
}

// sameAsEtcd compares our reading with etcd's.
func sameAsEtcd(l *Log, e theirs) error {
	s := l.Summary()
	if s.Snapshot != e.snap || !slices.Equal(s.Snapshots, e.snaps) || s.HardState != e.hs || s.Last != e.last {
		return fmt.Errorf("etcd: snapshot %v of %v, %+v, last %v; ours: %+v", e.snap, e.snaps, e.hs, e.last, s)
	}
	i := 0
	for got := range l.From(e.snap.Index + 1) {
		if i == len(e.ents) {
			return fmt.Errorf("entry %d is not in etcd's reading", got.Index)
		}
		want := e.ents[i]
		kind := map[raftpb.EntryType]EntryKind{raftpb.EntryNormal: KindNormal, raftpb.EntryConfChange: KindConfChange, raftpb.EntryConfChangeV2: KindOther}[want.GetType()]
		if got.Index != want.GetIndex() || got.Term != want.GetTerm() || got.Kind != kind || kind == KindNormal && !bytes.Equal(got.Data, want.Data) {
			return fmt.Errorf("entry %+v, etcd has %v", got, want)
		}
		if term, ok := l.Term(got.Index); !ok || term != got.Term {
			return fmt.Errorf("Term(%d) = %d %v", got.Index, term, ok)
		}
		i++
	}
	if i != len(e.ents) {
		return fmt.Errorf("%d entries, etcd has %d", i, len(e.ents))
	}
	return nil
}

// On the WALs of killed etcds, leader and follower, we read what etcd reads, and
// reading changes nothing.
//
// Rules: P6.
func TestInspectReadsWhatEtcdReads(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for i := range cr.pair {
			dir := filepath.Join(copied(t, cr.pair[i].dir), "member", "wal")
			before := dirHash(t, dir)
			l, err := Inspect(nil, dir)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(slices.Collect(l.Entries())); n != l.Summary().Entries || l.Summary().First.Index != 1 || l.Summary().ConfChanges < 4 {
				t.Fatalf("%d entries, %+v", n, l.Summary())
			}
			if n := len(slices.Collect(l.Changes())); n != l.Summary().ConfChanges {
				t.Fatalf("%d changes", n)
			}
			if md, err := ReadMetadata(dir); err != nil || md != l.Summary().Metadata || md.MemberID != cr.ids[i] {
				t.Fatalf("%v %v", md, err)
			}
			if _, need, err := FreeSpace(dir); err != nil || need != uint64(l.Summary().Bytes)+reserve {
				t.Fatalf("need %d %v", need, err)
			}
			if locked, err := Locked(dir); err != nil || locked {
				t.Fatalf("locked %v %v", locked, err)
			}
			if dirHash(t, dir) != before {
				t.Fatal("reading changed the directory")
			}
			if err := sameAsEtcd(l, readAsEtcd(dir)); err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
	})
}

// randomWAL writes a WAL with etcd's code: appends, overwritten tails, commits,
// local and received snapshots, several segments.
func randomWAL(t testing.TB, rnd *rand.Rand) string {
	dir := filepath.Join(fastDir(t), "wal")
	w, err := wal.Create(zap.NewNop(), dir, []byte{8, 0xaa, 1, 16, 7})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	u := func(v uint64) *uint64 { return &v }
	var last, commit, first uint64 = 0, 0, 0
	term := uint64(1)
	terms := map[uint64]uint64{}
	for range 5 + rnd.IntN(40) {
		switch rnd.IntN(8) {
		case 0: // local snapshot
			at := first
			if commit > first {
				at += 1 + rnd.Uint64N(commit-first)
			}
			if at == 0 || terms[at] == 0 {
				continue
			}
			err = w.SaveSnapshot(&walpb.Snapshot{Index: u(at), Term: u(terms[at]), ConfState: &raftpb.ConfState{Voters: []uint64{170, 3}}})
			first = at
		case 1: // received snapshot
			if rnd.IntN(3) > 0 {
				continue
			}
			last += 1 + rnd.Uint64N(20)
			first, commit, terms = last, last, map[uint64]uint64{last: term}
			err = w.SaveSnapshot(&walpb.Snapshot{Index: u(last), Term: u(term), ConfState: &raftpb.ConfState{Voters: []uint64{170}, Learners: []uint64{4}}})
			err = errors.Join(err, w.Save(&raftpb.HardState{Term: u(term), Vote: u(3), Commit: u(commit)}, nil))
		default:
			term += rnd.Uint64N(2)
			if last > commit && rnd.IntN(3) == 0 { // a new leader overwrites the tail
				last = commit + rnd.Uint64N(last-commit)
				term++
			}
			var ents []*raftpb.Entry
			for range rnd.IntN(6) {
				last++
				terms[last] = term
				typ := raftpb.EntryNormal
				data := bytes.Repeat([]byte{byte(rnd.Int())}, rnd.IntN(300))
				if rnd.IntN(8) == 0 {
					typ = raftpb.EntryConfChange
					data, _ = proto.Marshal(&raftpb.ConfChange{Id: u(rnd.Uint64()), Type: raftpb.ConfChangeAddNode.Enum(), NodeId: u(rnd.Uint64()), Context: []byte("{}")})
				}
				ents = append(ents, &raftpb.Entry{Term: u(term), Index: u(last), Type: typ.Enum(), Data: data})
			}
			if last > commit {
				commit += rnd.Uint64N(last - commit + 1)
			}
			err = w.Save(&raftpb.HardState{Term: u(term), Vote: u(3), Commit: u(commit)}, ents)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// On random logs our reading is etcd's, an append can be planned and applied,
// with the result that was planned, and a rewrite keeps everything.
//
// Rules: P6, P8, P12.
func TestRandomLogs(t *testing.T) {
	smallSegments(t, 2048)
	many := 0
	for n := range 150 {
		rnd := rand.New(rand.NewPCG(1, uint64(n)))
		dir := randomWAL(t, rnd)
		l, err := Inspect(nil, dir)
		if err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		if err := sameAsEtcd(l, readAsEtcd(dir)); err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		ents, sum := slices.Collect(l.Entries()), l.Summary()
		l.Close()
		if sum.Segments > 1 {
			many++
		}
		if _, err := RewriteID(nil, dir, 99); err != nil {
			t.Fatalf("seed %d: rewrite: %v", n, err)
		}
		if l, err = Open(nil, dir); err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		if got := l.Summary(); got.MemberID != 99 || got.Last != sum.Last || got.HardState != sum.HardState || got.Segments != sum.Segments ||
			!slices.EqualFunc(slices.Collect(l.Entries()), ents, sameEntry) {
			t.Fatalf("seed %d: rewritten %+v, was %+v", n, got, sum)
		}
		p, err := l.Plan([]uint64{170, 171}[:rnd.IntN(3)])
		if sum.Last.Index == 0 && errors.Is(err, ErrCorrupt) {
			l.Close()
			continue
		}
		if err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		if err := l.Apply(p); err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		got := slices.Collect(l.Entries())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if len(got) != len(ents)+max(1, len(p.Remove)) || !slices.EqualFunc(got[:len(ents)], ents, sameEntry) {
			t.Fatalf("seed %d: %d entries became %d", n, len(ents), len(got))
		}
		e := readAsEtcd(dir)
		if e.err != nil || e.last != p.End || e.hs != (HardState{p.Term, 99, p.End.Index}) {
			t.Fatalf("seed %d: after %s etcd reads %+v", n, p, e)
		}
	}
	if many < 50 {
		t.Fatalf("only %d logs had several segments", many)
	}
}

// mutate changes a segment in one of the ways of disks: cut, zeroed sectors,
// flipped bits, garbage.
func mutate(rnd *rand.Rand, b []byte, written int) []byte {
	b = slices.Clone(b)
	at := rnd.IntN(written)
	switch rnd.IntN(5) {
	case 0:
		return b[:at]
	case 1:
		clear(b[at:])
	case 2:
		from := at / 512 * 512
		clear(b[from:min(from+512, len(b))])
	case 3:
		b[at] ^= 1 << rnd.IntN(8)
	default:
		for i := at; i < min(at+1+rnd.IntN(64), len(b)); i++ {
			b[i] = byte(rnd.Int())
		}
	}
	return b
}

func typed(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnexpectedFormat) || errors.Is(err, ErrNoWAL)
}

// Damaged logs: wherever we read a log to its end etcd does so too, with the
// same result; we call torn what etcd repairs, and Open then goes on where etcd
// would; all else is a typed error and an unchanged directory.
//
// Rules: P6.
func TestDamagedLogs(t *testing.T) {
	smallSegments(t, 2048)
	count := map[string]int{}
	rounds := 300
	if long() {
		rounds = 5000
	}
	for n := range rounds {
		rnd := rand.New(rand.NewPCG(2, uint64(n)))
		var dir string
		if n%2 == 0 {
			dir = seed(t, versions[rnd.IntN(len(versions))])
		} else {
			dir = randomWAL(t, rnd)
		}
		s, err := scanDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		name, written := s.segs[s.cur].name, s.off
		s.close()
		if rnd.IntN(4) == 0 {
			name, written = s.segs[0].name, min(s.segs[0].size, 1500)
		}
		file := filepath.Join(dir, name)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, mutate(rnd, b, int(written)), 0o600); err != nil {
			t.Fatal(err)
		}
		before, etcdDir := dirHash(t, dir), filepath.Join(fastDir(t), "etcd")
		must(t, os.CopyFS(etcdDir, os.DirFS(dir)))
		l, err := Inspect(nil, dir)
		if dirHash(t, dir) != before {
			t.Fatalf("%d: Inspect changed the directory", n)
		}
		e := readAsEtcd(etcdDir)
		switch {
		case err != nil && !typed(err):
			t.Fatalf("%d: untyped error %v", n, err)
		case err != nil:
			count["refused"]++
			if e.err == nil {
				count["refused, etcd reads it"]++
				if !strings.Contains(err.Error(), "no metadata record") && !strings.Contains(err.Error(), "behind it") {
					t.Fatalf("%d: stricter than etcd: %v", n, err)
				}
			}
			if lg, err := Open(nil, dir); err == nil {
				t.Fatalf("%d: Open took what Inspect refused: %+v", n, lg.Summary())
			} else if !typed(err) {
				t.Fatalf("%d: untyped error %v", n, err)
			}
			if _, err := RewriteID(nil, dir, 5); !typed(err) {
				t.Fatalf("%d: RewriteID: %v", n, err)
			}
			if _, err := os.Stat(stagingName(dir, 5)); err == nil {
				t.Fatalf("%d: a refused rewrite left its copy", n)
			}
			if dirHash(t, dir) != before {
				t.Fatalf("%d: a refusal changed the directory", n)
			}
		case l.Summary().Torn:
			count["torn"]++
			l.Close()
			if !errors.Is(e.err, io.ErrUnexpectedEOF) {
				t.Fatalf("%d: torn (%s), but etcd says %v", n, l.Summary().TornAt, e.err)
			}
			if !wal.Repair(zap.NewNop(), etcdDir) {
				t.Fatalf("%d: etcd does not repair it", n)
			}
			e = readAsEtcd(etcdDir)
			o, err := Open(nil, dir)
			if err != nil {
				if e.err == nil {
					t.Fatalf("%d: %v, but etcd repairs it", n, err)
				}
				continue
			}
			if err := sameAsEtcd(o, e); err != nil {
				t.Fatalf("%d: after repair: %v", n, err)
			}
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
		default:
			count["read"]++
			if e.err != nil {
				t.Fatalf("%d: read to the end, but etcd says %v", n, e.err)
			}
			if err := sameAsEtcd(l, e); err != nil {
				t.Fatalf("%d: %v", n, err)
			}
			l.Close()
		}
	}
	t.Log(count)
	if count["torn"] < rounds/20 || count["refused"] < rounds/20 || count["read"] < rounds/20 {
		t.Fatalf("the mutations are one-sided: %v", count)
	}
}

// Rewriting under the old ID gives byte-identical segments.
//
// Rules: P12.
func TestRewriteUnderOldIDIsIdentical(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		dir := cr.pair[0].wal()
		staging := filepath.Join(t.TempDir(), "copy")
		if err := stage(dir, staging, copier{newID: cr.ids[0], step: stepRewriteSegment}); err != nil {
			t.Fatal(err)
		}
		if a, b := segmentsHash(t, dir), segmentsHash(t, staging); a != b {
			t.Fatal("the copy differs")
		}
	})
}

// Input that no etcd wrote.
//
// Rules: P6.
func TestGarbage(t *testing.T) {
	smallSegments(t, 2048)
	name := fmt.Sprintf("%016x-%016x.wal", 0, 0)
	write := func(t *testing.T, files map[string]string) string {
		dir := t.TempDir()
		for n, b := range files {
			if err := os.WriteFile(filepath.Join(dir, n), []byte(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	meta := string([]byte{8, 10, 16, 7})
	for _, c := range []struct {
		name string
		dir  func(t *testing.T) string
		want error
	}{
		{"no directory", func(t *testing.T) string { return filepath.Join(t.TempDir(), "wal") }, ErrNoWAL},
		{"empty directory", func(t *testing.T) string { return t.TempDir() }, ErrNoWAL},
		{"leftovers only", func(t *testing.T) string { return write(t, map[string]string{"0.tmp": "x", name + ".broken": "y"}) }, ErrNoWAL},
		{"empty segment", func(t *testing.T) string { return write(t, map[string]string{name: ""}) }, ErrUnexpectedFormat},
		{"zeros", func(t *testing.T) string { return write(t, map[string]string{name: strings.Repeat("\x00", 1<<16)}) }, ErrUnexpectedFormat},
		{"text", func(t *testing.T) string {
			return write(t, map[string]string{name: strings.Repeat("not a log\n", 100)})
		}, ErrCorrupt},
		{"other name", func(t *testing.T) string { return write(t, map[string]string{"x.wal": ""}) }, ErrUnexpectedFormat},
		{"directory for a segment", func(t *testing.T) string {
			dir := t.TempDir()
			return dir + strings.Repeat("", must(t, os.Mkdir(filepath.Join(dir, name), 0o700)))
		}, ErrUnexpectedFormat},
		{"missing segment", func(t *testing.T) string {
			return write(t, map[string]string{name: "", fmt.Sprintf("%016x-%016x.wal", 2, 9): ""})
		}, ErrCorrupt},
		{"no metadata", records(recCRC, "", recState, "\x08\x01\x10\x01\x18\x00"), ErrUnexpectedFormat},
		{"no member", records(recCRC, "", recMetadata, "\x10\x07"), ErrUnexpectedFormat},
		{"two owners", records(recCRC, "", recMetadata, meta, recMetadata, "\x08\x0b\x10\x07"), ErrCorrupt},
		{"unknown record", records(recCRC, "", recMetadata, meta, 9, "x"), ErrUnexpectedFormat},
		{"record 0", records(recCRC, "", recMetadata, meta, 0, "x"), ErrUnexpectedFormat},
		{"bad entry", records(recCRC, "", recMetadata, meta, recEntry, "\xff"), ErrUnexpectedFormat},
		{"bad state", records(recCRC, "", recMetadata, meta, recState, "\xff"), ErrUnexpectedFormat},
		{"bad snapshot", records(recCRC, "", recMetadata, meta, recSnapshot, "\xff"), ErrUnexpectedFormat},
		{"entry 0", records(recCRC, "", recMetadata, meta, recEntry, "\x10\x01"), ErrUnexpectedFormat},
		{"first entry missing", records(recCRC, "", recMetadata, meta, recEntry, "\x08\x00\x10\x01\x18\x05"), ErrCorrupt},
		{"gap", records(recCRC, "", recMetadata, meta, recEntry, "\x08\x00\x10\x01\x18\x01", recEntry, "\x08\x00\x10\x01\x18\x03"), ErrCorrupt},
		{"huge index", records(recCRC, "", recMetadata, meta, recEntry, "\x08\x00\x10\x01\x18\x01", recEntry, "\x08\x00\x10\x01\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), ErrCorrupt},
		{"commit beyond the end", records(recCRC, "", recMetadata, meta, recEntry, "\x08\x00\x10\x01\x18\x01", recState, "\x08\x01\x10\x01\x18\x02"), ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := c.dir(t)
			before := ""
			if _, err := os.Stat(dir); err == nil {
				before = dirHash(t, dir)
			}
			if _, err := Inspect(nil, dir); !errors.Is(err, c.want) || strings.Contains(err.Error(), "gave up") {
				t.Errorf("Inspect: %v", err)
			}
			if _, err := Open(nil, dir); !errors.Is(err, c.want) {
				t.Errorf("Open: %v", err)
			}
			if _, err := RewriteID(nil, dir, 5); err == nil || !typed(err) {
				t.Errorf("RewriteID: %v", err)
			}
			if _, err := os.Stat(stagingName(dir, 5)); err == nil {
				t.Error("a refused rewrite left its copy")
			}
			if before != "" && dirHash(t, dir) != before {
				t.Error("the directory changed")
			}
		})
	}
}

func must(t testing.TB, err error) int {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// records makes a directory with one segment of these records, CRCs correct.
func records(typeAndData ...any) func(t *testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		dir := filepath.Join(fastDir(t), "wal")
		must(t, os.Mkdir(dir, 0o700))
		var b []byte
		var crc uint32
		for i := 0; i < len(typeAndData); i += 2 {
			typ, data := typeAndData[i].(int), []byte(typeAndData[i+1].(string))
			b, crc = appendRecord(b, crc, int64(typ), data)
		}
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%016x-%016x.wal", 0, 0)), append(b, make([]byte, 1024)...), 0o600))
		return dir
	}
}

func appendRecord(b []byte, crc uint32, typ int64, data []byte) ([]byte, uint32) {
	if typ == recCRC {
		return appendFrame(b, typ, crc, nil, false), crc
	}
	crc = crc32Update(crc, data)
	return appendFrame(b, typ, crc, data, true), crc
}
