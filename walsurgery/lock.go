package walsurgery

import (
	"errors"
	"fmt"
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
	name := filepath.Join(walDir, segs[len(segs)-1].name)
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

func mustBeUnlocked(walDir string) error {
	locked, err := Locked(walDir)
	if err == nil && locked {
		err = fmt.Errorf("open WAL %s: %w", walDir, ErrLocked)
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
