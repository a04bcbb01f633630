package member

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Queued is a request for the lock that sleeps in the kernel.
type Queued struct {
	path    string
	granted chan struct{} // closed when the flock call returned

	mu     sync.Mutex
	fd     int // of the database; of spare once abandoned; -1 when handed over or closed
	spare  int // O_PATH: flock on it is EBADF
	tid    int // the sleeping thread, 0 when it is not in flock any more
	err    error
	done   bool // flock returned
	closed bool // abandoned, or handed over by Wait
}

// Queue opens the database and starts to wait for its lock; it returns when the
// request sleeps in the kernel (or was granted), so that an etcd that ends after Queue
// returned wakes this request before a restarted one can come. Stop etcd then, and Wait.
// The caller must call Wait or Close. fs.ErrNotExist: there is no database.
func Queue(dataDir string) (*Queued, error) {
	path := DBPath(dataDir)
	fd, err := openDB(path)
	if err != nil {
		return nil, err
	}
	// Opened now, so that giving up never fails for want of descriptors.
	spare, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock %s: open a spare descriptor: %w", path, err)
	}
	q := &Queued{path: path, granted: make(chan struct{}), fd: fd, spare: spare}
	tids := make(chan int, 1)
	go q.run(fd, tids)
	q.sleeping(<-tids)
	return q, nil
}

// run is the thread that sleeps. The number fd stays open until it is through, so
// that no other file can get it.
func (q *Queued) run(fd int, tids chan<- int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	q.mu.Lock()
	q.tid = unix.Gettid()
	q.mu.Unlock()
	tids <- q.tid
	err := flock(fd, unix.LOCK_EX)

	q.mu.Lock()
	defer q.mu.Unlock()
	q.tid = 0
	q.done = true
	q.err = err
	if q.closed {
		// Abandoned. If the database was granted in the same moment, the
		// kernel dropped that lock with the file's last reference.
		q.closeFiles()
	}
	close(q.granted)
}

// sleeping returns when the thread is inside flock(2), or after 20 ms.
func (q *Queued) sleeping(tid int) {
	name := fmt.Sprintf("/proc/self/task/%d/syscall", tid)
	want := strconv.Itoa(unix.SYS_FLOCK) + " "
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
		select {
		case <-q.granted:
			return
		default:
		}
		b, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(b), want) {
			return
		}
	}
}

// Granted is closed when the request is through, by a grant or an error, which
// Wait then returns without waiting.
func (q *Queued) Granted() <-chan struct{} { return q.granted }

// Wait returns the lock when it is granted on the file that the path still names.
// ErrReplaced: it is another file now; the lock was released; start over with Queue. When ctx
// ends first the request is abandoned: nothing is granted any more, and the error is
// ctx's. Either way the Queued is used up.
func (q *Queued) Wait(ctx context.Context) (*Lock, error) {
	select {
	case <-q.granted:
	default:
		select {
		case <-q.granted:
		case <-ctx.Done():
			err := q.Close()
			return nil, errors.Join(fmt.Errorf("wait for the lock of %s: %w", q.path, context.Cause(ctx)), err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, fmt.Errorf("wait for the lock of %s: %w", q.path, ErrReleased)
	}
	q.closed = true
	if q.err != nil {
		q.closeFiles()
		return nil, fmt.Errorf("wait for the lock of %s: flock: %w", q.path, q.err)
	}
	fd := q.fd
	q.fd = -1
	q.closeFiles()
	return newLock(q.path, fd)
}

// Close abandons the request; a lock that was granted but not fetched by Wait is
// released. It returns when the request is gone from the kernel, which takes some 10 µs; after an
// error (2 s) a thread is left, but no lock will be. After Wait, or a second time, it does nothing.
func (q *Queued) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	if q.done {
		defer q.mu.Unlock()
		if q.err == nil {
			flock(q.fd, unix.LOCK_UN)
		}
		q.closeFiles()
		return nil
	}
	// The thread holds the only other reference to the database's open file. From
	// here on the number names spare, for a flock that has not begun as for one that
	// is restarted.
	if err := unix.Dup3(q.spare, q.fd, unix.O_CLOEXEC); err != nil {
		// Not seen to happen: both are open. The thread closes the file when it is
		// granted, which releases it.
		q.mu.Unlock()
		return fmt.Errorf("abandon the lock of %s: dup3: %w", q.path, err)
	}
	tid := q.tid
	q.mu.Unlock()
	// A signal that comes before the thread sleeps is used up by its handler only if
	// it is in user mode, where the next flock finds spare. Repeated all the same.
	for range 400 {
		q.mu.Lock()
		if q.tid != 0 {
			unix.Tgkill(os.Getpid(), q.tid, unix.SIGURG)
		}
		q.mu.Unlock()
		select {
		case <-q.granted:
			return nil
		case <-time.After(5 * time.Millisecond):
		}
	}
	// Not seen to happen. The thread sleeps on; its grant would be dropped by the kernel at once.
	return fmt.Errorf("abandon the lock of %s: the sleeping thread %d does not react to SIGURG", q.path, tid)
}

// closeFiles closes what is still open. q.mu is held.
func (q *Queued) closeFiles() {
	if q.fd >= 0 {
		unix.Close(q.fd)
		q.fd = -1
	}
	unix.Close(q.spare)
	q.spare = -1
}
