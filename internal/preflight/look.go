package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"

	"twok/internal/etcdproc"
	"twok/internal/member"
	"twok/walsurgery"
)

// ScratchPrefix begins the names of the scratch directories.
const ScratchPrefix = "twok-check-"

// scratchOld is when a scratch directory was left by a look that was killed.
const scratchOld = time.Minute

// LookDir looks at a data directory and at a file of the agent in it, which need not be there. It writes
// a scratch directory and removes it.
func LookDir(dataDir, memory string) Dir {
	d := Dir{User: os.Geteuid()}
	st, err := os.Stat(dataDir)
	if err != nil {
		d.Err = err
		return d
	}
	d.IsDir = st.IsDir()
	if !d.IsDir {
		return d
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		d.Owner = int(sys.Uid)
	}
	d.Write = scratch(dataDir, func(string) error { return nil })
	if b, err := os.ReadFile(filepath.Join(dataDir, memory)); err == nil {
		if !json.Valid(b) {
			d.Memory = fmt.Errorf("%s is not JSON", filepath.Join(dataDir, memory))
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		d.Memory = err
	}
	return d
}

// scratch runs f in a fresh directory in parent, owned by parent's owner, and removes it.
func scratch(parent string, f func(dir string) error) (err error) {
	if old, err := filepath.Glob(filepath.Join(parent, ScratchPrefix+"*")); err == nil {
		for _, o := range old {
			if st, err := os.Lstat(o); err == nil && st.IsDir() && time.Since(st.ModTime()) > scratchOld {
				_ = removeScratch(o) // else the next one does
			}
		}
	}
	dir, err := os.MkdirTemp(parent, ScratchPrefix)
	if err != nil {
		return err
	}
	return errors.Join(f(dir), removeScratch(dir))
}

// removeScratch removes names that scratch directories have, and nothing that is not ours.
func removeScratch(dir string) error {
	for _, name := range []string{"a/first", "b/second", "a/second", "b/first", "a", "b", "lock", ""} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// LookTrial tries RENAME_EXCHANGE beside member and beside member/wal, on directories of its own.
func LookTrial(dataDir string) Trial {
	var t Trial
	var st unix.Statfs_t
	memberDir := filepath.Join(dataDir, "member")
	err := unix.Statfs(memberDir, &st)
	if errors.Is(err, fs.ErrNotExist) {
		err = unix.Statfs(dataDir, &st)
	}
	if err == nil {
		t.FileSystem = fileSystem(st.Type)
		t.Overlay = st.Type == unix.OVERLAYFS_SUPER_MAGIC
	}
	for _, p := range []string{memberDir, filepath.Join(memberDir, "wal")} {
		if fi, err := os.Lstat(p); err == nil && fi.Mode()&fs.ModeSymlink != 0 && t.Link == "" {
			t.Link = p
		}
		if mounted, err := isMount(p); err == nil && mounted && t.Mount == "" {
			t.Mount = p
		}
	}
	for _, parent := range []string{dataDir, memberDir} {
		if _, err := os.Stat(parent); parent == memberDir && errors.Is(err, fs.ErrNotExist) {
			continue // etcd makes it, where the data directory is
		}
		t.Exchange = errors.Join(t.Exchange, scratch(parent, tryExchange))
	}
	return t
}

func tryExchange(dir string) error {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	err := errors.Join(os.Mkdir(a, 0o700), os.Mkdir(b, 0o700),
		os.WriteFile(filepath.Join(a, "first"), nil, 0o600), os.WriteFile(filepath.Join(b, "second"), nil, 0o600))
	if err != nil {
		return err
	}
	if err := walsurgery.Exchange(a, b); err != nil {
		return err
	}
	for _, name := range []string{"b/first", "a/second"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("the exchange was acknowledged and did not happen: %w", err)
		}
	}
	return nil
}

// isMount says whether path is a mount point, or on another device than its parent.
func isMount(path string) (bool, error) {
	var st, up unix.Statx_t
	flags := unix.AT_STATX_DONT_SYNC | unix.AT_SYMLINK_NOFOLLOW
	if err := unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_INO, &st); err != nil {
		return false, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return true, nil
	}
	if err := unix.Statx(unix.AT_FDCWD, filepath.Dir(path), flags, unix.STATX_INO, &up); err != nil {
		return false, &os.PathError{Op: "statx", Path: filepath.Dir(path), Err: err}
	}
	return st.Dev_major != up.Dev_major || st.Dev_minor != up.Dev_minor, nil
}

