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
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
	"twok/internal/lab"
	"twok/walsurgery"
)

// stopped is one member of a pair that was stopped in order, with a token in it.
func stopped(t *testing.T, minor string) *pair {
	t.Helper()
	p := startPair(t, minor, lab.Fast)
	p.put(p.encode(p.token(1))) // revision 2
	_, err := p.client("b").Put(p.within(patience), "later", "x")
	p.must(err)
	p.stop()
	return p
}

// tryRead is Read without expectations.
func (p *pair) tryRead(site string, between func(*Lock)) (failover.Data, error) {
	p.t.Helper()
	lock, log := p.open(site)
	if between != nil {
		between(lock)
	}
	d, err := Read(lock, log, 0)
	p.must(errors.Join(log.Close(), lock.Release()))
	return d, err
}

// Whatever is wrong with the database, the reading ends with a named problem, and
// never takes the agent with it.
//
// Rules: P6, P11.
func TestDamagedDatabase(t *testing.T) {
	p := stopped(t, "3.6")
	path := DBPath(p.Site("a").DataDir)
	whole, err := os.ReadFile(path)
	p.must(err)
	used := bytes.TrimRight(whole, "\x00")
	good, err := p.tryRead("a", nil)
	p.must(err)

	// One lock and one log for all: the file keeps its inode.
	lock, log := p.open("a")
	read := func(data []byte) (failover.Data, error) {
		p.must(os.WriteFile(path, data, 0o600))
		return Read(lock, log, 0)
	}
	for _, c := range []struct {
		name string
		data []byte
	}{
		{"empty", nil},
		{"one page", whole[:4096]},
		{"metadata only", whole[:2*4096]},
		{"four pages", whole[:4*4096]},
		{"cut in the middle of what is used", whole[:len(used)/2]},
		{"something else", bytes.Repeat([]byte("etcd"), 100_000)},
		{"zeros", make([]byte, len(whole))},
		{"no pages behind the metadata", append(bytes.Clone(whole[:2*4096]), make([]byte, len(whole)-2*4096)...)},
		{"garbage behind the metadata", append(bytes.Clone(whole[:2*4096]), bytes.Repeat([]byte{0xff}, len(whole)-2*4096)...)},
	} {
		d, err := read(c.data)
		if d.Problem != failover.DatabaseUnreadable || !errors.Is(err, ErrDatabase) || d.Member != p.ids["a"] || d.Last != good.Last {
			t.Errorf("%s: problem %s, %v, %+v", c.name, d.Problem, err, d)
		}
	}

	// Random damage. bbolt's pages have no checksum, so that some of it cannot be
	// noticed; but a reading ends, and a problem comes with its reason.
	p.must(os.WriteFile(path, whole, 0o600))
	rnd := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 1000 {
		data := bytes.Clone(used) // the rest of the file has not been used yet
		for range 1 + rnd.IntN(8) {
			at := rnd.IntN(len(used))
			if rnd.IntN(2) == 0 { // the heads of pages and elements matter most
				at = at&^4095 | rnd.IntN(64)
			}
			data[at] ^= byte(1 + rnd.IntN(255))
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		p.must(err)
		_, err = f.WriteAt(data, 0)
		p.must(errors.Join(err, f.Close()))
		d, err := Read(lock, log, 0)
		switch {
		case d.Problem == failover.DatabaseUnreadable || d.Problem == failover.DataInsane:
			if err == nil {
				t.Errorf("problem %s without an error", d.Problem)
			}
			found++
		case d.Problem != failover.None:
			t.Errorf("problem %s: %v", d.Problem, err)
		}
	}
	t.Logf("%d of 1000 damaged databases were refused", found)
	if found < 100 {
		t.Error("hardly any damage was found: was anything damaged?")
	}
	if d, err := read(whole); err != nil || d != good {
		t.Errorf("put back: %+v, %v", d, err)
	}
	p.must(errors.Join(log.Close(), lock.Release()))
}

// edit changes the database of a site behind etcd's back.
func (p *pair) edit(site string, fn func(tx *bbolt.Tx) error) {
	p.t.Helper()
	db, err := bbolt.Open(DBPath(p.Site(site).DataDir), 0o600, nil)
	p.must(err)
	p.must(errors.Join(db.Update(fn), db.Close()))
}

// Rules: P4, P5, P6, P11.
func TestWrongDatabase(t *testing.T) {
	p := stopped(t, "3.7")
	path := DBPath(p.Site("a").DataDir)
	whole, err := os.ReadFile(path)
	p.must(err)
	good, err := p.tryRead("a", nil)
	p.must(err)
	if good.Problem != failover.None || !good.Token.Present {
		t.Fatalf("%+v", good)
	}
	setApplied := func(v []byte) func(tx *bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketMeta)).Put([]byte(keyApplied), v) }
	}
	index := func(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }
	self := fmt.Appendf(nil, "%x", p.ids["a"])
	revision := func(main uint64) []byte {
		return append(append(index(main), '_'), index(0)...)
	}
	kv := func(m *mvccpb.KeyValue) []byte {
		b, err := proto.Marshal(m)
		p.must(err)
		return b
	}
	put := func(rev, value []byte) func(tx *bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketKey)).Put(rev, value) }
	}
	is := func(r failover.Reason, target error) func(failover.Data, error) bool {
		return func(d failover.Data, err error) bool { return d.Problem == r && errors.Is(err, target) }
	}
	unreadable, insane := is(failover.DatabaseUnreadable, ErrDatabase), is(failover.DataInsane, ErrInsane)
	for _, c := range []struct {
		name string
		edit func(tx *bbolt.Tx) error
		want func(failover.Data, error) bool
	}{
		{"applied beyond the log's end", setApplied(index(good.Last.Index + 1)), insane},
		{"applied at the log's end", setApplied(index(good.Last.Index)), func(d failover.Data, err error) bool {
			return err == nil && d.Problem == failover.None && d.Applied == good.Last.Index
		}},
		{"nothing applied, but members", setApplied(index(0)), insane},
		{"no consistent_index", func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketMeta)).Delete([]byte(keyApplied)) }, insane},
		{"a short consistent_index", setApplied([]byte{1}), unreadable},
		{"no members bucket", func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(bucketMembers)) }, unreadable},
		{"no key bucket", func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(bucketKey)) }, unreadable},
		{"no members", func(tx *bbolt.Tx) error {
			return errors.Join(tx.DeleteBucket([]byte(bucketMembers)), func() error { _, err := tx.CreateBucket([]byte(bucketMembers)); return err }())
		}, insane},
		{"a member that is no JSON", func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketMembers)).Put(self, []byte("x")) }, unreadable},
		{"a member under another's ID", func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(bucketMembers)).Put(self, tx.Bucket([]byte(bucketMembers)).Get(fmt.Appendf(nil, "%x", p.ids["b"])))
		}, unreadable},
		{"a member whose key is no ID", func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketMembers)).Put([]byte("me"), []byte("{}")) }, unreadable},
		{"not a member itself", func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketMembers)).Delete(self) }, func(d failover.Data, err error) bool {
			return err == nil && !d.Confs.Self && d.Name == "" && d.Confs.Applied.Count == 1
		}},
		{"a key that is no revision", put([]byte("\x00junk"), nil), unreadable},
		{"the newest key is no revision", put([]byte("zzz"), nil), unreadable},
		{"a newer token, unreadable", put(revision(1<<40), append(bytes.Clone(keyPrefix), 0x2a, 0x7f)), unreadable},
		{"a newer token, key not first", put(revision(1<<40), append(kv(&mvccpb.KeyValue{Value: []byte("x")}), kv(&mvccpb.KeyValue{Key: []byte(TokenKey)})...)),
			func(d failover.Data, err error) bool {
				return d.Problem == failover.None && d.Token.Bad && errors.Is(err, ErrTokenBad)
			}},
		{"a newer tombstone", put(append(revision(1<<40), 't'), kv(&mvccpb.KeyValue{Key: []byte(TokenKey)})),
			func(d failover.Data, err error) bool { return err == nil && !d.Token.Present && !d.Token.Bad }},
	} {
		p.edit("a", c.edit)
		if d, err := p.tryRead("a", nil); !c.want(d, err) {
			t.Errorf("%s: problem %s, %v, %+v", c.name, d.Problem, err, d)
		}
		p.must(os.WriteFile(path, whole, 0o600))
	}

	// Revisions that do not descend: the scan must not be led in circles.
	swapped := bytes.ReplaceAll(whole, revision(2), revision(200))
	if bytes.Equal(swapped, whole) {
		t.Fatal("no revision 2 in the file")
	}
	p.must(os.WriteFile(path, swapped, 0o600))
	if d, err := p.tryRead("a", nil); !unreadable(d, err) {
		t.Errorf("revisions out of order: problem %s, %v, %+v", d.Problem, err, d)
	}

	// A database beside another member's log.
	other, err := os.ReadFile(DBPath(p.Site("b").DataDir))
	p.must(err)
	p.must(os.WriteFile(path, other, 0o600))
	if d, err := p.tryRead("a", nil); err != nil || d.Member != p.ids["a"] || d.Name != "a" {
		t.Errorf("the other member's database, which holds the same: %+v, %v", d, err)
	}
}

