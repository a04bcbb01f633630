package walsurgery

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"twok/walsurgery/internal/systrace"
)

// failures are the ways in which a call can fail, or do less than it was asked to.
func failures(o systrace.Op) []systrace.Fault {
	fail := func(errs ...syscall.Errno) (out []systrace.Fault) {
		for _, e := range errs {
			out = append(out, systrace.Fault{At: o.Key(), Do: systrace.Fail, Err: e})
		}
		return out
	}
	switch {
	case o.Read, o.Syncs():
		return fail(unix.EIO)
	case o.Writes():
		out := fail(unix.EIO, unix.ENOSPC)
		n := o.Len
		if o.Ret > 0 {
			n = min(n, o.Ret)
		}
		if n > 1 {
			out = append(out, systrace.Fault{At: o.Key(), Do: systrace.Short, Len: n / 2})
		}
		cuts := tears(o) // a full disk ends at a block
		if !strings.HasSuffix(o.Path, ".wal") || !strings.HasPrefix(o.Path, "wal/") {
			cuts = append(cuts, n/2)
		}
		for _, at := range cuts {
			out = append(out, systrace.Fault{At: o.Key(), Do: systrace.ShortFail, Len: at, Err: unix.ENOSPC})
		}
		return out
	case o.Call == "fallocate":
		return fail(unix.EIO, unix.ENOSPC, unix.EOPNOTSUPP)
	case o.Call == "renameat2":
		return fail(unix.EIO, unix.ENOSPC, unix.EXDEV, unix.EINVAL, unix.EBUSY)
	case strings.HasPrefix(o.Call, "fchown"), strings.HasPrefix(o.Call, "fchmod"):
		return fail(unix.EPERM)
	}
	return fail(unix.EIO, unix.ENOSPC)
}

// Every call that changes the disk fails, once, with the errors that it can have: of
// the append, of one that begins segments, of the repair, of the rewrite and of
// CreateEmpty. The operation completes or returns an error of its documented kinds;
// never after a sync or a write that failed does it report success; the log is one
// that Raft could have written; done again, by another process or by the same, it
// completes.
//
// Rules: P8, P9, P12, P13.
func TestEveryCallFails(t *testing.T) {
	for n, op := range append(operations(), createOp()) {
		for v, version := range versions {
			if v != n%len(versions) && !long() {
				continue // the calls are the same for the logs of each
			}
			t.Run(op.name+"/"+version, func(t *testing.T) {
				t.Parallel()
				failEverywhere(t, op, version, false)
			})
		}
	}
}

// The same for calls that only look: those of the append, with TWOK_LONG those of
// all. etcd's code then loses some of its locks, which the garbage collector finds.
//
// Rules: P6.
func TestEveryLookFails(t *testing.T) {
	for n, op := range append(operations(), createOp()) {
		if n > 0 && !long() {
			continue
		}
		version := versions[n%len(versions)]
		t.Run(op.name+"/"+version, func(t *testing.T) {
			t.Parallel()
			failEverywhere(t, op, version, true)
		})
	}
}

