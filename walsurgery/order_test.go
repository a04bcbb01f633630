package walsurgery

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/raft/v3/raftpb"

	"twok/walsurgery/internal/systrace"
)

// A killed process loses nothing that it handed to the kernel; a power failure
// does. So the order of writes and syncs is asserted from the trace.

var errOrder = errors.New("out of order")

// unsynced follows what a power failure could still undo: bytes of files and names
// in directories.
type unsynced struct {
	bytes map[string]bool
	names map[string]map[string]bool // directory -> names
	known map[string]bool            // files that were seen
}

func newUnsynced(b *before) *unsynced {
	u := &unsynced{bytes: map[string]bool{}, names: map[string]map[string]bool{}, known: map[string]bool{}}
	for n := range b.files {
		u.known["wal/"+n] = true
	}
	return u
}

func (u *unsynced) name(p string) {
	d := path.Dir(p)
	if u.names[d] == nil {
		u.names[d] = map[string]bool{}
	}
	u.names[d][path.Base(p)] = true
}

// op takes one call in.
func (u *unsynced) op(o systrace.Op) {
	switch {
	case !o.Done():
	case o.Call == "openat":
		if !u.known[o.Path] {
			u.known[o.Path] = true
			u.name(o.Path)
		}
	case o.Call == "mkdirat", o.Call == "unlinkat":
		u.name(o.Path)
		if o.Call == "unlinkat" {
			delete(u.known, o.Path)
			delete(u.bytes, o.Path)
		}
	case o.Renames():
		u.name(o.Path)
		u.name(o.To)
		swap := o.Call == "renameat2"
		u.move(o.Path, o.To, swap)
	case o.Syncs():
		delete(u.bytes, o.Path)
		delete(u.names, o.Path)
	default: // writes of all kinds, truncation, allocation, owner and mode
		u.bytes[o.Path] = true
	}
}

// move renames everything below from to to, and back if the two are exchanged.
func (u *unsynced) move(from, to string, swap bool) {
	under := func(p string) string {
		for _, r := range []struct{ old, new string }{{from, to}, {to, from}} {
			if rest, ok := strings.CutPrefix(p, r.old); ok && (rest == "" || rest[0] == '/') && (r.old == from || swap) {
				return r.new + rest
			}
		}
		return p
	}
	rename := func(m map[string]bool) map[string]bool {
		out := map[string]bool{}
		for p := range m {
			out[under(p)] = true
		}
		return out
	}
	u.bytes, u.known = rename(u.bytes), rename(u.known)
	names := map[string]map[string]bool{}
	for d, n := range u.names {
		names[under(d)] = n
	}
	u.names = names
}

// left returns what is not durable of the paths that match.
func (u *unsynced) left(match func(p string) bool) []string {
	var out []string
	for p := range u.bytes {
		if match(p) {
			out = append(out, "bytes of "+p)
		}
	}
	for d, ns := range u.names {
		for n := range ns {
			if p := path.Join(d, n); match(p) {
				out = append(out, "name "+p)
			}
		}
	}
	slices.Sort(out)
	return out
}

// isLog tells whether etcd or a person will read the file: a preallocated one
// is nobody's.
func isLog(p string) bool { return !strings.HasSuffix(p, ".tmp") }

// appendOrder: between two writes of records a sync; the records are those of P8,
// step by step; at the reply nothing is left to be lost.
func appendOrder(b *before, ops []systrace.Op) error {
	u := newUnsynced(b)
	var step []string // what each write of the append holds
	var last *systrace.Op
	for i := range ops {
		o := &ops[i]
		if o.Reply {
			if left := u.left(isLog); len(left) > 0 {
				return fmt.Errorf("%w: success was reported before the sync of %v", errOrder, left)
			}
			if last == nil || !syncedBetween(ops, *last, o.Begin) {
				return fmt.Errorf("%w: success was reported before the last sync", errOrder)
			}
			return p8(b, step)
		}
		if o.Call == "write" && strings.HasPrefix(o.Path, "wal/") && !strings.Contains(o.Path, ".broken") {
			if last != nil && !syncedBetween(ops, *last, o.Begin) {
				return fmt.Errorf("%w: %s begins before what %s wrote was synced", errOrder, o.Key(), last.Key())
			}
			kinds, err := recordsIn(o.Data)
			if err != nil {
				return fmt.Errorf("%s: %w", o.Key(), err)
			}
			step = append(step, kinds)
			last = o
		}
		if o.Call == "ftruncate" && strings.HasSuffix(o.Path, ".wal") && last == nil {
			// The repair, or etcd's code, cuts off what follows the end: only after
			// the copy of it is durable.
			if left := u.left(func(p string) bool { return strings.Contains(p, ".broken") }); len(left) > 0 {
				return fmt.Errorf("%w: cut off before the sync of %v", errOrder, left)
			}
		}
		u.op(*o)
	}
	return fmt.Errorf("%w: success was not reported", errOrder)
}

