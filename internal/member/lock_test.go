package member

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"twok/internal/member/locktest"
)

// TestMain lets the test binary be a second agent.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TWOK_TEST_AGENT_LOCK"); dir != "" {
		if _, err := AgentLock(dir); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString("locked\n")
		select {}
	}
	os.Exit(m.Run())
}

// fakeDir is a data directory whose database is a plain bbolt file.
func fakeDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Dir(DBPath(dir)), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(DBPath(dir), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		if err != nil {
			return err
		}
		return b.Put([]byte("k"), []byte("v"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustTry(t *testing.T, dir string) *Lock {
	t.Helper()
	l, err := TryLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Release() })
	return l
}

// shared is somebody else's descriptor with LOCK_SH.
func flockOther(t *testing.T, dir string, how int) *os.File {
	t.Helper()
	f, err := os.Open(DBPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return f
}

func openFDs(t *testing.T) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// Rules: P7.
func TestTryLock(t *testing.T) {
	dir := fakeDir(t)
	l := mustTry(t, dir)
	if _, err := TryLock(dir); !errors.Is(err, ErrHeld) {
		t.Fatalf("second lock: %v, want ErrHeld", err)
	}
	if err := l.Verify(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Verify(); !errors.Is(err, ErrReleased) {
		t.Fatalf("verify after release: %v, want ErrReleased", err)
	}
	mustTry(t, dir)

	empty := t.TempDir()
	if _, err := TryLock(empty); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no database: %v, want fs.ErrNotExist", err)
	}
	if _, err := Queue(empty); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("queue without a database: %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(filepath.Join(empty, "member")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a refused lock left something behind: %v", err)
	}
}

// Rules: P7.
func TestReplacedWhileWaiting(t *testing.T) {
	dir := fakeDir(t)
	held := mustTry(t, dir)
	q, err := Queue(dir)
	if err != nil {
		t.Fatal(err)
	}
	replace := func() {
		b, err := os.ReadFile(DBPath(dir))
		if err == nil {
			err = os.WriteFile(DBPath(dir)+".new", b, 0o600)
		}
		if err := errors.Join(err, os.Rename(DBPath(dir)+".new", DBPath(dir))); err != nil {
			t.Fatal(err)
		}
	}
	old := DBPath(dir) + ".old"
	if err := os.Link(DBPath(dir), old); err != nil {
		t.Fatal(err)
	}
	replace()
	if err := held.Verify(); !errors.Is(err, ErrReplaced) {
		t.Fatalf("verify: %v, want ErrReplaced", err)
	}
	held.Release()
	if _, err := q.Wait(locktest.Context(t)); !errors.Is(err, ErrReplaced) {
		t.Fatalf("wait: %v, want ErrReplaced", err)
	}
	// The lock on the old file is not kept.
	f, err := os.Open(old)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("the old file is still locked: %v", err)
	}
}

// Rules: P7; F13.
func TestAbandon(t *testing.T) {
	dir := fakeDir(t)
	held := mustTry(t, dir)
	before := openFDs(t)
	for i := range 200 {
		q, err := Queue(dir)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if n := locktest.Blocked(t, DBPath(dir)); n != 1 {
				t.Fatalf("%d requests sleep in the kernel after Queue, want 1", n)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := q.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("wait: %v, want context.Canceled", err)
		}
		if _, err := q.Wait(locktest.Context(t)); !errors.Is(err, ErrReleased) {
			t.Fatalf("second wait: %v, want ErrReleased", err)
		}
		if n := locktest.Blocked(t, DBPath(dir)); n != 0 {
			t.Fatalf("round %d: %d requests sleep in the kernel after Wait gave up", i, n)
		}
	}
	if n := openFDs(t); n != before {
		t.Fatalf("%d descriptors, before %d", n, before)
	}
	if err := held.Verify(); err != nil {
		t.Fatal(err)
	}
	held.Release()
	mustTry(t, dir)
}

// The grant and the abandoning come at the same time: whoever wins, the lock is
// free afterwards or in the caller's hands.
//
// Rules: P7.
func TestAbandonRace(t *testing.T) {
	dir := fakeDir(t)
	before := openFDs(t)
	granted := 0
	for i := range 500 {
		held, err := TryLock(dir)
		if err != nil {
			t.Fatalf("round %d: a lock was left over: %v", i, err)
		}
		q, err := Queue(dir)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			time.Sleep(time.Duration(i%50) * time.Microsecond)
			cancel()
		}()
		go held.Release()
		l, err := q.Wait(ctx)
		switch {
		case err == nil:
			granted++
			if err := errors.Join(l.Verify(), l.Release()); err != nil {
				t.Fatal(err)
			}
		case !errors.Is(err, context.Canceled):
			t.Fatal(err)
		}
		held.Release()
		cancel()
	}
	mustTry(t, dir).Release()
	if n := openFDs(t); n != before {
		t.Fatalf("%d descriptors, before %d", n, before)
	}
	t.Logf("granted %d of 500", granted)
}

