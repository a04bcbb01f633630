package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// etcd is an etcd that an experiment starts itself. It dies with this program.
type etcd struct {
	cmd  *exec.Cmd
	done chan struct{}
	url  string
	log  string
}

// startEtcd starts argv through in, which may put it into a network (nil: nowhere else); its output is appended to log.
func startEtcd(log, url string, in func(func() error) error, argv ...string) (*etcd, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if in == nil {
		in = func(start func() error) error { return start() }
	}
	if err := in(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	e := &etcd{cmd: cmd, done: make(chan struct{}), url: url, log: log}
	go func() { cmd.Wait(); close(e.done) }()
	return e, nil
}

// kill ends it by SIGKILL, stop by SIGTERM. Both return when it is gone, with nothing of it left.
func (e *etcd) kill() { e.end(syscall.SIGKILL) }
func (e *etcd) stop() { e.end(syscall.SIGTERM) }

func (e *etcd) end(sig syscall.Signal) {
	if e == nil {
		return
	}
	e.cmd.Process.Signal(sig) // that it has ended is no error
	<-e.done
}

// serving waits until it answers a linearizable read.
func (e *etcd) serving(ctx context.Context, cl *clientv3.Client) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		_, err := cl.Get(try, "/")
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-e.done:
			return fmt.Errorf("etcd at %s ended: %s; see %s", e.url, e.cmd.ProcessState, e.log)
		case <-ctx.Done():
			return fmt.Errorf("wait for etcd at %s: %w: %w; see %s", e.url, ctx.Err(), err, e.log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// alive is an error if it has ended: what answered at its URL was somebody else, then.
func (e *etcd) alive() error {
	select {
	case <-e.done:
		return fmt.Errorf("etcd at %s ended: %s; see %s", e.url, e.cmd.ProcessState, e.log)
	default:
		return nil
	}
}

// dial is a client of these endpoints, each its own, that notices soon when one is back.
func dial(urls ...string) (out []*clientv3.Client, err error) {
	for _, u := range urls {
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{u}, Logger: zap.NewNop(),
			DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.3, Jitter: 0.1, MaxDelay: 100 * time.Millisecond},
				MinConnectTimeout: time.Second,
			})}})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("client of %s: %w", u, err), hangUp(out))
		}
		out = append(out, cl)
	}
	return out, nil
}

func hangUp(cls []*clientv3.Client) (err error) {
	for _, cl := range cls {
		err = errors.Join(err, cl.Close())
	}
	return err
}

// pidfd refers to a process, never to a successor of its number.
func pidfd(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("refer to process %d: %w", pid, err)
	}
	return fd, nil
}

// gone waits until all threads of the process have ended.
func gone(fd int, patience time.Duration) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n, err := unix.Poll(p, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return errors.New("a killed process is still there")
}

// freeURLs are URLs of n loopback ports on which nobody listens now, outside the range from which the kernel takes
// the ports of outgoing connections. No two calls of one program return the same.
func freeURLs(n int) (out []string, err error) {
	given.Lock()
	defer given.Unlock()
	for tries := 0; len(out) < n; tries++ {
		if tries > 10_000 {
			return nil, errors.New("no free ports between 10000 and 32000 on 127.0.0.1")
		}
		port := 10_000 + rand.IntN(22_000)
		if given.ports[port] {
			continue
		}
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		given.ports[port] = true
		out = append(out, "http://"+addr)
	}
	return out, nil
}

var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// withFlags replaces the values of flags ("--name", "value") in an etcd's command line.
func withFlags(argv []string, flags ...string) ([]string, error) {
	argv = slices.Clone(argv)
	for i := 0; i < len(flags); i += 2 {
		j := slices.Index(argv, flags[i])
		if j < 0 || j+1 >= len(argv) {
			return nil, fmt.Errorf("%s is not in %s", flags[i], strings.Join(argv, " "))
		}
		argv[j+1] = flags[i+1]
	}
	return argv, nil
}

const block = 1 << 16

// copyTree copies a directory of regular files. Blocks of zeros become holes: a WAL segment is mostly that.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(dst, 0o700)
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("copy %s: no regular file", path)
		}
		return copyFile(path, dst)
	})
}

func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	buf, zero := make([]byte, block), make([]byte, block)
	for at := int64(0); ; {
		n, err := io.ReadFull(src, buf)
		if n > 0 && !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := dst.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return dst.Truncate(at)
		case err != nil:
			return err
		}
	}
}
