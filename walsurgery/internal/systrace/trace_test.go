//go:build linux && (amd64 || arm64)

package systrace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const childEnv = "SYSTRACE_TEST_CHILD"

func TestMain(m *testing.M) {
	if root := os.Getenv(childEnv); root != "" {
		if err := child(root); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is the program under test: it changes files on four threads at once.
func child(root string) error {
	if os.Getenv(childEnv+"_HANGS") != "" {
		time.Sleep(time.Hour)
	}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = oneFile(root, fmt.Sprintf("f%d", i)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("done")
	return os.Remove(filepath.Join(root, "f0.new"))
}

func oneFile(root, name string) error {
	f, err := os.Create(filepath.Join(root, name))
	if err != nil {
		return err
	}
	defer f.Close()
	steps := []func() error{
		func() error { _, err := f.Write([]byte("first ")); return err },
		func() error { _, err := f.WriteAt([]byte("second"), 6); return err },
		f.Sync,
		func() error { return f.Truncate(9) },
		func() error { return unix.Fallocate(int(f.Fd()), 0, 0, 4096) },
		func() error {
			_, err := f.Seek(0, io.SeekStart)
			return err
		},
		func() error {
			to, err := os.Create(filepath.Join(root, name+".copy"))
			if err != nil {
				return err
			}
			_, err = io.Copy(to, f)
			return errors.Join(err, to.Close())
		},
		func() error { return os.Rename(f.Name(), f.Name()+".new") },
		func() error {
			return os.WriteFile(outside(root), nil, 0o600)
		},
		func() error { return os.Remove(outside(root)) },
	}
	if name != "f1" { // one thread alone goes outside
		steps = steps[:len(steps)-2]
	}
	for _, s := range steps {
		if err := s(); err != nil {
			return err
		}
	}
	return nil
}

// outside is a file of this root's own: each root is the first of its test, 001.
func outside(root string) string {
	return filepath.Join(os.TempDir(), "outside-"+filepath.Base(filepath.Dir(root)))
}

func traced(t *testing.T, f *Fault) (string, Result) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	r, err := Run(Config{Path: self, Env: []string{childEnv + "=" + root}, Root: root}, f)
	if err != nil {
		t.Fatal(err)
	}
	if f != nil && !r.Fired {
		t.Fatalf("%s did not come up in %v", f, keys(r))
	}
	return root, r
}

func keys(r Result) []string {
	var out []string
	for _, o := range r.Ops {
		out = append(out, o.Key())
	}
	slices.Sort(out)
	return out
}

func content(root, name string) string {
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "missing"
	}
	return strings.TrimRight(string(b), "\x00")
}

// The list is what the program did, from every thread, and nothing outside.
//
// Rules: none (test support).
func TestList(t *testing.T) {
	root, r := traced(t, nil)
	if r.State.ExitStatus() != 0 || r.Output != "done\n" {
		t.Fatalf("%v %s", r.State, r.Output)
	}
	var want []string
	for i := range 4 {
		f := fmt.Sprintf("f%d", i)
		want = append(want, "openat "+f+" #1", "write "+f+" #1", "pwrite64 "+f+" #1", "fsync "+f+" #1", "ftruncate "+f+" #1",
			"fallocate "+f+" #1", "openat "+f+".copy #1", "renameat "+f+" > "+f+".new #1")
	}
	want = append(want, "unlinkat f0.new #1")
	got := keys(r)
	copies := 0
	got = slices.DeleteFunc(got, func(k string) bool {
		ours := strings.HasPrefix(k, "copy_file_range f")
		if ours {
			copies++
		}
		return ours || k == "write  #1" // the reply
	})
	slices.Sort(want)
	if !slices.Equal(got, want) || copies < 4 {
		t.Fatalf("got  %q\nwant %q\n%d copies", got, want, copies)
	}
	end := 0
	for _, o := range r.Ops {
		if !o.Done() || o.Begin >= o.End {
			t.Fatalf("%+v", o)
		}
		if o.Reply && string(o.Data) != "done\n" {
			t.Fatalf("reply %q", o.Data)
		}
		if o.Call == "write" && !o.Reply && (string(o.Data) != "first " || o.Off != 0 || o.Len != 6 || o.Ret != 6) {
			t.Fatalf("%+v", o)
		}
		end = max(end, o.End)
	}
	if last := r.Ops[len(r.Ops)-1]; last.Call != "unlinkat" || last.End != end {
		t.Fatalf("last is %+v", last)
	}
	if content(root, "f3.new") != "first sec" {
		t.Fatalf("%q", content(root, "f3.new"))
	}
}

// Each action does what it says, at the op it is for.
//
// Rules: none (test support).
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		f          Fault
		killed     bool
		file, want string // of f2
		output     string
	}{
		{f: Fault{At: "write f2 #1", Do: KillBefore}, killed: true, file: "f2", want: ""},
		{f: Fault{At: "write f2 #1", Do: KillAfter}, killed: true, file: "f2", want: "first "},
		{f: Fault{At: "pwrite64 f2 #1", Do: KillBefore}, killed: true, file: "f2", want: "first "},
		{f: Fault{At: "pwrite64 f2 #1", Do: ShortKill, Len: 3}, killed: true, file: "f2", want: "first sec"},
		{f: Fault{At: "openat f2 #1", Do: KillBefore}, killed: true, file: "f2", want: "missing"},
		{f: Fault{At: "renameat f2 > f2.new #1", Do: KillBefore}, killed: true, file: "f2.new", want: "missing"},
		{f: Fault{At: "renameat f2 > f2.new #1", Do: KillAfter}, killed: true, file: "f2.new", want: "first sec"},
		{f: Fault{At: "fsync f2 #1", Do: Fail, Err: unix.EIO}, file: "f2", want: "first second", output: "input/output error"},
		{f: Fault{At: "write f2 #1", Do: Fail, Err: unix.ENOSPC}, file: "f2", want: "", output: "no space left"},
		{f: Fault{At: "pwrite64 f2 #1", Do: Short, Len: 2}, file: "f2.new", want: "first sec", output: "done"},
		{f: Fault{At: "pwrite64 f2 #1", Do: ShortFail, Len: 2, Err: unix.ENOSPC}, file: "f2", want: "first se", output: "no space left"},
		{f: Fault{At: "ftruncate f2 #1", Do: Fail, Err: unix.EIO}, file: "f2", want: "first second", output: "input/output error"},
	} {
		t.Run(c.f.String(), func(t *testing.T) {
			t.Parallel()
			root, r := traced(t, &c.f)
			if r.Killed() != c.killed || !strings.Contains(r.Output, c.output) {
				t.Fatalf("%v %q", r.State, r.Output)
			}
			got := content(root, c.file)
			if got != c.want {
				t.Fatalf("%s holds %q, want %q", c.file, got, c.want)
			}
		})
	}
}

// A fault that never comes up is seen; a program that hangs ends; one that is not
// there is an error; and the children of others are left to them.
//
// Rules: none (test support).
func TestRunEnds(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	other, err := os.StartProcess(self, []string{self, "-test.run=^$"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(Config{Path: self, Env: []string{childEnv + "=" + root}, Root: root}, &Fault{At: "write f2 #7", Do: KillBefore})
	if err != nil || r.Fired || r.Killed() || r.State.ExitStatus() != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if st, err := other.Wait(); err != nil || !st.Success() {
		t.Fatalf("another child: %v %v", st, err)
	}
	r, err = Run(Config{Path: self, Env: []string{childEnv + "=" + root, childEnv + "_HANGS=1"}, Root: root, Limit: 300 * time.Millisecond}, nil)
	if err == nil || !strings.Contains(err.Error(), "did not end") || !r.Killed() {
		t.Fatalf("%+v %v", r, err)
	}
	if _, err := Run(Config{Path: "/nonexistent/program", Root: root}, nil); !errors.Is(err, syscall.ENOENT) {
		t.Fatal(err)
	}
}