// A request that was granted and never fetched is released by Close; signals do
// not end a queued flock.
//
// Rules: P7.
func TestQueueSignalsAndClose(t *testing.T) {
	dir := fakeDir(t)
	held := mustTry(t, dir)
	q, err := Queue(dir)
	if err != nil {
		t.Fatal(err)
	}
	q.mu.Lock()
	tid := q.tid
	q.mu.Unlock()
	for range 200 {
		unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
		time.Sleep(100 * time.Microsecond)
	}
	select {
	case <-q.Granted():
		t.Fatal("a signal ended the queued request")
	default:
	}
	held.Release()
	<-q.Granted()
	if _, err := TryLock(dir); !errors.Is(err, ErrHeld) {
		t.Fatalf("granted, yet not held: %v", err)
	}
	for range 2 {
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mustTry(t, dir)
}

// Rules: P7.
func TestBackend(t *testing.T) {
	dir := fakeDir(t)
	l := mustTry(t, dir)
	before := openFDs(t)
	for range 3 {
		b, err := l.Backend()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Backend(); err == nil {
			t.Fatal("two backends at once")
		}
		if err := l.Verify(); err == nil {
			t.Fatal("verify with an open backend must refuse: it would break the readers' lock")
		}
		err = b.View(func(tx *bbolt.Tx) error {
			if v := tx.Bucket([]byte("b")).Get([]byte("k")); !bytes.Equal(v, []byte("v")) {
				t.Errorf("read %q", v)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := TryLock(dir); !errors.Is(err, ErrHeld) {
			t.Fatalf("with the backend open: %v, want ErrHeld", err)
		}
		if err := errors.Join(b.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		if f, err := os.Open(DBPath(dir)); err != nil {
			t.Fatal(err)
		} else if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatalf("the lock is not exclusive after Close: %v", err)
		} else {
			f.Close()
		}
		if err := l.Verify(); err != nil {
			t.Fatal(err)
		}
	}
	if n := openFDs(t); n != before {
		t.Fatalf("%d descriptors, before %d", n, before)
	}

	// Somebody shares the lock while it is shared: it cannot be ours alone again.
	b, err := l.Backend()
	if err != nil {
		t.Fatal(err)
	}
	flockOther(t, dir, unix.LOCK_SH)
	if err := b.Close(); !errors.Is(err, ErrLost) {
		t.Fatalf("close: %v, want ErrLost", err)
	}
	if err := l.Verify(); !errors.Is(err, ErrLost) {
		t.Fatalf("verify: %v, want ErrLost", err)
	}
	if _, err := l.Backend(); err != nil {
		t.Fatalf("a shared lock beside another one: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
}

// The lock is gone when bbolt asks for it: no read happens.
//
// Rules: P7.
func TestBackendOfLostLock(t *testing.T) {
	dir := fakeDir(t)
	l := mustTry(t, dir)
	unix.Flock(l.fd, unix.LOCK_UN)
	other := flockOther(t, dir, unix.LOCK_EX)
	if _, err := l.Backend(); !errors.Is(err, ErrLost) {
		t.Fatalf("backend: %v, want ErrLost", err)
	}
	if err := l.View(func(*bbolt.Tx) error { t.Error("read without the lock"); return nil }); !errors.Is(err, ErrLost) {
		t.Fatalf("view: %v, want ErrLost", err)
	}
	if err := l.Verify(); !errors.Is(err, ErrLost) {
		t.Fatalf("verify: %v, want ErrLost", err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("the other one lost its lock: %v", err)
	}
	l.Release()

	if err := os.Truncate(DBPath(dir), 0); err != nil {
		t.Fatal(err)
	}
	other.Close()
	l = mustTry(t, dir)
	if _, err := l.Backend(); !errors.Is(err, ErrEmpty) {
		t.Fatalf("empty database: %v, want ErrEmpty", err)
	}
}

// Rules: P7.
func TestChildInheritsNoLock(t *testing.T) {
	dir := fakeDir(t)
	l := mustTry(t, dir)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer locktest.End(cmd)
	fds, err := filepath.Glob("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, dir) {
			t.Errorf("the child has %s open", to)
		}
	}
	// The implicit release by close alone would not do: a copy keeps the lock.
	fd, err := unix.Dup(l.fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	mustTry(t, dir)
}

// Rules: P20.
func TestAgentLock(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TWOK_TEST_AGENT_LOCK="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer locktest.End(cmd)
	if _, err := out.Read(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	_, err = AgentLock(dir)
	if !errors.Is(err, ErrHeld) {
		t.Fatalf("second agent: %v, want ErrHeld", err)
	}
	if want := "pid " + strconv.Itoa(cmd.Process.Pid); !strings.Contains(err.Error(), want) {
		t.Fatalf("the error %q does not name %q", err, want)
	}
	locktest.End(cmd) // SIGKILL
	for range 2 {
		a, err := AgentLock(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := AgentLock(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no directory: %v, want fs.ErrNotExist", err)
	}
}
