package etcdproc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

type inode struct{ dev, ino uint64 }

// inodeAt asks no file server: somebody's descriptor on a dead mount must not hang the search (F14).
func inodeAt(path string) (inode, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return inode{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, nil
}

// found is a process that has one of the files open for writing.
type found struct {
	id      StartID
	paused  bool
	waiting bool
	fd      string // number of the descriptor that matched, the database's if there is one
	isDB    bool
}

// finder looks for the processes of one data directory.
type finder struct {
	db, wal string
	pid     int
	exe     inode
}

func newFinder(dataDir string) (*finder, error) {
	exe, err := inodeAt("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("etcdproc: %w (is /proc mounted?)", err)
	}
	return &finder{
		db:  filepath.Join(dataDir, "member", "snap", "db"),
		wal: filepath.Join(dataDir, "member", "wal"),
		pid: os.Getpid(),
		exe: exe,
	}, nil
}

// files are the inodes to look for; the value says "the database". Empty when etcd
// never ran here.
func (f *finder) files() (map[inode]bool, error) {
	m := make(map[inode]bool)
	add := func(path string, db bool) error {
		i, err := inodeAt(path)
		if err == nil {
			m[i] = db
		} else if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return err
		}
		return nil
	}
	names, err := os.ReadDir(f.wal)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("find etcd: %w", err)
	}
	for _, e := range names {
		if strings.HasSuffix(e.Name(), ".wal") {
			if err := add(filepath.Join(f.wal, e.Name()), false); err != nil {
				return nil, fmt.Errorf("find etcd: %w", err)
			}
		}
	}
	if err := add(f.db, true); err != nil {
		return nil, fmt.Errorf("find etcd: %w", err)
	}
	return m, nil
}

// scan searches all processes. ErrNoAccess only when somebody who was not found
// has the lock on the database.
func (f *finder) scan() ([]found, error) {
	files, err := f.files()
	if err != nil || len(files) == 0 {
		return nil, err
	}
	return f.scanFor(files)
}