// syncedBetween tells whether the file that a wrote to was synced after a, before at.
func syncedBetween(ops []systrace.Op, a systrace.Op, at int) bool {
	return slices.ContainsFunc(ops, func(o systrace.Op) bool {
		return o.Syncs() && o.Done() && o.Path == a.Path && o.Begin > a.End && o.End < at
	})
}

// adds is how many entries the append has.
func (b *before) adds() int {
	if b.join != nil {
		return 3
	}
	return 1
}

// p8 compares the writes with the steps of P8. The head of a segment that etcd's
// code begins repeats the state.
func p8(b *before, writes []string) error {
	term := max(b.sum.HardState.Term, b.sum.Last.Term) + 1
	if b.join != nil {
		term = b.join.term
	}
	vote := fmt.Sprintf("state %d %x %d", term, b.sum.MemberID, b.sum.Commit)
	var entries []string
	for n := range b.adds() {
		entries = append(entries, fmt.Sprintf("entry %d@%d", b.sum.Last.Index+uint64(n)+1, term))
	}
	entry := strings.Join(entries, ", ")
	commit := fmt.Sprintf("state %d %x %d", term, b.sum.MemberID, b.sum.Last.Index+uint64(len(entries)))
	var got []string
	for _, w := range writes {
		if !strings.HasPrefix(w, "head") {
			got = append(got, w)
		}
	}
	if want := []string{vote, entry, commit}; !slices.Equal(got, want) {
		return fmt.Errorf("%w: the writes are %q, want %q", errOrder, got, want)
	}
	return nil
}

// recordsIn names the records of one write.
func recordsIn(b []byte) (string, error) {
	var out []string
	for len(b) > 0 {
		if len(b) < frameHeader {
			return "", fmt.Errorf("%d bytes behind %v", len(b), out)
		}
		l := binary.LittleEndian.Uint64(b)
		n := l &^ (uint64(0xff) << 56)
		end := frameHeader + n + (8-n%8)%8
		if end > uint64(len(b)) {
			return "", fmt.Errorf("a frame of %d bytes behind %v", n, out)
		}
		var f frame
		if err := f.parse(b[frameHeader : frameHeader+n]); err != nil {
			return "", err
		}
		switch f.typ {
		case recState:
			var hs raftpb.HardState
			if err := proto.Unmarshal(f.data, &hs); err != nil {
				return "", err
			}
			out = append(out, fmt.Sprintf("state %d %x %d", hs.GetTerm(), hs.GetVote(), hs.GetCommit()))
		case recEntry:
			e, err := parseEntry(f.data)
			if err != nil {
				return "", err
			}
			out = append(out, fmt.Sprintf("entry %d@%d", e.index, e.term))
		case recCRC:
			out = append(out, "head")
		default:
			out = append(out, fmt.Sprintf("record %d", f.typ))
		}
		b = b[end:]
	}
	return strings.Join(out, ", "), nil
}

