package etcdproc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"twok/internal/member/locktest"
)

// Without the right to look, the answer is an error that names the remedy, not "not running".
//
// Rules: P11.
func TestNoAccess(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	// A binary that may be run and not read makes its process's files invisible, to its own user too.
	b, err := os.ReadFile(s.Bin)
	if err != nil {
		t.Fatal(err)
	}
	s.Bin = t.TempDir() + "/etcd"
	if err := os.WriteFile(s.Bin, b, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.Bin, 0o111); err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	s.Ready(t, s.Dial(t))
	dirs := []string{s.Dir + "/member", s.Dir + "/member/snap", s.Dir + "/member/wal"}
	for d := s.Dir; strings.HasPrefix(d, os.TempDir()+"/"); d = filepath.Dir(d) {
		dirs = append(dirs, d)
	}
	for _, d := range dirs {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e := newSignalled(t, s)
	asNobody(t, func() {
		if p := e.Process(); p.Running || !errors.Is(p.Err, ErrNoAccess) || !strings.Contains(p.Err.Error(), "CAP_SYS_PTRACE") {
			t.Errorf("%+v, want ErrNoAccess", p)
		}
		if err := e.Stop(context.Background()); !errors.Is(err, ErrNoAccess) {
			t.Errorf("stop: %v, want ErrNoAccess", err)
		}
		if _, err := e.Flags(context.Background()); !errors.Is(err, ErrNoAccess) {
			t.Errorf("flags: %v, want ErrNoAccess", err)
		}
	})
	if os.Getuid() == 0 {
		if p := newSignalled(t, s).Process(); !p.Running || p.Err != nil {
			t.Fatalf("as root again: %+v", p)
		}
	}
}

// An etcd in a container: other mount, PID and file-system roots. Its pid 1 is found, asked for its version and
// flags through its own root, and stopped.
//
// Rules: A0, P7.
func TestContainer(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	root := t.TempDir()
	b, err := os.ReadFile(s.Bin)
	if err != nil {
		t.Fatal(err)
	}
	text := "name: m\ndata-dir: /data\npre-vote: false\n" +
		"listen-client-urls: " + s.Client + "\nadvertise-client-urls: " + s.Client + "\n" +
		"listen-peer-urls: " + s.Peer + "\ninitial-advertise-peer-urls: " + s.Peer + "\ninitial-cluster: m=" + s.Peer + "\n"
	err = errors.Join(
		os.Mkdir(root+"/data", 0o700),
		os.Mkdir(root+"/conf", 0o700),
		os.WriteFile(root+"/etcd", b, 0o700),
		os.WriteFile(root+"/conf/real.yaml", []byte(text), 0o600),
		os.Symlink("/conf/real.yaml", root+"/etcd.yaml"),
	)
	if err != nil {
		t.Fatal(err)
	}
	// etcd's releases are static; one that was built with cgo needs its libraries in there.
	libs, _ := exec.Command("ldd", s.Bin).Output()
	for _, lib := range strings.Fields(string(libs)) {
		if !filepath.IsAbs(lib) {
			continue
		}
		b, err := os.ReadFile(lib)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(root+lib), 0o700), os.WriteFile(root+lib, b, 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Dir = root + "/data"
	log, err := os.Create(s.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("/etcd", "--config-file", "/etcd.yaml")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locktest.End(cmd) })
	s.Ready(t, s.Dial(t))

	e := newSignalled(t, s)
	ctx := locktest.Context(t)
	p := e.Process()
	if !p.Running || p.PID != cmd.Process.Pid {
		t.Fatalf("%+v, want process %d", p, cmd.Process.Pid)
	}
	if v, err := e.Version(ctx); err != nil || !strings.HasPrefix(v, "3.6.") {
		t.Fatalf("version %q, %v", v, err)
	}
	if f, err := e.Flags(ctx); err != nil || f.PreVote || f.DataDir != "/data" {
		t.Fatalf("flags %+v, %v", f, err)
	}
	if err := e.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	mustBeGone(t, s, p.StartID, false)
}

// A pidfd that is opened late is checked: the start time tells a successor from the one that was meant.
//
// Rules: F10.
func TestHandleIsOneStart(t *testing.T) {
	_, self, err := stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	wrong := self
	wrong.Ticks++
	if _, err := openHandle(wrong); !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("another start with our number: %v, want os.ErrProcessDone", err)
	}
	if err := endAll(context.Background(), []StartID{wrong}, 0, testLog(t)); err != nil {
		t.Fatal(err)
	}
	h, err := openHandle(self)
	if err != nil {
		t.Fatal(err)
	}
	h.close()
}
