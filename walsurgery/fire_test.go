package walsurgery

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"twok/walsurgery/internal/systrace"
)

// kills are the faults of an undisturbed run's list: before each call, after the
// last one (after the others is before the next), and at the sector boundaries
// of each write. A disk tears no sector, and the kernel, killed, no page.
func kills(ops []systrace.Op) []systrace.Fault {
	var out []systrace.Fault
	for i, o := range ops {
		out = append(out, systrace.Fault{At: o.Key(), Do: systrace.KillBefore})
		if i == len(ops)-1 || long() {
			out = append(out, systrace.Fault{At: o.Key(), Do: systrace.KillAfter})
		}
		for _, n := range tears(o) {
			out = append(out, systrace.Fault{At: o.Key(), Do: systrace.ShortKill, Len: n})
		}
	}
	return out
}

// tears are lengths at which a write can tear: at the first, a middle and the last
// sector boundary in it.
func tears(o systrace.Op) []int64 {
	if !o.Writes() || o.Len <= 0 {
		return nil
	}
	from, n := max(o.Off, 0), o.Len
	if o.Ret > 0 {
		n = min(n, o.Ret) // a copy asks for more than there is
	}
	var out []int64
	for at := (from/sector + 1) * sector; at < from+n; at += sector {
		out = append(out, at-from)
	}
	if len(out) > 3 {
		out = []int64{out[0], out[len(out)/2], out[len(out)-1]}
	}
	return out
}

// The append, in place and staged, and the rewrite are killed at every call that changes the disk, and in
// the middle of every write, as tracing finds them. At each place the log is one
// that Raft could have written, the old one is where it was, the operation done
// again completes; and real etcd starts on each distinct result, and then leads
// alone with every acknowledged write, or runs under the new ID.
//
// Rules: P8, P9, P12, P18.
func TestKilledAtEveryCall(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for n, op := range operations() {
			if only := map[string]string{"append, new segments": "3.6", "append, join": "3.5", "staged": "3.7", "staged, join": "3.5"}[op.name]; only != "" && only != version && !long() {
				continue // many places, all in etcd 3.7's code whoever wrote the log
			}
			killEverywhere(t, cr, n%2, op)
		}
	})
}

func killEverywhere(t *testing.T, cr *crashed, i int, op operation) {
	base := filepath.Join(fastDir(t), "member")
	must(t, os.Mkdir(base, 0o700))
	copyDir(t, cr.pair[i].wal(), filepath.Join(base, "wal"))
	for _, n := range namesIn(t, filepath.Join(base, "wal")) {
		if strings.HasSuffix(n, ".wal") { // preallocated space takes time to copy
			must(t, os.Truncate(filepath.Join(base, "wal", n), fireSegment))
		}
	}
	if op.prepare != nil {
		op.prepare(t, filepath.Join(base, "wal"))
	}
	b := remember(t, base, cr.ids[1-i])
	op.joined(t, b, base, cr.pair[i].peer)
	if b.sum.Segments != 1 || b.sum.LogBytes > fireSegment/2 {
		t.Fatalf("the pair wrote too much for segments of %d: %s", fireSegment, b.sum)
	}
	scratch := filepath.Join(fastDir(t), "member")
	fresh := func(from string) string {
		must(t, os.RemoveAll(scratch))
		copyDir(t, from, scratch)
		return scratch
	}
	ops := op.undisturbed(t, b, fresh(base))
	faults := kills(ops)
	results := map[string]*result{}
	for _, f := range faults {
		dir := fresh(base)
		if r := op.trace(t, b, dir, &f); !r.Killed() {
			t.Fatalf("%s: %s: not killed: %v\n%s", op.name, f, r.State, r.Output)
		}
		if err := op.check(t, b, dir); err != nil {
			t.Fatalf("%s: %s: %v", op.name, f, err)
		}
		h := seen(t, dir)
		if long() {
			h = f.String()
		}
		if results[h] == nil {
			results[h] = &result{f, copied(t, dir)}
		}
		op.again(t, b, dir)
		if err := op.final(t, b, dir); err != nil {
			t.Fatalf("%s: %s: done again: %v", op.name, f, err)
		}
	}
	starts := 0
	for batch := range slices.Chunk(slices.Collect(maps.Values(results)), 4) {
		starts += op.startOn(t, cr, i, b, batch)
	}
	t.Logf("%s: %d calls, %d kills, %d distinct results, %d starts of etcd", op.name, len(ops), len(faults), len(results), starts)
}

// CreateEmpty, killed at every call: there is a whole log or none, and the next call
// makes it or finds it.
//
// Rules: P13.
func TestCreateKilledAtEveryCall(t *testing.T) {
	op := createOp()
	dir, b := op.onSeed(t, "")
	ops := op.undisturbed(t, b, dir)
	for _, f := range kills(ops) {
		dir, b := op.onSeed(t, "")
		if r := op.trace(t, b, dir, &f); !r.Killed() {
			t.Fatalf("%s: not killed: %v\n%s", f, r.State, r.Output)
		}
		if err := op.check(t, b, dir); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		op.again(t, b, dir)
		if err := op.final(t, b, dir); err != nil {
			t.Fatalf("%s: done again: %v", f, err)
		}
	}
	t.Logf("%d calls, %d kills", len(ops), len(kills(ops)))
}

