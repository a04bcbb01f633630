package walsurgery

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// remember reads what is in a member directory.
func remember(t testing.TB, dir string, other uint64) *before {
	t.Helper()
	l, err := Inspect(nil, filepath.Join(dir, "wal"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &before{sum: l.Summary(), entries: slices.Collect(l.Entries()), files: segmentsOf(t, filepath.Join(dir, "wal")), other: other, newID: fireID}
}

// segmentsOf reads the segments up to their last byte that is not zero.
func segmentsOf(t testing.TB, wal string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range namesIn(t, wal) {
		if !strings.HasSuffix(name, ".wal") {
			continue
		}
		f, err := os.Open(filepath.Join(wal, name))
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		b, err := readData(segment{f: f, size: st.Size()}, 0)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[name] = b
	}
	return out
}

// seen is a hash of what etcd can see of a member directory: the names in it and
// in the WAL, and the segments but for the zeros at their ends.
func seen(t testing.TB, dir string) string {
	t.Helper()
	h := sha256.New()
	wal := filepath.Join(dir, "wal")
	segs := segmentsOf(t, wal)
	fmt.Fprintln(h, namesIn(t, dir))
	for _, name := range namesIn(t, wal) {
		fmt.Fprintln(h, name, len(segs[name]))
		h.Write(segs[name])
		if st, err := os.Stat(filepath.Join(wal, name)); err == nil && strings.HasSuffix(name, ".wal") {
			fmt.Fprintln(h, st.Size())
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// keptLog: under the WAL's name stands a log that begins with every entry that was
// there. What etcd wrote behind them is etcd's affair.
func keptLog(t testing.TB, b *before, dir string) error {
	l, err := Inspect(nil, filepath.Join(dir, "wal"))
	if err != nil {
		return err
	}
	defer l.Close()
	entries, s := slices.Collect(l.Entries()), l.Summary()
	if len(entries) < len(b.entries) || !slices.EqualFunc(entries[:len(b.entries)], b.entries, sameEntry) || s.Commit < b.sum.Commit || s.Inconsistent != "" {
		return fmt.Errorf("%d entries before, %d after, or changed ones: %s", len(b.entries), len(entries), s)
	}
	return nil
}

// checkAppend: the old records are there as they were, byte by byte, and what
// follows is a prefix of the append (P8).
func checkAppend(t testing.TB, b *before, dir string) error {
	wal := filepath.Join(dir, "wal")
	l, err := Inspect(nil, wal)
	if err != nil {
		return err
	}
	defer l.Close()
	s, now := l.Summary(), segmentsOf(t, wal)
	end := b.sum.LogBytes
	for _, name := range sortedNames(b.files) {
		old := b.files[name]
		n := min(int64(len(old)), end) // a torn tail is cut off
		end -= n
		if !bytes.HasPrefix(padded(now[name], n), old[:n]) {
			return fmt.Errorf("segment %s changed below %d", name, n)
		}
	}
	if b.sum.Torn && !keptTorn(t, b, wal, now) {
		return fmt.Errorf("the torn tail was cut off and is not in a copy")
	}
	if s.Inconsistent != "" || s.Metadata != b.sum.Metadata || s.Snapshot != b.sum.Snapshot {
		return fmt.Errorf("%s, was %s", s, b.sum)
	}
	entries := slices.Collect(l.Entries())
	if len(entries) < len(b.entries) || !slices.EqualFunc(entries[:len(b.entries)], b.entries, sameEntry) {
		return fmt.Errorf("%d entries before, %d after, or changed ones", len(b.entries), len(entries))
	}
	added := entries[len(b.entries):]
	term := max(b.sum.HardState.Term, b.sum.Last.Term) + 1
	if b.join != nil {
		term = b.join.term
	}
	n := 0
	for _, e := range added { // in a higher term each time it was done again, then from the beginning
		if n++; e.Term > term {
			n = 1
		}
		if e.Kind != KindConfChange || !b.planned(n, e) || e.Term < term || e.Term > s.HardState.Term {
			return fmt.Errorf("an entry that nobody planned: %+v in %s", e, s)
		}
		term = e.Term
	}
	old, voted := b.sum.HardState, HardState{Term: s.HardState.Term, Vote: s.MemberID, Commit: b.sum.Commit}
	switch {
	case s.HardState == old && len(added) == 0:
	case s.HardState.Term <= old.Term:
		return fmt.Errorf("%+v after %+v", s.HardState, old)
	case s.HardState == voted:
	case len(added) > 0 && s.HardState == HardState{Term: voted.Term, Vote: voted.Vote, Commit: s.Last.Index}:
	default:
		return fmt.Errorf("%+v with %d new entries after %+v", s.HardState, len(added), old)
	}
	return nil
}

// checkStaged: under the WAL's name stands the old log, untouched, or one with the whole append, in
// which nothing but that differs; and the old one is somewhere, as it was (P18).
func checkStaged(t testing.TB, b *before, dir string) error {
	wal := filepath.Join(dir, "wal")
	l, err := Inspect(nil, wal)
	if err != nil {
		return err
	}
	defer l.Close()
	s := l.Summary()
	if s.HardState == b.sum.HardState {
		if !sameFiles(segmentsOf(t, wal), b.files) {
			return fmt.Errorf("the old log was changed: %s, was %s", s, b.sum)
		}
		return nil
	}
	id, term := b.sum.MemberID, fireTerm
	if b.join != nil {
		id = b.join.id
	}
	entries := slices.Collect(l.Entries())
	if len(entries) <= len(b.entries) || !slices.EqualFunc(entries[:len(b.entries)], b.entries, sameEntry) {
		return fmt.Errorf("%d entries before, %d after, or changed ones", len(b.entries), len(entries))
	}
	n := 0
	for _, e := range entries[len(b.entries):] {
		if n++; e.Term > term {
			n = 1
		}
		if e.Kind != KindConfChange || !b.planned(n, e) || e.Term < term {
			return fmt.Errorf("an entry that nobody planned: %+v in %s", e, s)
		}
		term = e.Term
	}
	if want := (HardState{Term: term, Vote: id, Commit: s.Last.Index}); n != b.adds() || s.HardState != want || s.Torn || s.Inconsistent != "" ||
		s.Metadata != (Metadata{MemberID: id, ClusterID: b.sum.ClusterID}) || !slices.Equal(s.Snapshots, b.sum.Snapshots) {
		return fmt.Errorf("%d entries were added, %s, not complete after %s", n, s, b.sum)
	}
	for _, name := range namesIn(t, dir) {
		if (strings.HasPrefix(name, "wal.before-") || strings.HasPrefix(name, "wal"+appendInfix)) && sameFiles(segmentsOf(t, filepath.Join(dir, name)), b.files) {
			return nil
		}
	}
	return fmt.Errorf("the old log is not in %v", namesIn(t, dir))
}

func finalStaged(t testing.TB, b *before, dir string) error {
	if err := checkStaged(t, b, dir); err != nil {
		return err
	}
	if err := finalCommit(t, b, dir); err != nil {
		return err
	}
	for _, name := range namesIn(t, dir) {
		if strings.HasPrefix(name, "wal"+appendInfix) {
			return fmt.Errorf("left behind: %s", name)
		}
	}
	return nil
}

// planned: the n-th entry that was added is the one of the append, or of that done again.
func (b *before) planned(n int, e Entry) bool {
	if b.join == nil {
		return e.Change.Type == RemoveNode && e.Change.NodeID == b.other
	}
	switch n {
	case 1:
		return e.Change.Type == RemoveNode && e.Change.NodeID == b.join.old
	case 2:
		return e.Change.Type == AddNode && e.Change.NodeID == b.join.id &&
			string(e.Change.Context) == fmt.Sprintf(`{"id":%d,"peerURLs":[%q]}`, b.join.id, b.join.url)
	}
	return n == 3 && e.Change.Type == RemoveNode && e.Change.NodeID == b.other
}

// keptTorn: the torn segment is there as it was, under its name or as a copy.
func keptTorn(t testing.TB, b *before, wal string, now map[string][]byte) bool {
	names := sortedNames(b.files)
	last := names[len(names)-1]
	if bytes.Equal(now[last], b.files[last]) {
		return true
	}
	for _, n := range namesIn(t, wal) {
		if c, err := os.ReadFile(filepath.Join(wal, n)); err == nil && strings.HasPrefix(n, last+".broken") &&
			bytes.Equal(bytes.TrimRight(c, "\x00"), b.files[last]) {
			return true
		}
	}
	return false
}

func finalAppend(t testing.TB, b *before, dir string) error {
	if err := checkAppend(t, b, dir); err != nil {
		return err
	}
	return finalCommit(t, b, dir)
}

// finalCommit: the log ends with what was appended, and that is committed.
func finalCommit(t testing.TB, b *before, dir string) error {
	l, err := Inspect(nil, filepath.Join(dir, "wal"))
	if err != nil {
		return err
	}
	defer l.Close()
	if s := l.Summary(); s.Commit != s.Last.Index || s.Last.Index <= b.sum.Last.Index || s.Torn || s.Last.Term != s.HardState.Term {
		return fmt.Errorf("not complete: %s", s)
	}
	return nil
}

// checkRewrite: the old log as it was or the new one, whole, under the WAL's
// name; and the old one is somewhere, as it was.
func checkRewrite(t testing.TB, b *before, dir string) error {
	wal := filepath.Join(dir, "wal")
	md, err := ReadMetadata(wal)
	if err != nil {
		return err
	}
	old := wal
	if md.MemberID == b.newID {
		if old = stagingName(wal, b.newID); !exists(old) {
			old = fmt.Sprintf("%s.before-%x", wal, b.sum.MemberID)
		}
		if l, err := Inspect(nil, wal); err != nil {
			return err
		} else if s := l.Summary(); s.HardState != b.sum.HardState || s.Last != b.sum.Last || !slices.Equal(s.Snapshots, b.sum.Snapshots) ||
			!slices.EqualFunc(slices.Collect(l.Entries()), b.entries, sameEntry) {
			return fmt.Errorf("another log: %s, was %s", s, b.sum)
		} else if err := l.Close(); err != nil {
			return err
		}
	} else if md.MemberID != b.sum.MemberID {
		return fmt.Errorf("the log of %s", md)
	}
	if got := segmentsOf(t, old); !sameFiles(got, b.files) {
		return fmt.Errorf("the old log, in %s, was changed", old)
	}
	return nil
}

func finalRewrite(t testing.TB, b *before, dir string) error {
	if err := checkRewrite(t, b, dir); err != nil {
		return err
	}
	md, err := ReadMetadata(filepath.Join(dir, "wal"))
	if err != nil || md.MemberID != b.newID {
		return fmt.Errorf("the log of %s, %v", md, err)
	}
	want := []string{"wal", fmt.Sprintf("wal.before-%x", b.sum.MemberID)}
	if got := slices.DeleteFunc(namesIn(t, dir), func(n string) bool { return n == "snap" }); !slices.Equal(got, want) {
		return fmt.Errorf("there are %v, should be %v", got, want)
	}
	return nil
}

func sortedNames(m map[string][]byte) []string {
	var out []string
	for n := range m {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func sameFiles(a, b map[string][]byte) bool {
	return slices.Equal(sortedNames(a), sortedNames(b)) &&
		!slices.ContainsFunc(sortedNames(a), func(n string) bool { return !bytes.Equal(a[n], b[n]) })
}

// padded is b with zeros up to n bytes.
func padded(b []byte, n int64) []byte {
	if int64(len(b)) < n {
		return append(slices.Clone(b), make([]byte, n-int64(len(b)))...)
	}
	return b
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