// rewriteOrder: every byte and name of the copy is durable before it gets the
// WAL's name; that is durable before the old log is renamed, which is durable at
// the reply.
func rewriteOrder(b *before, ops []systrace.Op) error {
	u := newUnsynced(b)
	renames := 0
	anything := func(string) bool { return true }
	for _, o := range ops {
		if o.Renames() {
			renames++
			if left := u.left(anything); len(left) > 0 {
				return fmt.Errorf("%w: %s before the sync of %v", errOrder, o.Key(), left)
			}
		}
		if o.Reply {
			if left := u.left(anything); len(left) > 0 || renames != 2 {
				return fmt.Errorf("%w: success was reported after %d renames before the sync of %v", errOrder, renames, left)
			}
			return nil
		}
		u.op(o)
	}
	return fmt.Errorf("%w: success was not reported", errOrder)
}

// stagedOrder: the same of a copy in which was appended; etcd's code has preallocated a file beside each log that it had open.
func stagedOrder(b *before, ops []systrace.Op) error {
	return rewriteOrder(b, slices.DeleteFunc(slices.Clone(ops), func(o systrace.Op) bool { return !isLog(o.Path) }))
}

// createOrder: the log is durable, with its name and those in it, at the reply.
func createOrder(b *before, ops []systrace.Op) error {
	u := newUnsynced(b)
	inDir := func(p string) bool { return strings.HasSuffix(p, ".wal") }
	for _, o := range ops {
		if o.Renames() && o.To == "wal" {
			if left := u.left(inDir); slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, "bytes") }) {
				return fmt.Errorf("%w: %s before the sync of %v", errOrder, o.Key(), left)
			}
		}
		if o.Reply {
			if left := u.left(isLog); len(left) > 0 {
				return fmt.Errorf("%w: success was reported before the sync of %v", errOrder, left)
			}
			return nil
		}
		u.op(o)
	}
	return fmt.Errorf("%w: success was not reported", errOrder)
}

// The order of every operation holds on logs of every version. And the check of
// it bites: each sync before the reply is needed, and each write of the append.
//
// Rules: P8, P12, P13, P18.
func TestOrderOfSyncs(t *testing.T) {
	for _, version := range versions {
		for _, op := range append(operations(), createOp()) {
			dir, b := op.onSeed(t, version)
			r := op.trace(t, b, dir, nil)
			if err := op.order(b, r.Ops); err != nil {
				t.Errorf("%s, %s: %v\n%s", version, op.name, err, listed(r.Ops))
				continue
			}
			if op.name == "append, new segments" || op.name == "append, torn tail" {
				continue // etcd's code syncs more often than is needed
			}
			if strings.HasPrefix(op.name, "staged") { // here too, but not for nothing
				staging := "wal" + appendInfix + "500000000"
				for _, of := range []func(string) bool{
					func(p string) bool { return path.Dir(p) == staging },
					func(p string) bool { return p == staging },
					func(p string) bool { return p == "." },
				} {
					rest := slices.DeleteFunc(slices.Clone(r.Ops), func(o systrace.Op) bool { return o.Syncs() && of(o.Path) })
					if err := op.order(b, rest); len(rest) == len(r.Ops) || !errors.Is(err, errOrder) {
						t.Errorf("%s, %s: without %d of %d calls: %v", version, op.name, len(r.Ops)-len(rest), len(r.Ops), err)
					}
				}
				continue
			}
			without := 0
			reply := slices.IndexFunc(r.Ops, func(o systrace.Op) bool { return o.Reply })
			for i, o := range r.Ops[:reply] {
				closing := op.name == "create" && strings.HasPrefix(o.Path, "wal/") // nothing was written since
				if closing || !o.Syncs() && !(op.name == "append" && o.Writes()) {
					continue
				}
				without++
				if err := op.order(b, slices.Delete(slices.Clone(r.Ops), i, i+1)); !errors.Is(err, errOrder) {
					t.Errorf("%s, %s: without %s: %v", version, op.name, o.Key(), err)
				}
				failed := slices.Clone(r.Ops)
				failed[i].Err = unix.EIO
				if err := op.order(b, failed); o.Syncs() && !errors.Is(err, errOrder) {
					t.Errorf("%s, %s: %s failed: %v", version, op.name, o.Key(), err)
				}
			}
			if without < 3 {
				t.Errorf("%s, %s: only %d calls left out", version, op.name, without)
			}
		}
	}
}
