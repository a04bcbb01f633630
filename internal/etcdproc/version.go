package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// exeOf names the executable of a process. It can be run across mount namespaces and
// after the file was replaced, if it is linked statically as etcd's releases are.
func exeOf(pid int) string { return fmt.Sprintf("/proc/%d/exe", pid) }

// versions knows the version of each executable that was asked for.
type versions struct {
	mu    sync.Mutex
	known map[exeKey]string
	most  string // the last answer
}

type exeKey struct {
	inode
	mtime unix.Timespec
	size  int64
}

func (v *versions) last() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.most
}

// remember is of, for later; an error is left to whoever asks.
func (v *versions) remember(ctx context.Context, exe string) { v.of(ctx, exe) }

// errScript: whatever it is asked, a script may start etcd.
var errScript = errors.New("it is a script, which is not asked for its version")

// program is nil for an executable that is no script. A wrapper that ignores its arguments would start etcd, held or not.
func program(exe string) error {
	f, err := os.Open(exe)
	if err != nil {
		return err
	}
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	err = errors.Join(err, f.Close())
	if err == nil && string(magic[:]) == "\x7fELF" {
		return nil
	}
	return fmt.Errorf("%s: %w", exe, errors.Join(errScript, err))
}

var versionLine = regexp.MustCompile(`(?m)^etcd Version: (\S+)\s*$`)

// of runs exe --version, unless this very file was asked before.
func (v *versions) of(ctx context.Context, exe string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(exe, &st); err != nil {
		return "", fmt.Errorf("version of etcd: %w", &os.PathError{Op: "stat", Path: exe, Err: err})
	}
	key := exeKey{inode{uint64(st.Dev), st.Ino}, st.Mtim, st.Size}
	v.mu.Lock()
	defer v.mu.Unlock()
	if s, ok := v.known[key]; ok {
		v.most = s
		return s, nil
	}
	if err := program(exe); err != nil {
		return "", fmt.Errorf("version of etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "--version")
	cmd.Env = []string{} // no ETCD_… of ours
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("version of etcd: run %s --version: %w", exe, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("version of etcd: %s --version does not say \"etcd Version: …\": is it etcd?", exe)
	}
	if v.known == nil {
		v.known = make(map[exeKey]string)
	}
	v.known[key] = string(m[1])
	v.most = string(m[1])
	return v.most, nil
}