// The additions of the two first members are the log's first entries. With only
// the first one applied, the second is in the tail: it counts, unless its ID was removed before.
//
// Rules: P5.
func TestRemovedStaysRemoved(t *testing.T) {
	p := stopped(t, "3.7")
	first, second := p.ids["a"], p.ids["b"]
	site := "a"
	if first > second { // etcd adds them in the order of their IDs
		first, second, site = second, first, "b"
	}
	id := fmt.Appendf(nil, "%x", second)
	p.edit(site, func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket([]byte(bucketMembers)).Delete(id),
			tx.Bucket([]byte(bucketMeta)).Put([]byte(keyApplied), binary.BigEndian.AppendUint64(nil, 1)))
	})
	d, err := p.tryRead(site, nil)
	if want := (failover.Voters{Count: 1, IDs: [2]uint64{first}}); err != nil || d.Confs.Applied != want || d.Confs.Others != 1 || d.Confs.Other != second || !d.Confs.AnyAlone {
		t.Errorf("the second addition in the tail: %+v, %v", d.Confs, err)
	}
	p.edit(site, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucketRemoved)).Put(id, []byte("removed")) })
	d, err = p.tryRead(site, nil)
	if err != nil || d.Confs.Others != 0 || !d.Confs.Self || d.Confs.Remove[0] != 0 {
		t.Errorf("and it was removed: %+v, %v", d.Confs, err)
	}
}