var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext2, ext3 or ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.TMPFS_MAGIC: "tmpfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.FUSE_SUPER_MAGIC: "fuse", unix.F2FS_SUPER_MAGIC: "f2fs",
}

func fileSystem(magic int64) string {
	if name := fileSystems[magic]; name != "" {
		return name
	}
	return fmt.Sprintf("file system %#x", magic)
}

// LookLocks looks at the files that etcd locks. It locks a scratch file only.
func LookLocks(dataDir string) Locks {
	l := Locks{Seen: true}
	f, err := os.Open(member.DBPath(dataDir))
	if err == nil {
		var st fs.FileInfo
		if st, err = f.Stat(); err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file", f.Name())
		}
		err = errors.Join(err, f.Close())
	}
	l.DB = err
	l.WALHeld, l.WAL = walsurgery.Locked(filepath.Join(dataDir, "member", "wal"))
	if l.DB == nil {
		l.Trial = scratch(filepath.Join(dataDir, "member"), tryLocks)
	}
	return l
}

// tryLocks: a second descriptor is kept out by each kind of lock.
func tryLocks(dir string) (err error) {
	name := filepath.Join(dir, "lock")
	open := func() (*os.File, error) { return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600) }
	one, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	two, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, two.Close()) }()
	if err := unix.Flock(int(one.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	if err := unix.Flock(int(two.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("a second flock of one file was not refused: %v", err)
	}
	if err := unix.Flock(int(one.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("flock: %w", err)
	}
	three, err := fileutil.TryLockFile(name, os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("the WAL's kind of lock: %w", err)
	}
	defer func() { err = errors.Join(err, three.Close()) }()
	if four, err := fileutil.TryLockFile(name, os.O_RDWR, 0o600); !errors.Is(err, fileutil.ErrLocked) {
		if err == nil {
			err = four.Close()
		}
		return fmt.Errorf("a second lock of the WAL's kind was not refused: %v", err)
	}
	return nil
}

// LookSpace is what the agent demands before it operates.
func LookSpace(dataDir string) Space {
	var s Space
	dir := filepath.Join(dataDir, "member", "wal")
	s.Free, s.Need, s.Err = walsurgery.FreeSpace(dir)
	if s.Err == nil {
		s.Err = walsurgery.CheckSpace(dir)
	}
	return s
}

// LookProcess looks at etcd's process. stale judges versions (F26).
func LookProcess(ctx context.Context, e etcdproc.Etcd, stale func(version string) bool) Process {
	p := Process{Process: e.Process()}
	if p.Running {
		if err := unix.Kill(p.PID, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			p.Signal = fmt.Errorf("signal 0: %w", err)
		}
	}
	p.Version, p.VersionErr = e.Version(ctx)
	p.Flags, p.FlagsErr = e.Flags(ctx)
	if c, ok := e.(etcdproc.Commander); ok {
		told, err := c.Command()
		p.Told, p.ToldErr = &told, err
	}
	p.StaleReads = p.VersionErr == nil && stale(p.Version)
	return p
}

// healthDeadline is what an agent may take to answer; somebody else's port may never.
const healthDeadline = 2 * time.Second

// LookHealth looks whether an address can be listened on, or whether the agent of that member answers there.
func LookHealth(ctx context.Context, addr, memberID string) Health {
	if addr == "" {
		return Health{}
	}
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return Health{Err: l.Close()}
	}
	h := Health{Err: err}
	if !errors.Is(err, unix.EADDRINUSE) || memberID == "" {
		return h
	}
	host, port, serr := net.SplitHostPort(addr)
	if serr != nil {
		return h
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, healthDeadline)
	defer cancel()
	req, rerr := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/health", nil)
	if rerr != nil {
		return h
	}
	resp, rerr := http.DefaultClient.Do(req)
	if rerr != nil {
		return h
	}
	defer resp.Body.Close()
	var who struct {
		MemberID string `json:"member_id"`
		Role     string `json:"role"`
	}
	b, rerr := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	h.Own = rerr == nil && json.Unmarshal(b, &who) == nil && who.Role != "" && strings.EqualFold(who.MemberID, memberID)
	return h
}