func failEverywhere(t *testing.T, op operation, version string, looks bool) {
	op.looks = looks
	base, b := op.onSeed(t, version)
	scratch := filepath.Join(fastDir(t), "member")
	fresh := func() string {
		must(t, os.RemoveAll(scratch))
		copyDir(t, base, scratch)
		return scratch
	}
	ops := op.undisturbed(t, b, fresh())
	if looks {
		ops = slices.DeleteFunc(ops, func(o systrace.Op) bool { return !o.Read })
	}
	count := map[string]int{}
	for _, o := range ops {
		for _, f := range failures(o) {
			dir, r := op.faulty(t, b, fresh, &f)
			count[op.afterFailure(t, b, dir, o, f, r)]++
			if r.State.ExitStatus() == 0 {
				continue
			}
			if err := op.final(t, b, dir); err != nil {
				t.Errorf("%s: done again: %v", f, err)
			}
			again := "SURGEON_AGAIN=1"
			if looks {
				again = "SURGEON_AGAIN=gc"
			}
			dir, r = op.faulty(t, b, fresh, &f, again)
			if looks && strings.Contains(r.Output, "OpenDir failed") && strings.Contains(r.Output, "0.tmp is locked") {
				continue // for the life of the process (doc.go, invariant 6)
			}
			if refused := op.once && strings.Contains(r.Output, ErrExists.Error()); r.State.ExitStatus() != 0 && !refused {
				t.Errorf("%s: done again in the same process: %v\n%s", f, r.State, r.Output)
			} else if err := op.final(t, b, dir); err != nil {
				t.Errorf("%s: done again in the same process: %v", f, err)
			}
		}
	}
	t.Logf("%d calls: %v", len(ops), count)
	if count["failed"] == 0 {
		t.Error("nothing failed")
	}
}

// faulty is trace on a fresh directory, until the fault's call came up: when etcd's code preallocates, its
// own goroutine does, and a look sees the file or not.
func (op operation) faulty(t *testing.T, b *before, fresh func() string, f *systrace.Fault, env ...string) (string, systrace.Result) {
	t.Helper()
	for range 20 {
		dir := fresh()
		if r := op.traced(t, b, dir, f, env...); r.Fired {
			return dir, r
		}
	}
	t.Fatalf("%s: %s did not come up", op.name, f)
	return "", systrace.Result{}
}

// afterFailure judges what a failed call led to, and does the operation again if it
// failed.
func (op operation) afterFailure(t *testing.T, b *before, dir string, o systrace.Op, f systrace.Fault, r systrace.Result) string {
	t.Helper()
	// Go's runtime copies by read and write when the kernel's copy gives EIO.
	lost := f.Do == systrace.Fail && (o.Syncs() || o.Writes() && !(o.Call == "copy_file_range" && f.Err == unix.EIO)) || f.Do == systrace.ShortFail && strings.Contains(r.Output, "surgeon:")
	switch code := r.State.ExitStatus(); {
	case code == 0 && lost:
		t.Errorf("%s: success was reported\n%s", f, r.Output)
	case code == 0:
		if err := op.final(t, b, dir); err != nil {
			t.Errorf("%s: success was reported: %v", f, err)
		}
		return "completed"
	case code != 1:
		t.Errorf("%s: exit %v\n%s", f, r.State, r.Output)
	case f.Do == systrace.Short:
		t.Errorf("%s: a short write is an error\n%s", f, r.Output)
	case !strings.Contains(r.Output, f.Err.Error()):
		t.Errorf("%s: the error does not say why\n%s", f, r.Output)
	}
	if err := op.check(t, b, dir); err != nil {
		t.Errorf("%s: %v\n%s", f, err, r.Output)
	}
	exchanged := slices.ContainsFunc(r.Ops, func(o systrace.Op) bool { return o.Call == "renameat2" && o.Done() })
	if said := strings.Contains(r.Output, "was rewritten") || strings.Contains(r.Output, "were exchanged"); exchanged != said {
		t.Errorf("%s: exchanged is %v, the error says\n%s", f, exchanged, r.Output)
	}
	op.again(t, b, dir)
	return "failed"
}

// While somebody holds a preallocated file etcd's code would wait for it for ever;
// Open does not begin.
//
// Rules: P7.
func TestOpenBesideLockedPreallocation(t *testing.T) {
	for _, name := range []string{"0.tmp", "1.tmp"} {
		dir := seed(t, "3.7")
		f, err := fileutil.LockFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		before := dirHash(t, dir)
		if _, err := Open(nil, dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), name) || dirHash(t, dir) != before {
			t.Fatalf("%s: %v", name, err)
		}
		must(t, f.Close())
		applyTo(t, dir, nil)
	}
}
