package locktest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Versions are the release lines under test.
var Versions = []string{"3.5", "3.6", "3.7"}

// Patience bounds every wait; it is no measurement.
const Patience = 30 * time.Second

// Binary is an etcd of a release line: $TWOK_ETCD_3_6, else twok/tmp-3.6/etcd in
// the user's cache directory.
func Binary(t testing.TB, version string) string {
	t.Helper()
	env := "TWOK_ETCD_" + strings.ReplaceAll(version, ".", "_")
	path := os.Getenv(env)
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(cache, "twok", "tmp-"+version, "etcd")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no etcd %s: %v (set %s)", version, err, env)
	}
	return path
}

// Site is a place for one etcd: a data directory, two ports, the binary.
type Site struct {
	Bin, Dir, Client, Peer string
	LogFile                string
}

// listen takes a port below the kernel's own range, whose ports go to whoever connects.
func listen() net.Listener {
	for {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000))); err == nil {
			return l
		}
	}
}

// NewSite makes an empty place.
func NewSite(t testing.TB, version string) *Site {
	t.Helper()
	dir := t.TempDir()
	s := &Site{Bin: Binary(t, version), Dir: filepath.Join(dir, "data"), LogFile: filepath.Join(dir, "etcd.log")}
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*string{&s.Client, &s.Peer} {
		l := listen()
		defer l.Close()
		*u = "http://" + l.Addr().String()
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(s.LogFile)
			if len(b) > 3000 {
				b = b[len(b)-3000:]
			}
			t.Logf("end of etcd's log:\n%s", b)
		}
	})
	return s
}

// Argv is etcd with fast elections.
func (s *Site) Argv(extra ...string) []string {
	return append([]string{
		s.Bin, "--name", "m", "--data-dir", s.Dir,
		"--listen-client-urls", s.Client, "--advertise-client-urls", s.Client,
		"--listen-peer-urls", s.Peer, "--initial-advertise-peer-urls", s.Peer,
		"--initial-cluster", "m=" + s.Peer,
		"--heartbeat-interval", "20", "--election-timeout", "200", "--log-level", "warn",
	}, extra...)
}

func (s *Site) log(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(s.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Start starts etcd as a child of the test.
func (s *Site) Start(t testing.TB, extra ...string) *exec.Cmd {
	t.Helper()
	f := s.log(t)
	defer f.Close()
	argv := s.Argv(extra...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { End(cmd) })
	return cmd
}

// End kills and reaps a child. A second call does nothing.
func End(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// StartOrphan starts etcd as a child of a shell that ends, as an agent that was
// killed leaves it. It is killed when the test ends.
func (s *Site) StartOrphan(t testing.TB, extra ...string) int {
	t.Helper()
	f := s.log(t)
	defer f.Close()
	cmd := exec.Command("sh", append([]string{"-c", `log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!`, "sh", s.LogFile}, s.Argv(extra...)...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		t.Fatalf("process ID in %q: %v", out, err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Close(fd)
	})
	return pid
}

// StartLoop runs etcd under a shell that starts it again at once whenever it ends,
// as a kubelet without backoff would. All of it is killed when the test ends.
func (s *Site) StartLoop(t testing.TB, extra ...string) {
	t.Helper()
	f := s.log(t)
	defer f.Close()
	cmd := exec.Command("sh", append([]string{"-c", `while :; do "$@"; done`, "sh"}, s.Argv(extra...)...)...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The group is ours: the shell leads it and its number is taken until Wait.
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
}

// Until waits for a condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Context ends after Patience.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Dial is a client of the site's etcd.
func (s *Site) Dial(t testing.TB) *clientv3.Client {
	t.Helper()
	quick := backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.Client}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Ready waits until etcd answers a linearizable read.
func (s *Site) Ready(t testing.TB, c *clientv3.Client) {
	t.Helper()
	Until(t, "etcd answers", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, "k")
		return err == nil
	})
}

// Silent says that nobody listens on the client port.
func (s *Site) Silent() bool {
	c, err := net.Dial("tcp", strings.TrimPrefix(s.Client, "http://"))
	if err == nil {
		c.Close()
	}
	return err != nil
}

// Blocked counts the requests that sleep on the flock of a file, from /proc/locks.
func Blocked(t testing.TB, path string) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(b) {
		if l := string(line); strings.Contains(l, "-> FLOCK") && strings.Contains(l, fmt.Sprintf(":%d ", st.Ino)) {
			n++
		}
	}
	return n
}
