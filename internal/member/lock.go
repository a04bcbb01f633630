package member

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

var (
	// ErrHeld: another process holds the lock now. Remedy: stop etcd, or use Queue.
	ErrHeld = errors.New("the lock is held by another process")
	// ErrReplaced: the lock was granted on a file that is no longer the database
	// (online defrag, received snapshot). It was released. Remedy: start over with Queue.
	ErrReplaced = errors.New("the database file was replaced while waiting for its lock")
	// ErrLost: a lock that was ours is not any more. Remedy: abort, trust nothing
	// that was read since the last Verify, start over.
	ErrLost = errors.New("the lock on the database was lost")
	// ErrEmpty: the database has no bytes (etcd ended while it created it). It holds
	// nothing, and etcd can start on it.
	ErrEmpty = errors.New("the database file is empty")
	// ErrReleased: the Lock or Queued was used after its end.
	ErrReleased = errors.New("the lock was released")
)

// DBPath is the database of a data directory, the file whose flock etcd waits for.
func DBPath(dataDir string) string { return filepath.Join(dataDir, "member", "snap", "db") }

// Lock holds flock(LOCK_EX) of a member's database. Safe for concurrent use.
// It proves that no other etcd has the database; that none has the WAL is proved
// by wal.Open alone (see the package comment).
type Lock struct {
	mu       sync.Mutex
	path     string
	fd       int // -1 after Release
	dev, ino uint64
	backend  *Backend // open, or nil
}

// TryLock takes the lock without waiting. ErrHeld when somebody has it,
// fs.ErrNotExist when there is no database, ErrReplaced as for Wait.
func TryLock(dataDir string) (*Lock, error) {
	path := DBPath(dataDir)
	fd, err := openDB(path)
	if err != nil {
		return nil, err
	}
	if err := flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return newLock(path, fd)
}

// newLock takes over fd, which holds LOCK_EX. On an error fd is closed.
func newLock(path string, fd int) (*Lock, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unlock(fd)
		return nil, fmt.Errorf("lock %s: stat of the descriptor: %w", path, err)
	}
	l := &Lock{path: path, fd: fd, dev: uint64(st.Dev), ino: st.Ino}
	if err := l.samePath(); err != nil {
		unlock(fd)
		return nil, err
	}
	return l, nil
}

// Inode is the device and inode number of the locked file. Both stay taken while
// the lock is held, so they name no other file.
func (l *Lock) Inode() (dev, ino uint64) { return l.dev, l.ino }

// Path is the path under which the database was opened.
func (l *Lock) Path() string { return l.path }

// Verify says whether the lock is still ours: the path names the locked inode
// (else ErrReplaced) and LOCK_EX is granted to our descriptor at once (else ErrLost).
// After ErrLost the lock is gone for good; Release only closes the descriptor. After
// ErrReplaced the old file is still locked, which is expected of a caller that
// replaced it itself.
func (l *Lock) Verify() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return fmt.Errorf("verify lock of %s: %w", l.path, ErrReleased)
	}
	if l.backend != nil {
		return fmt.Errorf("verify lock of %s: the backend is open, which makes the lock shared: close it first", l.path)
	}
	if err := l.relock(); err != nil {
		return err
	}
	return l.samePath()
}

func (l *Lock) samePath() error {
	var st unix.Stat_t
	if err := unix.Stat(l.path, &st); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("lock %s: no file at the path any more: %w", l.path, ErrReplaced)
		}
		return fmt.Errorf("lock %s: stat: %w", l.path, err)
	}
	if uint64(st.Dev) != l.dev || st.Ino != l.ino {
		return fmt.Errorf("lock %s: locked inode %d, the path names inode %d: %w", l.path, l.ino, st.Ino, ErrReplaced)
	}
	return nil
}

func (l *Lock) relock() error {
	if err := flock(l.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLost
		}
		return fmt.Errorf("lock %s: take it again: %w", l.path, err)
	}
	return nil
}

// Release gives the lock up; a waiting etcd goes on within 50 ms. An open
// Backend is closed first. A second call does nothing.
func (l *Lock) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil
	}
	var err error
	if l.backend != nil {
		err = l.backend.DB.Close()
		l.backend = nil
	}
	err = errors.Join(err, unlock(l.fd))
	l.fd = -1
	if err != nil {
		return fmt.Errorf("release lock of %s: %w", l.path, err)
	}
	return nil
}

