package walsurgery

import (
	"fmt"
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
	join    *joinCase
}

// joinCase is a forced claim's append (P18): the member was called old before, which is removed first, since it has the
// same peer URLs; then it is added under the ID of its WAL, then the other one is removed.
type joinCase struct {
	url  string
	old  uint64
	id   uint64 // under which it is added
	term uint64
}

const (
	fireID      = 0xbeef
	joinID      = 0xf4e5
	fireTerm    = uint64(5 << 32)
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

// joinOp is the append of a removed member, whose WAL carries its new ID already.
func joinOp() operation {
	op := appendOp("append, join")
	op.prepare = func(t testing.TB, wal string) {
		if _, err := RewriteID(nil, wal, joinID); err != nil {
			t.Fatal(err)
		}
	}
	op.args = func(wal string, b *before) []string {
		return []string{"append", wal, fmt.Sprintf("%x", b.join.old), fmt.Sprintf("%x", b.other)}
	}
	return op
}

// joined is what there was, if the operation is a join: by the WAL that was replaced and the member's URL.
func (op operation) joined(t testing.TB, b *before, memberDir, url string) {
	t.Helper()
	switch op.name {
	case "staged, join":
		b.join = &joinCase{url: url, old: b.sum.MemberID, id: joinID, term: fireTerm}
		return
	case "append, join":
	default:
		return
	}
	r, err := Replaced(filepath.Join(memberDir, "wal"))
	if err != nil || len(r) != 1 {
		t.Fatalf("replaced: %v, %v", r, err)
	}
	md, err := ReadMetadata(r[0])
	must(t, err)
	b.join = &joinCase{url: url, old: md.MemberID, id: joinID, term: fireTerm}
}

// stagedOp is a forced claim's append (P18), in a copy; with join under another ID, in the same step.
func stagedOp(join bool) operation {
	op := appendOp("staged")
	op.steps, op.check, op.final, op.order = "wal/staged/", checkStaged, finalStaged, stagedOrder
	op.env = append(op.env, fmt.Sprintf("SURGEON_TERM=%d", fireTerm))
	op.args = func(wal string, b *before) []string { return []string{"staged", wal, fmt.Sprintf("%x", b.other)} }
	if join {
		op.name = "staged, join"
		op.env = append(op.env, fmt.Sprintf("SURGEON_AS=%x", joinID))
		op.args = func(wal string, b *before) []string {
			return []string{"staged", wal, fmt.Sprintf("%x", b.join.old), fmt.Sprintf("%x", b.other)}
		}
	}
	return op
}

// vars are the environment of one run.
func (op operation) vars(b *before) []string {
	if b.join == nil {
		return op.env
	}
	return append(slices.Clone(op.env), "SURGEON_JOIN="+b.join.url, "SURGEON_AFTER=1", fmt.Sprintf("SURGEON_TERM=%d", b.join.term))
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
	b := remember(t, dir, 0x42)
	op.joined(t, b, dir, "http://127.0.0.1:2380")
	return dir, b
}

func operations() []operation {
	return []operation{appendOp("append"), appendOp("append, new segments"), appendOp("append, torn tail"), joinOp(), rewriteOp(), stagedOp(false), stagedOp(true)}
}

// trace runs the surgeon on the WAL below dir, a member directory.
func (op operation) trace(t testing.TB, b *before, dir string, f *systrace.Fault, env ...string) systrace.Result {
	t.Helper()
	r := op.traced(t, b, dir, f, env...)
	if f != nil && !r.Fired {
		t.Fatalf("%s: %s did not come up in %s", op.name, f, listed(r.Ops))
	}
	return r
}

// traced is trace, and the fault may not have come up.
func (op operation) traced(t testing.TB, b *before, dir string, f *systrace.Fault, env ...string) systrace.Result {
	t.Helper()
	bin, err := surgeon()
	if err != nil {
		t.Fatal(err)
	}
	r, err := systrace.Run(systrace.Config{Path: bin, Args: op.args(filepath.Join(dir, "wal"), b), Env: append(env, op.vars(b)...), Root: dir, Reads: op.looks}, f)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// again does the operation once more, in a process of its own: while this one starts
// others they inherit its locks for a moment.
func (op operation) again(t testing.TB, b *before, dir string) {
	t.Helper()
	st, out := cutWith(t, append(slices.Clone(op.vars(b)), segmentEnv), op.args(filepath.Join(dir, "wal"), b)...)
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
