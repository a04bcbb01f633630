package walsurgery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

// Locked tells whether another process, or another descriptor of this one,
// holds etcd's lock on the newest segment, without taking it (F_OFD_GETLK). It
// is a snapshot of the moment and no substitute for Open's lock.
//
// Errors: ErrNoWAL, ErrUnexpectedFormat, or of the file system.
func Locked(walDir string) (bool, error) {
	segs, err := segmentNames(walDir)
	if err != nil {
		return false, err
	}
	return fileLocked(filepath.Join(walDir, segs[len(segs)-1].name))
}

func fileLocked(name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, fmt.Errorf("query the lock of the WAL: %w", err)
	}
	defer f.Close()
	lk := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("query the lock of %s: %w", name, err)
	}
	return lk.Type != syscall.F_UNLCK, nil
}

// mustBeUnlocked asks for the preallocated files too: etcd's code would wait for
// their locks without end. It keeps them for itself when it fails half way.
func mustBeUnlocked(walDir string) error {
	locked, err := Locked(walDir)
	if err == nil && locked {
		return fmt.Errorf("open WAL %s: %w", walDir, ErrLocked)
	}
	for _, name := range []string{"0.tmp", "1.tmp"} {
		if err != nil {
			return err
		}
		locked, err = fileLocked(filepath.Join(walDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		if locked {
			return fmt.Errorf("open WAL %s: %s is locked, maybe by an earlier attempt of this process that failed: restart it: %w", walDir, name, ErrLocked)
		}
	}
	return err
}

// segmentLocks are the locks that etcd takes, one for each segment.
type segmentLocks []*fileutil.LockedFile

// lockSegments takes etcd's lock on all segments of walDir or on none.
func lockSegments(walDir string) (segmentLocks, error) {
	segs, err := segmentNames(walDir)
	if err != nil {
		return nil, err
	}
	var locks segmentLocks
	for _, s := range segs {
		f, err := fileutil.TryLockFile(filepath.Join(walDir, s.name), os.O_RDWR, fileutil.PrivateFileMode)
		if err != nil {
			locks.release()
			if errors.Is(err, fileutil.ErrLocked) {
				err = ErrLocked
			}
			return nil, fmt.Errorf("lock WAL %s: %w", walDir, err)
		}
		locks = append(locks, f)
	}
	return locks, nil
}

func (l segmentLocks) release() {
	for _, f := range l {
		f.Close()
	}
}