// Rules: P7, P11.
func TestReadLosesTheLock(t *testing.T) {
	p := stopped(t, "3.5")
	dir := p.Site("a").DataDir
	lost := func(name string, cause error, between func(*Lock)) {
		t.Helper()
		d, err := p.tryRead("a", between)
		if !errors.Is(err, ErrLockLost) || !errors.Is(err, cause) || d != (failover.Data{Problem: failover.LockFailed}) {
			t.Errorf("%s: %v, %+v", name, err, d)
		}
	}
	var thief *os.File
	lost("stolen", ErrLost, func(l *Lock) {
		p.must(unix.Flock(l.fd, unix.LOCK_UN))
		thief = flockOther(t, dir, unix.LOCK_EX)
	})
	p.must(thief.Close())
	whole, err := os.ReadFile(DBPath(dir))
	p.must(err)
	lost("replaced", ErrReplaced, func(*Lock) {
		p.must(os.WriteFile(DBPath(dir)+".new", whole, 0o600))
		p.must(os.Rename(DBPath(dir)+".new", DBPath(dir)))
	})
	lost("released", ErrReleased, func(l *Lock) { p.must(l.Release()) })
}

// An entry that was whole when the WAL was opened and is not when it is read again.
// And a torn end, which is cut off and leaves the rest.
//
// Rules: P6, P11.
func TestDamagedLog(t *testing.T) {
	p := stopped(t, "3.6")
	segment := filepath.Join(p.Site("a").DataDir, "member", "wal", "0000000000000000-0000000000000000.wal")
	data, err := os.ReadFile(segment)
	p.must(err)
	at := bytes.LastIndex(data, []byte(`{"twok_pair"`))
	if at < 0 {
		t.Fatal("no token in the segment")
	}
	flip := func(*Lock) {
		f, err := os.OpenFile(segment, os.O_WRONLY, 0)
		p.must(err)
		_, err = f.WriteAt([]byte{data[at] ^ 1}, int64(at))
		p.must(errors.Join(err, f.Close()))
	}
	good, err := p.tryRead("a", nil)
	p.must(err)
	for name, applied := range map[string]uint64{"below the applied index": good.Applied, "above the applied index": 3} {
		p.must(os.WriteFile(segment, data, 0o600))
		p.edit("a", func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(bucketMeta)).Put([]byte(keyApplied), binary.BigEndian.AppendUint64(nil, applied))
		})
		d, err := p.tryRead("a", flip)
		if d.Problem != failover.WALUnreadable || !errors.Is(err, walsurgery.ErrCorrupt) || d.Last != good.Last {
			t.Errorf("%s: problem %s, %v", name, d.Problem, err)
		}
	}

	p.must(os.WriteFile(segment, data, 0o600))
	p.edit("a", func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucketMeta)).Put([]byte(keyApplied), binary.BigEndian.AppendUint64(nil, good.Applied))
	})
	end := len(bytes.TrimRight(data, "\x00"))
	p.must(os.WriteFile(segment, data[:end-3], 0o600))
	d, err := p.tryRead("a", nil)
	if d.Problem != failover.None && d.Problem != failover.DataInsane || (d.Problem == failover.DataInsane) != errors.Is(err, ErrInsane) || d.Last.Index > good.Last.Index {
		t.Errorf("torn: problem %s, %v, last %v", d.Problem, err, d.Last)
	}
	// A log from the beginning of its life beside the database of today.
	p.must(os.RemoveAll(filepath.Dir(segment)))
	p.must(walsurgery.CreateEmpty(nil, filepath.Dir(segment), walsurgery.Metadata{MemberID: d.Member, ClusterID: d.Cluster}))
	if d, err := p.tryRead("a", nil); d.Problem != failover.DataInsane || !errors.Is(err, ErrInsane) {
		t.Errorf("an older log: problem %s, %v", d.Problem, err)
	}
}

