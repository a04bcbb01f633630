package member

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// AgentLockName is the file in the data directory that one agent keeps locked. etcd
// warns about it at its start ("found invalid file under data directory") and goes on.
const AgentLockName = "twok-agent.lock"

// AgentLock makes this process the one agent of a data directory (P20). It does
// not wait. ErrHeld: another agent runs here; the error names its process ID (as seen in that
// agent's own PID namespace). fs.ErrNotExist: there is no data directory yet. Closing gives the lock up and leaves the file. The end of
// the process, SIGKILL too, gives it up.
func AgentLock(dataDir string) (io.Closer, error) {
	path := filepath.Join(dataDir, AgentLockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent lock %s: %w", path, err)
	}
	if err := flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := ""
		if b, rerr := io.ReadAll(io.LimitReader(f, 64)); rerr == nil {
			holder = strings.TrimSpace(string(b))
		}
		f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("agent lock %s: flock: %w", path, err)
		}
		if holder == "" {
			holder = "unknown"
		}
		return nil, fmt.Errorf("agent lock %s: %w: another agent (pid %s) runs on this data directory: stop it first",
			path, ErrHeld, holder)
	}
	err = errors.Join(f.Truncate(0), GiveToOwner(f))
	if err == nil {
		// For people only: the flock is the lock, the content is a hint. A full disk must not keep an agent from its start.
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = nil
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("agent lock %s: write the process ID: %w", path, err), f.Close())
	}
	return &agentLock{f: f}, nil
}

// GiveToOwner gives a file that this process has just made in a data directory to the
// directory's owner: an agent that runs as root today may run as etcd's user tomorrow. It does
// nothing for others than root, and for a root that may not.
func GiveToOwner(f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	dir := filepath.Dir(f.Name())
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("owner of %s: %w", dir, err)
	}
	if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("give %s to the owner of its directory: %w", f.Name(), err)
	}
	return nil
}

type agentLock struct {
	once sync.Once
	f    *os.File
	err  error
}

func (a *agentLock) Close() error {
	a.once.Do(func() {
		a.err = errors.Join(flock(int(a.f.Fd()), unix.LOCK_UN), a.f.Close())
	})
	return a.err
}
