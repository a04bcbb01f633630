package walsurgery

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"twok/walsurgery/internal/systrace"
)

// The operations under fire: what they do to the disk is listed by tracing the
// program, and each place in that list is a place to be killed or to fail at.

// operation is one run of the surgeon on the WAL below a member directory.
type operation struct {
	name    string
	args    func(wal string, b *before) []string
	env     []string
	prepare func(t testing.TB, wal string)
	check   func(t testing.TB, b *before, dir string) error               // after a kill or an error
	final   func(t testing.TB, b *before, dir string) error               // after again
	order   func(b *before, ops []systrace.Op) error                      // of an undisturbed run
	steps   string                                                        // prefix of the named failpoints, if it has several
	looks   bool                                                          // list also calls that change nothing
	once    bool                                                          // done again it refuses what is complete (ErrExists)
	etcd    func(t testing.TB, members []*member, cr *crashed, b *before) // starts them on the final results
}

// before is what there was.
type before struct {
	sum     Summary
	entries []Entry
	files   map[string][]byte // segments up to their last byte that is not zero
	other   uint64            // the member to remove
	newID   uint64
}

const (
	fireID      = 0xbeef
	fireSegment = 8 << 20 // size of a segment: more than a crashed pair wrote
)

var segmentEnv = fmt.Sprintf("SURGEON_SEGMENT=%d", fireSegment)

// appendOp is the survivor's append: as it is in a pair, with etcd's code beginning
// a segment at each save, or on a log with a torn tail.
func appendOp(name string) operation {
	op := operation{name: name, steps: "wal/append/", env: []string{segmentEnv},
		args:  func(wal string, b *before) []string { return []string{"append", wal, fmt.Sprintf("%x", b.other)} },
		check: checkAppend, final: finalAppend, order: appendOrder,
		etcd: func(t testing.TB, members []*member, cr *crashed, _ *before) {
			for _, m := range members {
				m.start()
			}
			for _, m := range members {
				leadsAlone(t, m, cr.acked)
				m.kill()
			}
		}}
	switch name {
	case "append, new segments":
		op.env = []string{"SURGEON_SEGMENT=1"}
	case "append, torn tail":
		op.steps = "wal/repair/"
		op.prepare = func(t testing.TB, wal string) { tear(t, wal, 300) }
	}
	return op
}

func rewriteOp() operation {
	return operation{name: "rewrite", steps: "wal/rewrite/",
		args:  func(wal string, b *before) []string { return []string{"rewrite", wal, fmt.Sprintf("%x", b.newID)} },
		check: checkRewrite, final: finalRewrite, order: rewriteOrder,
		etcd: func(t testing.TB, members []*member, _ *crashed, b *before) {
			idles(t, members...)
			for _, m := range members {
				if id := fmt.Sprintf("%x", b.newID); m.id() != b.newID || !strings.Contains(m.out.String(), `"local-member-id":"`+id+`"`) {
					t.Fatalf("etcd does not run as %s:\n%s", id, m.log())
				}
			}
		}}
}

// createOp makes the log of an empty member beside nothing.
func createOp() operation {
	md := Metadata{MemberID: fireID, ClusterID: 0xc}
	complete := func(t testing.TB, _ *before, dir string) error {
		e := readAsEtcd(copied(t, filepath.Join(dir, "wal")))
		if got, err := ReadMetadata(filepath.Join(dir, "wal")); err != nil || got != md || e.err != nil || e.last.Index != 0 || len(e.snaps) != 1 {
			return fmt.Errorf("%s, %v; etcd reads %+v", got, err, e)
		}
		return nil
	}
	return operation{name: "create", once: true,
		args:  func(wal string, _ *before) []string { return []string{"create", wal, fmt.Sprintf("%x", fireID), "c"} },
		final: complete, order: createOrder, env: []string{segmentEnv},
		check: func(t testing.TB, b *before, dir string) error {
			if !exists(filepath.Join(dir, "wal")) {
				return nil
			}
			return complete(t, b, dir)
		}}
}

// onSeed makes a member directory with the stored WAL of a version.
func (op operation) onSeed(t testing.TB, version string) (string, *before) {
	t.Helper()
	dir := filepath.Join(fastDir(t), "member")
	must(t, os.Mkdir(dir, 0o700))
	if op.once {
		return dir, &before{}
	}
	must(t, os.CopyFS(filepath.Join(dir, "wal"), os.DirFS(seedDir(version))))
	if op.prepare != nil {
		op.prepare(t, filepath.Join(dir, "wal"))
	}
	return dir, remember(t, dir, 0x42)
}

func operations() []operation {
	return []operation{appendOp("append"), appendOp("append, new segments"), appendOp("append, torn tail"), rewriteOp()}
}