// result is what a kill left.
type result struct {
	f   systrace.Fault
	dir string
}

// startOn starts etcd on each result, does the operation again, and starts etcd
// again. It returns the number of starts.
func (op operation) startOn(t *testing.T, cr *crashed, i int, b *before, results []*result) int {
	var members []*member
	for _, r := range results {
		m := cr.elsewhere(t, i)
		must(t, os.RemoveAll(m.wal()))
		for _, n := range namesIn(t, r.dir) { // the WAL and what stands beside it
			copyDir(t, filepath.Join(r.dir, n), filepath.Join(filepath.Dir(m.wal()), n))
		}
		t.Logf("%s: %s", op.name, r.f)
		members = append(members, m)
	}
	idles(t, members...)
	for n, m := range members {
		if err := keptLog(t, b, filepath.Dir(m.wal())); err != nil {
			t.Fatalf("%s: %s: after etcd ran on it: %v", op.name, results[n].f, err)
		}
		op.again(t, b, filepath.Dir(m.wal()))
		if err := keptLog(t, b, filepath.Dir(m.wal())); err != nil {
			t.Fatalf("%s: %s: etcd ran, done again: %v", op.name, results[n].f, err)
		}
	}
	op.etcd(t, members, cr, b)
	return 2 * len(members)
}

// elsewhere is restore with ports of its own.
func (cr *crashed) elsewhere(t testing.TB, i int) *member {
	t.Helper()
	m := cr.restore(t, i)
	set := func(flag, v string) { m.flags[slices.Index(m.flags, flag)+1] = v }
	m.client, m.peer = unusedURL(t), unusedURL(t)
	set("--listen-client-urls", m.client)
	set("--advertise-client-urls", m.client)
	set("--listen-peer-urls", m.peer)
	return m
}

var usedPorts sync.Map

// unusedURL is one that nobody else gets: below the range from which the kernel
// takes ports for connections and for port 0.
func unusedURL(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := 20000 + rand.IntN(10000)
		if _, used := usedPorts.LoadOrStore(port, true); used {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		if l, err := net.Listen("tcp", addr); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return "http://" + addr
		}
	}
	t.Fatal("no free port from 20000 to 30000")
	return ""
}

// A list that misses the calls that matter would let everything pass: those of each
// operation that it cannot do without.
//
// Rules: none (of the tests themselves).
func TestTracedCalls(t *testing.T) {
	want := map[string][]string{
		"append":               {"write wal/S", "fdatasync wal/S"},
		"append, new segments": {"write wal/S", "fdatasync wal/S", "ftruncate wal/S", "renameat wal/T > wal/S", "fsync wal"},
		"append, join":         {"write wal/S", "fdatasync wal/S"},
		"append, torn tail":    {"openat wal/S.broken", "copy_file_range wal/S.broken", "fsync wal/S.broken", "fsync wal", "ftruncate wal/S", "fsync wal/S", "write wal/S"},
		"rewrite": {"mkdirat wal.staging-beef", "openat wal.staging-beef/S", "write wal.staging-beef/S", "fsync wal.staging-beef/S",
			"fsync wal.staging-beef", "fsync .", "renameat2 wal.staging-beef > wal", "renameat wal.staging-beef > wal.before-O"},
		"staged": {"mkdirat wal.append-500000000", "openat wal.append-500000000/S", "write wal.append-500000000/S", "fsync wal.append-500000000/S", "fdatasync wal.append-500000000/S",
			"fsync wal.append-500000000", "fsync .", "renameat2 wal.append-500000000 > wal", "renameat wal.append-500000000 > wal.before-O"},
		"staged, join": {"write wal.append-500000000/S", "fdatasync wal.append-500000000/S", "renameat2 wal.append-500000000 > wal", "renameat wal.append-500000000 > wal.before-O"},
		"create":       {"mkdirat T", "openat T/S", "fallocate T/S", "write T/S", "fdatasync T/S", "renameat T > wal", "fsync .", "fsync wal"},
	}
	for _, op := range append(operations(), createOp()) {
		dir, b := op.onSeed(t, "3.6")
		have := map[string]bool{}
		for _, o := range op.undisturbed(t, b, dir) {
			k := o.Call + " " + general(o.Path, b)
			if o.To != "" {
				k += " > " + general(o.To, b)
			}
			have[k] = true
		}
		for _, w := range want[op.name] {
			if !have[w] {
				t.Errorf("%s: no %s in %v", op.name, w, have)
			}
		}
		if len(want[op.name]) == 0 {
			t.Errorf("%s: nothing is asked for", op.name)
		}
	}
}

// general puts S for a segment, T for what is temporary, O for the old ID.
func general(path string, b *before) string {
	var parts []string
	for _, p := range strings.Split(path, "/") {
		if _, ok := parseSegmentName(p[:min(len(p), 37)]); ok {
			p = "S" + p[37:]
		}
		if strings.HasSuffix(p, ".tmp") {
			p = "T"
		}
		parts = append(parts, strings.Replace(p, fmt.Sprintf("%x", b.sum.MemberID), "O", 1))
	}
	return strings.Join(parts, "/")
}
