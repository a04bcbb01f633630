package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"twok/internal/etcdproc"
	"twok/internal/member/locktest"
	"twok/walsurgery"

	"go.uber.org/zap"
)

// dataOf makes a member's directory with a real, empty WAL and a file for the database.
func dataOf(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "member", "snap", "db"), []byte("x"), 0o600),
		walsurgery.CreateEmpty(zap.NewNop(), filepath.Join(dir, "member", "wal"), walsurgery.Metadata{MemberID: 1, ClusterID: 2}),
	)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// files are the names in a directory tree.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		names = append(names, p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// On an ordinary directory every look is content, and leaves nothing behind. What an earlier look
// left behind a minute ago is removed, other people's directories are not.
//
// Rules: P7, P12; F20.
func TestLookAtOrdinaryDirectory(t *testing.T) {
	dir := dataOf(t)
	before := files(t, dir)
	old, young := filepath.Join(dir, ScratchPrefix+"old"), filepath.Join(dir, ScratchPrefix+"young")
	full := filepath.Join(dir, "member", ScratchPrefix+"full")
	err := errors.Join(os.MkdirAll(filepath.Join(old, "a"), 0o700), os.WriteFile(filepath.Join(old, "a", "first"), nil, 0o600),
		os.Mkdir(young, 0o700), os.MkdirAll(filepath.Join(full, "precious"), 0o700))
	past := time.Now().Add(-2 * scratchOld)
	for _, d := range []string{old, full} {
		err = errors.Join(err, os.Chtimes(d, past, past))
	}
	if err != nil {
		t.Fatal(err)
	}
	if d := LookDir(dir, "memory.json"); d.Err != nil || !d.IsDir || d.Owner != os.Getuid() || d.User != os.Geteuid() || d.Write != nil || d.Memory != nil {
		t.Errorf("%+v", d)
	}
	if l := LookLocks(dir); !l.Seen || l.DB != nil || l.Trial != nil || l.WAL != nil || l.WALHeld {
		t.Errorf("%+v", l)
	}
	if tr := LookTrial(dir); tr.Exchange != nil || tr.Mount != "" || tr.Link != "" || tr.FileSystem == "" {
		t.Errorf("%+v", tr)
	}
	if s := LookSpace(dir); s.Need < 128<<20 || s.Free == 0 || (s.Err != nil) != (s.Free < s.Need) {
		t.Errorf("%+v", s)
	}
	after := slices.DeleteFunc(files(t, dir), func(p string) bool { return strings.HasPrefix(p, full) || p == young })
	if !slices.Equal(after, before) {
		t.Errorf("left behind: %q; was %q", after, before)
	}
	for _, d := range []string{young, filepath.Join(full, "precious")} {
		if _, err := os.Stat(d); err != nil {
			t.Error(err)
		}
	}
}

