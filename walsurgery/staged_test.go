package walsurgery

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A staged append that is killed at a step leaves the old log or the whole new one. Settle then removes the copy that
// was not exchanged, sets the old log aside that was, and does nothing the second time.
//
// Rules: P18.
func TestStagedKilledAtEachStep(t *testing.T) {
	for _, join := range []bool{false, true} {
		op := stagedOp(join)
		for _, step := range append(steps(t, "wal/staged/", 5), steps(t, "wal/append/", 5)...) {
			dir, b := op.onSeed(t, "3.6")
			wal := filepath.Join(dir, "wal")
			st, out := cutWith(t, append(slices.Clone(op.vars(b)), "TWOK_FAILPOINTS="+step+"=kill"), op.args(wal, b)...)
			if !st.Sys().(interface{ Signaled() bool }).Signaled() {
				t.Fatalf("%s: not killed: %v\n%s", step, st, out)
			}
			exchanged := step == stepStagedExchanged || step == stepStagedAside
			check := func(want ...string) {
				t.Helper()
				if err := checkStaged(t, b, dir); err != nil {
					t.Fatalf("%s: %v", step, err)
				}
				if same := sameFiles(segmentsOf(t, wal), b.files); same == exchanged {
					t.Fatalf("%s: the old log is there: %v", step, same)
				}
				if got := namesIn(t, dir); len(want) > 0 && !slices.Equal(got, want) {
					t.Fatalf("%s: there are %v, should be %v", step, got, want)
				}
			}
			check()
			names := []string{"wal"}
			if exchanged {
				names = append(names, fmt.Sprintf("wal.before-%x", b.sum.MemberID))
			}
			for range 2 {
				if aside, err := Settle(nil, wal); err != nil || (aside != "" && !exchanged) {
					t.Fatalf("%s: settled as %q: %v", step, aside, err)
				}
				check(names...)
			}
		}
	}
}

// Nothing is removed that is not a copy of ours: with a foreign file in it, or where the log has come to the term.
//
// Rules: P18.
func TestSettleRemovesOnlyCopies(t *testing.T) {
	op := stagedOp(false)
	dir, b := op.onSeed(t, "3.7")
	wal, copy := filepath.Join(dir, "wal"), filepath.Join(dir, "wal"+appendInfix+"500000000")
	must(t, os.CopyFS(copy, os.DirFS(wal)))
	must(t, os.WriteFile(filepath.Join(copy, "mine"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "wal"+appendInfix+"mine"), 0o700))
	if _, err := Settle(nil, wal); err == nil || !strings.Contains(err.Error(), "move it away") || !exists(filepath.Join(copy, "mine")) {
		t.Fatalf("settled: %v", err)
	}
	must(t, os.Remove(filepath.Join(copy, "mine")))
	low := filepath.Join(dir, fmt.Sprintf("wal%s%x", appendInfix, b.sum.HardState.Term))
	must(t, os.CopyFS(low, os.DirFS(wal)))
	want := fmt.Sprintf("%s.before-%x", wal, b.sum.MemberID)
	if aside, err := Settle(nil, wal); err != nil || aside != want || !sameFiles(segmentsOf(t, aside), b.files) || exists(copy) {
		t.Fatalf("settled as %q: %v; %v", aside, err, namesIn(t, dir))
	}
}

// Where the WAL cannot be exchanged with what is beside it nothing is written, and the append can be made in place. A plan for
// another ID cannot.
//
// Rules: P18.
func TestStagedBesideSymlink(t *testing.T) {
	op := stagedOp(false)
	dir, b := op.onSeed(t, "3.7")
	real, wal := filepath.Join(t.TempDir(), "wal"), filepath.Join(dir, "wal")
	must(t, os.CopyFS(real, os.DirFS(wal)))
	must(t, os.RemoveAll(wal))
	must(t, os.Symlink(real, wal))
	open := func(opts ...PlanOption) (*Log, Plan) {
		l, err := Open(nil, wal)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		p, err := l.Plan([]uint64{b.other}, append(opts, MinTerm(fireTerm))...)
		must(t, err)
		return l, p
	}
	l, p := open()
	if _, err := l.ApplyStaged(p); !errors.Is(err, ErrCannotExchange) || len(namesIn(t, dir)) != 1 {
		t.Fatalf("%v; %v", err, namesIn(t, dir))
	}
	must(t, l.Close())
	if !sameFiles(segmentsOf(t, wal), b.files) {
		t.Fatal("the log was changed")
	}
	l, p = open(As(joinID))
	if err := l.Apply(p); !errors.Is(err, ErrStalePlan) {
		t.Fatalf("in place under another ID: %v", err)
	}
	must(t, l.Close())
	l, p = open()
	must(t, l.Apply(p))
}

// A copy that was a member's log once is none: the exchange was undone (by a power failure after an error of its sync, or by hand), and
// what etcd has written since is nowhere else.
//
// Rules: P18, A2.
func TestSettleKeepsLogThatLived(t *testing.T) {
	op := stagedOp(false)
	dir, b := op.onSeed(t, "3.7")
	wal := filepath.Join(dir, "wal")
	appendTo := func(apply func(*Log, Plan) error, opts ...PlanOption) {
		t.Helper()
		l, err := Open(nil, wal)
		must(t, err)
		defer l.Close()
		p, err := l.Plan(nil, opts...)
		must(t, err)
		must(t, apply(l, p))
	}
	aside := ""
	appendTo(func(l *Log, p Plan) (err error) { aside, err = l.ApplyStaged(p); return err }, MinTerm(fireTerm))
	appendTo((*Log).Apply) // as etcd does when it leads
	lived := segmentsOf(t, wal)
	copied := fmt.Sprintf("%s%s%x", wal, appendInfix, fireTerm)
	must(t, os.Rename(wal, copied))
	must(t, os.Rename(aside, wal))
	if _, err := Settle(nil, wal); err == nil || !strings.Contains(err.Error(), copied) {
		t.Errorf("settled: %v", err)
	}
	if !sameFiles(segmentsOf(t, copied), lived) || !sameFiles(segmentsOf(t, wal), b.files) {
		t.Error("something was changed")
	}
}

// What stands under the copy's name and was not made by the call is left alone: no symlink is followed.
//
// Rules: P12, P18.
func TestCopyBesideSymlink(t *testing.T) {
	op := stagedOp(false)
	dir, b := op.onSeed(t, "3.7")
	wal, theirs := filepath.Join(dir, "wal"), filepath.Join(t.TempDir(), "theirs")
	must(t, os.CopyFS(theirs, os.DirFS(wal)))
	must(t, os.Symlink(theirs, stagingName(wal, 0x77)))
	must(t, os.Symlink(theirs, fmt.Sprintf("%s%s%x", wal, appendInfix, fireTerm)))
	if _, err := RewriteID(nil, wal, 0x77); !errors.Is(err, os.ErrExist) {
		t.Errorf("rewritten: %v", err)
	}
	l, err := Open(nil, wal)
	must(t, err)
	defer l.Close()
	p, err := l.Plan(nil, MinTerm(fireTerm))
	must(t, err)
	if _, err := l.ApplyStaged(p); !errors.Is(err, os.ErrExist) {
		t.Errorf("appended: %v", err)
	}
	for _, d := range []string{theirs, wal} {
		if !sameFiles(segmentsOf(t, d), b.files) {
			t.Errorf("%s was changed", d)
		}
	}
}