// Backend is a read-only bbolt on the locked file. Close it before Verify.
type Backend struct {
	*bbolt.DB
	l *Lock
}

// Backend opens the database read-only through a duplicate of the locked
// descriptor: a second open would wait for our own lock for ever. Until Close the
// lock is shared instead of exclusive, which keeps etcd out all the same. One at a time.
// ErrLost: somebody got the lock in the moment of the conversion; abort.
func (l *Lock) Backend() (*Backend, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return nil, fmt.Errorf("open %s under its lock: %w", l.path, ErrReleased)
	}
	if l.backend != nil {
		return nil, fmt.Errorf("open %s under its lock: it is open already", l.path)
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil {
		return nil, fmt.Errorf("open %s under its lock: %w", l.path, err)
	}
	if st.Size == 0 {
		// bbolt would try to initialise it.
		return nil, fmt.Errorf("open %s under its lock: the file is empty: %w", l.path, ErrEmpty)
	}
	db, err := bbolt.Open(l.path, 0, &bbolt.Options{
		ReadOnly: true,
		// Below bbolt's retry interval: one try, then ErrTimeout.
		Timeout: time.Millisecond,
		OpenFile: func(name string, _ int, _ os.FileMode) (*os.File, error) {
			fd, err := unix.FcntlInt(uintptr(l.fd), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return nil, fmt.Errorf("duplicate the locked descriptor: %w", err)
			}
			return os.NewFile(uintptr(fd), name), nil
		},
	})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			// LOCK_SH was refused, and with the attempt LOCK_EX was dropped.
			err = ErrLost
		}
		err = fmt.Errorf("open %s under its lock: %w", l.path, err)
		return nil, errors.Join(err, l.relock())
	}
	l.backend = &Backend{DB: db, l: l}
	return l.backend, nil
}

// Close closes the database and makes the lock exclusive again. ErrLost: it was
// not ours in between, nothing that was read may be used. A second call, or one after
// Release, does nothing.
func (b *Backend) Close() error {
	b.l.mu.Lock()
	defer b.l.mu.Unlock()
	if b.l.backend != b {
		return nil
	}
	b.l.backend = nil
	if err := b.DB.Close(); err != nil {
		return errors.Join(fmt.Errorf("close %s: %w", b.l.path, err), b.l.relock())
	}
	return b.l.relock()
}

// View runs fn in one read transaction of the locked database. It fails with
// ErrLost when the lock was lost meanwhile, whatever fn returned.
func (l *Lock) View(fn func(*bbolt.Tx) error) error {
	b, err := l.Backend()
	if err != nil {
		return err
	}
	return errors.Join(b.DB.View(fn), b.Close())
}

// Acquire takes the lock while somebody may be restarting etcd: it queues, calls
// stop, waits, and starts over when the file was replaced or another etcd was quicker.
// stop ends every etcd of this data directory (etcdproc.Etcd.Stop); its error ends
// Acquire. Without an end of ctx it tries for ever. When it fails, no lock is held and
// none will be granted; etcd may be stopped.
func Acquire(ctx context.Context, dataDir string, stop func(context.Context) error) (*Lock, error) {
	for {
		l, err := acquireOnce(ctx, dataDir, stop)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil || !(errors.Is(err, ErrReplaced) || errors.Is(err, errAgain)) {
			return nil, err
		}
	}
}

// acquireRound is how long one queued request waits before etcd is stopped again.
const acquireRound = 500 * time.Millisecond

var errAgain = errors.New("another process got the lock first")

func acquireOnce(ctx context.Context, dataDir string, stop func(context.Context) error) (*Lock, error) {
	q, err := Queue(dataDir)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	if err := stop(ctx); err != nil {
		return nil, fmt.Errorf("lock %s: stop etcd: %w", DBPath(dataDir), err)
	}
	round, cancel := context.WithTimeout(ctx, acquireRound)
	defer cancel()
	l, err := q.Wait(round)
	if err != nil && ctx.Err() == nil && round.Err() != nil {
		return nil, fmt.Errorf("%w: %w", errAgain, err)
	}
	return l, err
}

func openDB(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("lock %s: open: %w", path, err)
		}
		return fd, nil
	}
}

func flock(fd, how int) error {
	for {
		err := unix.Flock(fd, how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func unlock(fd int) error {
	return errors.Join(flock(fd, unix.LOCK_UN), unix.Close(fd))
}
