package walsurgery

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// One flipped bit in a length, one zeroed length, one lost sector in the middle of
// the last segment: etcd takes each for the end of the log and drops acknowledged
// entries. Here it is damage, for every operation, and nothing is changed.
//
// Rules: P6, P11.
func TestDamageIsNotATornTail(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for name, damage := range map[string]func(b []byte, at int64){
			"flipped bit":   func(b []byte, at int64) { b[at+4] ^= 1 },
			"zeroed length": func(b []byte, at int64) { clear(b[at : at+8]) },
			"lost sector":   func(b []byte, at int64) { clear(b[at/512*512 : at/512*512+512]) },
			"lost page":     func(b []byte, at int64) { clear(b[at/4096*4096 : at/4096*4096+4096]) },
		} {
			dir := copied(t, cr.pair[cr.follower].wal())
			s, err := scanDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			s.close()
			e := s.ents[len(s.ents)*3/4]
			file := filepath.Join(dir, s.segs[e.seg].name)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			frame := e.off - 8
			for !strings.HasPrefix(string(b[frame+8:]), "\x08\x02\x10") { // back to the record's head
				frame--
			}
			damage(b, frame)
			must(t, os.WriteFile(file, b, 0o600))
			before := dirHash(t, dir)
			if _, err := Inspect(nil, dir); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "behind it") {
				t.Errorf("%s: Inspect: %v", name, err)
			}
			if l, err := Open(nil, dir); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: Open: %v", name, err)
				if err == nil {
					l.Close() // a second reader would wait for its lock
				}
			}
			if _, err := RewriteID(nil, dir, 0xbeef); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: RewriteID: %v", name, err)
			}
			if dirHash(t, dir) != before {
				t.Errorf("%s: the directory changed", name)
			}
			// What makes this necessary: etcd goes on without the last quarter.
			if got := readAsEtcd(dir); name == "zeroed length" && (got.err != nil || got.last.Index >= s.last().Index) {
				t.Errorf("%s: etcd reads to %v, %v: it has become strict", name, got.last, got.err)
			}
		}
	})
}

// Frames of the one save that was not synced yet may follow a torn one: the disk
// writes pages in any order.
//
// Rules: P6.
func TestUnsyncedFramesBehindATornOne(t *testing.T) {
	smallSegments(t, 1<<20)
	build := func(types ...int) string {
		b, crc := appendRecord(nil, 0, recCRC, nil)
		add := func(typ int, data string) { b, crc = appendRecord(b, crc, int64(typ), []byte(data)) }
		add(recMetadata, testMeta)
		add(recSnapshot, "\x08\x00\x10\x00")
		add(recEntry, entry1)
		add(recState, state2)
		torn := len(b)
		add(recEntry, entry2+"\x22\x7f"+strings.Repeat("d", 0x7f))
		clear(b[torn : torn+8])
		for _, typ := range types {
			add(typ, map[int]string{recEntry: "\x08\x00\x10\x02\x18\x03", recState: state2, recSnapshot: snap1}[typ])
		}
		return fuzzDir(t, append(b, make([]byte, 4096)...))
	}
	for _, c := range []struct {
		types  []int
		synced bool
	}{
		{nil, false},
		{[]int{recEntry, recEntry, recEntry, recState}, false},
		{[]int{recState, recEntry, recEntry, recState}, false},
		{[]int{recEntry, recState, recState}, false},
		{[]int{recEntry, recState, recEntry}, true},
		{[]int{recEntry, recState, recState, recEntry, recState}, true},
		{[]int{recSnapshot, recState}, true},
		{[]int{recEntry, recSnapshot, recEntry}, true},
	} {
		l, err := Open(nil, build(c.types...))
		if c.synced != errors.Is(err, ErrCorrupt) || !c.synced && err != nil {
			t.Errorf("%v: %v", c.types, err)
		}
		if err == nil {
			if l.Summary().Last.Index != 1 {
				t.Errorf("%v: %s", c.types, l.Summary())
			}
			must(t, l.Close())
		}
	}
}