// trace runs the surgeon on the WAL below dir, a member directory.
func (op operation) trace(t testing.TB, b *before, dir string, f *systrace.Fault, env ...string) systrace.Result {
	t.Helper()
	bin, err := surgeon()
	if err != nil {
		t.Fatal(err)
	}
	r, err := systrace.Run(systrace.Config{Path: bin, Args: op.args(filepath.Join(dir, "wal"), b), Env: append(env, op.env...), Root: dir, Reads: op.looks}, f)
	if err != nil {
		t.Fatal(err)
	}
	if f != nil && !r.Fired {
		t.Fatalf("%s: %s did not come up in %s", op.name, f, listed(r.Ops))
	}
	return r
}

// again does the operation once more, in a process of its own: while this one starts
// others they inherit its locks for a moment.
func (op operation) again(t testing.TB, b *before, dir string) {
	t.Helper()
	st, out := cutWith(t, []string{segmentEnv}, op.args(filepath.Join(dir, "wal"), b)...)
	if refused := op.once && strings.Contains(out, ErrExists.Error()); !st.Success() && !refused {
		t.Fatalf("%s: done again: %v\n%s", op.name, st, out)
	}
}

// undisturbed lists the operation's calls and checks their order; dir is used up.
func (op operation) undisturbed(t testing.TB, b *before, dir string) []systrace.Op {
	t.Helper()
	r := op.trace(t, b, dir, nil)
	if r.State.ExitStatus() != 0 {
		t.Fatalf("%s: %v\n%s", op.name, r.State, r.Output)
	}
	if err := op.order(b, slices.DeleteFunc(slices.Clone(r.Ops), func(o systrace.Op) bool { return o.Read })); err != nil {
		t.Fatalf("%s: %v\n%s", op.name, err, listed(r.Ops))
	}
	if err := op.final(t, b, dir); err != nil {
		t.Fatalf("%s: %v", op.name, err)
	}
	if left := slices.DeleteFunc(namesIn(t, filepath.Join(dir, "wal")), isLog); len(left) > 0 {
		t.Fatalf("%s: left behind: %v", op.name, left)
	}
	ops := slices.DeleteFunc(r.Ops, func(o systrace.Op) bool { return o.Reply })
	if op.steps != "" && len(ops) <= len(steps(t, op.steps, 2)) {
		t.Fatalf("%s: only %d calls were found:\n%s", op.name, len(ops), listed(ops))
	}
	return ops
}

func listed(ops []systrace.Op) string {
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "  %d-%d %s off %d len %d = %d %v\n", o.Begin, o.End, o.Key(), o.Off, o.Len, o.Ret, o.Err)
	}
	return b.String()
}

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
	for _, e := range added { // in a higher term each time it was done again
		if e.Kind != KindConfChange || e.Change.Type != RemoveNode || e.Change.NodeID != b.other || e.Term < term || e.Term > s.HardState.Term {
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

// The append and the rewrite are killed at every call that changes the disk, and in
// the middle of every write, as tracing finds them. At each place the log is one
// that Raft could have written, the old one is where it was, the operation done
// again completes; and real etcd starts on each distinct result, and then leads
// alone with every acknowledged write, or runs under the new ID.
//
// Rules: P8, P9, P12.
func TestKilledAtEveryCall(t *testing.T) {
	eachVersion(t, func(t *testing.T, version string) {
		cr := crash(t, version)
		for n, op := range operations() {
			if op.name == "append, new segments" && version != "3.6" && !long() {
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
	m.client, m.peer = cr.unusedURL(t), cr.unusedURL(t)
	set("--listen-client-urls", m.client)
	set("--advertise-client-urls", m.client)
	set("--listen-peer-urls", m.peer)
	return m
}

// unusedURL is one at which the pair does not look for its members.
func (cr *crashed) unusedURL(t testing.TB) string {
	for {
		u := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		if u != cr.pair[0].peer && u != cr.pair[1].peer {
			return u
		}
	}
}

// A list that misses the calls that matter would let everything pass: those of each
// operation that it cannot do without.
//
// Rules: none (of the tests themselves).
func TestTracedCalls(t *testing.T) {
	want := map[string][]string{
		"append":               {"write wal/S", "fdatasync wal/S"},
		"append, new segments": {"write wal/S", "fdatasync wal/S", "ftruncate wal/S", "renameat wal/T > wal/S", "fsync wal"},
		"append, torn tail":    {"openat wal/S.broken", "copy_file_range wal/S.broken", "fsync wal/S.broken", "fsync wal", "ftruncate wal/S", "fsync wal/S", "write wal/S"},
		"rewrite": {"mkdirat wal.staging-beef", "openat wal.staging-beef/S", "write wal.staging-beef/S", "fsync wal.staging-beef/S",
			"fsync wal.staging-beef", "fsync .", "renameat2 wal.staging-beef > wal", "renameat wal.staging-beef > wal.before-O"},
		"create": {"mkdirat T", "openat T/S", "fallocate T/S", "write T/S", "fdatasync T/S", "renameat T > wal", "fsync .", "fsync wal"},
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