// Rules: P6, P11.
func TestSane(t *testing.T) {
	sum := walsurgery.Summary{HasConfState: true, Entries: 10, First: walsurgery.Position{Index: 1, Term: 1},
		Last: walsurgery.Position{Index: 10, Term: 2}, HardState: walsurgery.HardState{Term: 2, Commit: 9}}
	db := database{applied: 8, members: []Member{{ID: 1}}}
	if r, err := sane(sum, db); r != failover.None || err != nil {
		t.Fatal(r, err)
	}
	for _, c := range []struct {
		name   string
		edit   func(*walsurgery.Summary, *database)
		want   failover.Reason
		target error
	}{
		{"no configuration in the snapshot record", func(s *walsurgery.Summary, _ *database) { s.HasConfState = false }, failover.WALOld, walsurgery.ErrTooOld},
		{"entries that are no continuation", func(s *walsurgery.Summary, _ *database) { s.Inconsistent = "why" }, failover.WALUnreadable, walsurgery.ErrCorrupt},
		{"applied beyond the end", func(_ *walsurgery.Summary, d *database) { d.applied = 11 }, failover.DataInsane, ErrInsane},
		{"snapshot beyond applied", func(s *walsurgery.Summary, _ *database) { s.Snapshot.Index = 9 }, failover.DataInsane, ErrInsane},
		{"commit beyond the end", func(s *walsurgery.Summary, _ *database) { s.Commit = 11 }, failover.DataInsane, ErrInsane},
		{"a gap between applied and the log", func(s *walsurgery.Summary, _ *database) { s.First.Index = 10 }, failover.DataInsane, ErrInsane},
		{"keys without an applied index", func(_ *walsurgery.Summary, d *database) { *d = database{newest: 2} }, failover.DataInsane, ErrInsane},
		{"applied without a member", func(_ *walsurgery.Summary, d *database) { d.members = nil }, failover.DataInsane, ErrInsane},
	} {
		s, d := sum, db
		c.edit(&s, &d)
		if r, err := sane(s, d); r != c.want || !errors.Is(err, c.target) {
			t.Errorf("%s: %s, %v", c.name, r, err)
		}
	}
}