// What is not there is said.
//
// Rules: P11.
func TestLookAtNothing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if d := LookDir(none, "m"); !errors.Is(d.Err, fs.ErrNotExist) {
		t.Errorf("%+v", d)
	}
	if l := LookLocks(none); !errors.Is(l.DB, fs.ErrNotExist) || !errors.Is(l.WAL, walsurgery.ErrNoWAL) {
		t.Errorf("%+v", l)
	}
	if tr := LookTrial(none); tr.Exchange == nil {
		t.Errorf("%+v", tr)
	}
	if tr := LookTrial(t.TempDir()); tr.Exchange != nil || tr.FileSystem == "" {
		t.Errorf("a new member: %+v", tr)
	}
	if s := LookSpace(none); s.Err == nil {
		t.Errorf("%+v", s)
	}
	file := filepath.Join(t.TempDir(), "file")
	dir := dataOf(t)
	err := errors.Join(os.WriteFile(file, nil, 0o600), os.WriteFile(filepath.Join(dir, "m"), []byte("{"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if d := LookDir(file, "m"); d.Err != nil || d.IsDir {
		t.Errorf("%+v", d)
	}
	if d := LookDir(dir, "m"); d.Memory == nil {
		t.Errorf("%+v", d)
	}
}

// A symbolic link in the place of the WAL is seen.
//
// Rules: P11.
func TestLookAtLink(t *testing.T) {
	dir := dataOf(t)
	wal := filepath.Join(dir, "member", "wal")
	if err := errors.Join(os.Rename(wal, dir+"-wal"), os.Symlink(dir+"-wal", wal)); err != nil {
		t.Fatal(err)
	}
	if tr := LookTrial(dir); tr.Link != wal || tr.Mount != "" {
		t.Errorf("%+v", tr)
	}
}

// inside is what the process of TestInside does in its own mount namespace.
var inside = map[string]func(dir string) (any, error){
	// The WAL on a mount of its own, and on the same device: a bind mount.
	"wal-mount": func(dir string) (any, error) {
		wal := filepath.Join(dir, "member", "wal")
		err := unix.Mount(wal, wal, "", unix.MS_BIND, "")
		return LookTrial(dir), err
	},
	"wal-tmpfs": func(dir string) (any, error) {
		err := unix.Mount("tmpfs", filepath.Join(dir, "member", "wal"), "tmpfs", 0, "")
		return LookTrial(dir), err
	},
	"member-mount": func(dir string) (any, error) {
		m := filepath.Join(dir, "member")
		err := unix.Mount(m, m, "", unix.MS_BIND, "")
		return LookTrial(dir), err
	},
	"tiny": func(dir string) (any, error) {
		wal := filepath.Join(dir, "member", "wal")
		err := errors.Join(
			unix.Mount("tmpfs", filepath.Join(dir, "member"), "tmpfs", 0, "size=180m"),
			walsurgery.CreateEmpty(zap.NewNop(), wal, walsurgery.Metadata{MemberID: 1, ClusterID: 2}),
		)
		s := LookSpace(dir)
		return map[string]any{"NoSpace": errors.Is(s.Err, walsurgery.ErrNoSpace), "Free": s.Free, "Need": s.Need}, err
	},
	"read-only": func(dir string) (any, error) {
		err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		d := LookDir(dir, "m")
		tr := LookTrial(dir)
		return map[string]any{"Write": errors.Is(d.Write, unix.EROFS), "Exchange": errors.Is(tr.Exchange, unix.EROFS)}, err
	},
	// The kernel's answer on a file system without the call.
	"no-exchange": func(dir string) (any, error) {
		runtime.LockOSThread()
		err := withoutRename()
		tr := LookTrial(dir)
		return map[string]any{"Cannot": errors.Is(tr.Exchange, walsurgery.ErrCannotExchange)}, err
	},
	"no-flock": func(dir string) (any, error) {
		runtime.LockOSThread()
		err := without(unix.SYS_FLOCK, unix.ENOLCK)
		l := LookLocks(dir)
		return map[string]any{"Refused": errors.Is(l.Trial, unix.ENOLCK), "DB": l.DB == nil}, err
	},
}

// withoutRename makes renameat2 fail in this thread, as where the file system does not know it.
func withoutRename() error { return without(unix.SYS_RENAMEAT2, unix.EINVAL) }

// without is a seccomp filter: one call fails with one error.
func without(call uint32, errno syscall.Errno) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(errno)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                 // SECCOMP_RET_ALLOW
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

const insideEnv = "TWOK_PREFLIGHT_INSIDE"

// TestInside is the other process, and nothing without its environment.
//
// Rules: none (a helper process).
func TestInside(t *testing.T) {
	what, dir, ok := strings.Cut(os.Getenv(insideEnv), " ")
	if !ok {
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	v, err := inside[what](dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nRESULT %s\n", b)
}

// run runs one of inside in its own mount namespace, where this user is root.
func runInside(t *testing.T, what, dir string, v any) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInside$")
	cmd.Env = append(os.Environ(), insideEnv+"="+what+" "+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	_, rest, ok := bytes.Cut(out, []byte("RESULT "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	if err != nil || !ok {
		t.Fatalf("%s: %v: %s", what, err, out)
	}
	if err := json.Unmarshal(line, v); err != nil {
		t.Fatalf("%s: %s: %v", what, line, err)
	}
}

// Real mounts, a real full volume, a read-only one, and calls that the kernel refuses.
//
// Rules: P7, P11; F31.
func TestLookAtTrouble(t *testing.T) {
	for what, mount := range map[string]string{"wal-mount": "member/wal", "wal-tmpfs": "member/wal", "member-mount": "member"} {
		var tr struct{ Mount, Link string }
		dir := dataOf(t)
		if runInside(t, what, dir, &tr); tr.Mount != filepath.Join(dir, mount) || tr.Link != "" {
			t.Errorf("%s: %+v", what, tr)
		}
	}
	var tiny struct {
		NoSpace    bool
		Free, Need uint64
	}
	if runInside(t, "tiny", dataOf(t), &tiny); !tiny.NoSpace || tiny.Free >= tiny.Need {
		t.Errorf("a tiny volume: %+v", tiny)
	}
	for _, what := range []string{"read-only", "no-exchange", "no-flock"} {
		got := map[string]bool{}
		if runInside(t, what, dataOf(t), &got); len(got) == 0 {
			t.Errorf("%s: nothing was looked at", what)
		}
		for name, yes := range got {
			if !yes {
				t.Errorf("%s: %s is not so", what, name)
			}
		}
	}
}

// A real etcd: its locks are seen, not taken; its own restart waits for nothing.
//
// Rules: P7.
func TestLookAtRunningEtcd(t *testing.T) {
	for _, v := range locktest.Versions {
		t.Run(v, func(t *testing.T) {
			s := locktest.NewSite(t, v)
			s.Start(t)
			s.Ready(t, s.Dial(t))
			e, err := etcdproc.NewSignal(etcdproc.Config{DataDir: s.Dir})
			if err != nil {
				t.Fatal(err)
			}
			l := LookLocks(s.Dir)
			p := LookProcess(locktest.Context(t), e, func(string) bool { return false })
			if l.DB != nil || l.WAL != nil || l.Trial != nil || !l.WALHeld {
				t.Errorf("%+v", l)
			}
			if !p.Running || p.Waiting || p.Err != nil || p.Signal != nil || p.FlagsErr != nil || p.VersionErr != nil || !strings.HasPrefix(p.Version, v+".") || !p.Flags.PreVote {
				t.Errorf("%+v", p)
			}
			f := fit()
			f.Locks, f.Process = l, p
			for _, r := range Run(f) {
				if r.State == Refused && r.Name != "timing" {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// other is an etcd whose process is somebody else's.
type other struct {
	etcdproc.Etcd
	pid int
}

func (o other) Process() etcdproc.Process {
	return etcdproc.Process{Running: true, StartID: etcdproc.StartID{PID: o.pid}}
}
func (o other) Version(context.Context) (string, error)       { return "", errors.New("not asked") }
func (o other) Flags(context.Context) (etcdproc.Flags, error) { return etcdproc.Flags{}, nil }

// A process that may not be signalled is noticed.
//
// Rules: P7, P11.
func TestLookSignal(t *testing.T) {
	cmd := exec.Command("sleep", "60") // of this user, which may be root
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locktest.End(cmd) })
	if p := LookProcess(t.Context(), other{pid: cmd.Process.Pid}, nil); p.Signal != nil {
		t.Errorf("own process: %v", p.Signal)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if os.Getuid() == 0 {
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				done <- errno
				return
			}
		}
		pid := cmd.Process.Pid
		if os.Getuid() != 0 {
			pid = 1
		}
		done <- LookProcess(context.Background(), other{pid: pid}, nil).Signal
	}()
	if err := <-done; !errors.Is(err, unix.EPERM) {
		t.Errorf("another user's process: %v, want EPERM", err)
	}
}

// The port of the health endpoint: free, somebody's, another member's agent's, this one's.
//
// Rules: P11.
func TestLookHealth(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	body := "hello"
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, body)
	})}}
	srv.Start()
	for _, c := range []struct {
		body, member string
		own          bool
	}{
		{"hello", "0a", false}, {`{"role":"leading","member_id":"0b"}`, "0a", false},
		{`{"role":"leading","member_id":"0a"}`, "0a", true}, {`{"role":"leading","member_id":""}`, "", false}, {`{"member_id":"0a"}`, "0a", false},
	} {
		body = c.body
		if h := LookHealth(t.Context(), addr, c.member); !errors.Is(h.Err, unix.EADDRINUSE) || h.Own != c.own {
			t.Errorf("%q: %+v", c.body, h)
		}
	}
	srv.Close()
	if h := LookHealth(t.Context(), addr, "0a"); h.Err != nil || h.Own {
		t.Errorf("a free port: %+v", h)
	}
	if l, err = net.Listen("tcp", addr); err != nil { // it accepts and never answers
		t.Fatal(err)
	}
	defer l.Close()
	if h := LookHealth(t.Context(), addr, "0a"); h.Err == nil || h.Own {
		t.Errorf("a silent port: %+v", h)
	}
	if h := LookHealth(t.Context(), "", "0a"); h.Err != nil {
		t.Errorf("none: %+v", h)
	}
	if h := LookHealth(t.Context(), "192.0.2.1:1", "0a"); h.Err == nil || h.Own {
		t.Errorf("not of this machine: %+v", h)
	}
}