func (f *finder) scanFor(files map[inode]bool) ([]found, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("find etcd: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return nil, fmt.Errorf("find etcd: list /proc: %w", err)
	}
	var all []found
	denied := 0
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == f.pid {
			continue
		}
		p, ok, err := f.look(pid, files)
		switch {
		case errors.Is(err, os.ErrPermission):
			denied++
		case err != nil:
			return nil, fmt.Errorf("find etcd: %w", err)
		case ok:
			all = append(all, p)
		}
	}
	if len(all) == 0 && denied > 0 {
		pid, err := f.lockedBy(files)
		if err != nil {
			return nil, err
		}
		if pid != 0 {
			// It may have opened the database after we looked.
			p, ok, err := f.look(pid, files)
			switch {
			case errors.Is(err, os.ErrPermission):
				return nil, fmt.Errorf("find etcd: process %d has the lock of %s: %w: %w", pid, f.db, err, ErrNoAccess)
			case err != nil:
				return nil, fmt.Errorf("find etcd: %w", err)
			case ok:
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// look looks into one process. Errors: fs.ErrPermission, or what should not happen.
func (f *finder) look(pid int, files map[inode]bool) (found, bool, error) {
	state, id, err := stat(pid)
	if err != nil {
		return found{}, false, gone(err)
	}
	if state == 'Z' || state == 'X' {
		return found{}, false, nil
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	d, err := os.Open(dir)
	if err != nil {
		return found{}, false, gone(err)
	}
	fds, err := d.Readdirnames(-1)
	d.Close()
	if err != nil {
		return found{}, false, gone(err)
	}
	var best found
	ok := false
	for _, fd := range fds {
		p, hit, err := f.lookAt(id, fd, files)
		if err != nil {
			return found{}, false, err
		}
		if hit && (!ok || p.isDB) {
			best, ok = p, true
		}
		if ok && best.isDB {
			break
		}
	}
	if !ok {
		return found{}, false, nil
	}
	if exe, err := inodeAt(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == f.exe {
		return found{}, false, nil
	}
	best.paused = state == 'T' || state == 't'
	return best, true, nil
}

// lookAt looks at one descriptor of a process: open for writing on one of files?
func (f *finder) lookAt(id StartID, fd string, files map[inode]bool) (found, bool, error) {
	link := fmt.Sprintf("/proc/%d/fd/%s", id.PID, fd)
	// The name spares most of the work: its directory differs between mount namespaces, its
	// last part does not.
	name, err := os.Readlink(link)
	if err != nil {
		return found{}, false, gone(err)
	}
	name = strings.TrimSuffix(filepath.Base(name), " (deleted)")
	if name != "db" && !strings.HasSuffix(name, ".wal") {
		return found{}, false, nil
	}
	i, err := inodeAt(link)
	if err != nil {
		return found{}, false, gone(err)
	}
	isDB, hit := files[i]
	if !hit {
		return found{}, false, nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", id.PID, fd))
	if err != nil {
		return found{}, false, gone(err)
	}
	p := found{id: id, fd: fd, isDB: isDB, waiting: isDB}
	writes := false
	for line := range bytes.Lines(b) {
		key, value, _ := strings.Cut(string(line), ":")
		switch key {
		case "flags":
			flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 64)
			if err != nil {
				return found{}, false, fmt.Errorf("/proc/%d/fdinfo/%s: flags: %w", id.PID, fd, err)
			}
			writes = flags&unix.O_ACCMODE != unix.O_RDONLY
		case "lock":
			p.waiting = false
		}
	}
	return p, writes, nil
}

// verify looks at a known process again, cheaply.
func (f *finder) verify(p found) (found, bool) {
	files, err := f.files()
	if err != nil {
		return found{}, false
	}
	state, id, err := stat(p.id.PID)
	if err != nil || id != p.id || state == 'Z' || state == 'X' {
		return found{}, false
	}
	now, ok, err := f.lookAt(id, p.fd, files)
	if p.fd != "" && err == nil && ok && now.isDB {
		now.paused = state == 'T' || state == 't'
		return now, true
	}
	now, ok, err = f.look(id.PID, files)
	return now, ok && err == nil
}

// gone is nil for what a process that ends meanwhile makes fail.
func gone(err error) error {
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// lockedBy is the other process that /proc/locks shows with the flock of the
// database, 0 if there is none. Anybody may read that file; it hides processes of
// other PID namespaces. (On btrfs its device numbers are not stat's: 0.)
func (f *finder) lockedBy(files map[inode]bool) (int, error) {
	file, err := os.Open("/proc/locks")
	if err != nil {
		return 0, fmt.Errorf("find etcd: %w", err)
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	for sc.Scan() {
		// 12: FLOCK  ADVISORY  WRITE 4711 fe:00:131090 0 EOF
		w := strings.Fields(sc.Text())
		if len(w) < 6 || w[1] != "FLOCK" {
			continue
		}
		var major, minor uint32
		var ino uint64
		if _, err := fmt.Sscanf(w[5], "%x:%x:%d", &major, &minor, &ino); err != nil {
			continue
		}
		pid, err := strconv.Atoi(w[4])
		if err != nil || pid == f.pid {
			continue
		}
		if files[inode{unix.Mkdev(major, minor), ino}] {
			return pid, nil
		}
	}
	if err := sc.Err(); err != nil {
		return 0, fmt.Errorf("find etcd: /proc/locks: %w", err)
	}
	return 0, nil
}

// Evict ends every process, other than those of this executable, that has the file
// with this device and inode number, a database by name, open for writing: SIGTERM, SIGKILL after grace (0: at once). For who
// has replaced a member's files under its lock: an etcd that waits for that lock has the old database open
// and would go on with it and the new WAL. The caller keeps the inode in existence (member.Lock.Inode).
func Evict(ctx context.Context, dev, ino uint64, grace time.Duration) error {
	f, err := newFinder("")
	if err != nil {
		return err
	}
	ps, err := f.scanFor(map[inode]bool{{dev, ino}: true})
	if err != nil {
		return fmt.Errorf("evict: %w", err)
	}
	return endAll(ctx, ids(ps), grace, zap.NewNop())
}

func ids(ps []found) []StartID {
	s := make([]StartID, len(ps))
	for i, p := range ps {
		s[i] = p.id
	}
	return s
}
