package member

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"twok/internal/etcdproc"
	"twok/internal/member/locktest"
)

func openFiles(t *testing.T, pid int) []string {
	t.Helper()
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + fd.Name()); err == nil {
			names = append(names, to)
		}
	}
	return names
}

func newSignal(t *testing.T, s *locktest.Site) etcdproc.Etcd {
	t.Helper()
	e, err := etcdproc.NewSignal(etcdproc.Config{DataDir: s.Dir, ScanEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func eachVersion(t *testing.T, f func(*testing.T, *locktest.Site)) {
	for _, v := range locktest.Versions {
		t.Run(v, func(t *testing.T) { f(t, locktest.NewSite(t, v)) })
	}
}

// A started etcd waits for the lock before it opens the WAL, through a read of its
// data by us, and goes on after the release.
//
// Rules: P7.
func TestEtcdWaits(t *testing.T) {
	eachVersion(t, func(t *testing.T, s *locktest.Site) {
		c := s.Dial(t)
		first := s.Start(t)
		s.Ready(t, c)
		if _, err := c.Put(locktest.Context(t), "k", "v"); err != nil {
			t.Fatal(err)
		}
		if _, err := TryLock(s.Dir); !errors.Is(err, ErrHeld) {
			t.Fatalf("beside a running etcd: %v, want ErrHeld", err)
		}
		// Not SIGKILL: the first batch with the members may not be in the database yet.
		first.Process.Signal(unix.SIGTERM)
		first.Wait()
		l := mustTry(t, s.Dir)
		s.Start(t)
		e := newSignal(t, s)
		locktest.Until(t, "etcd waits", func() bool { return e.Process().Waiting })
		for range 20 {
			err := l.View(func(tx *bbolt.Tx) error {
				if n := tx.Bucket([]byte("members")).Stats().KeyN; n != 1 {
					t.Errorf("%d members", n)
				}
				return nil
			})
			if err := errors.Join(err, l.Verify()); err != nil {
				t.Fatal(err)
			}
			// bbolt asks every 50 ms: it gets its chances.
			time.Sleep(20 * time.Millisecond)
			for _, name := range openFiles(t, e.Process().PID) {
				if strings.HasSuffix(name, ".wal") {
					t.Fatalf("etcd has %s open while we hold the lock", name)
				}
			}
		}
		// Its ports are open by now, but nobody answers there.
		short, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if _, err := c.Get(short, "k", clientv3.WithSerializable()); err == nil {
			t.Fatal("etcd answers while we hold the lock")
		}
		if p := e.Process(); !p.Running || !p.Waiting {
			t.Fatalf("etcd does not wait any more: %+v", p)
		}
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		s.Ready(t, c)
		r, err := c.Get(locktest.Context(t), "k")
		if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "v" {
			t.Fatalf("read %v, %v", r, err)
		}
		if p := e.Process(); p.Waiting {
			t.Fatal("etcd serves and is still said to wait")
		}
	})
}

// An online defrag replaces the file: the lock is granted beside a living etcd and
// must not be taken for one.
//
// Rules: P7.
func TestDefragReplaces(t *testing.T) {
	eachVersion(t, func(t *testing.T, s *locktest.Site) {
		c := s.Dial(t)
		s.Start(t)
		s.Ready(t, c)
		q, err := Queue(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		ctx := locktest.Context(t)
		if _, err := c.Defragment(ctx, s.Client); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Wait(ctx); !errors.Is(err, ErrReplaced) {
			t.Fatalf("wait: %v, want ErrReplaced", err)
		}
		if _, err := c.Put(ctx, "k", "v"); err != nil {
			t.Fatalf("etcd was harmed: %v", err)
		}
		// Starting over gets it, with another defrag in the middle.
		e := newSignal(t, s)
		once := false
		l, err := Acquire(ctx, s.Dir, func(ctx context.Context) error {
			if !once {
				once = true
				_, err := c.Defragment(ctx, s.Client)
				return err
			}
			return e.Stop(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if err := l.Verify(); err != nil {
			t.Fatal(err)
		}
		locktest.Until(t, "etcd is gone", s.Silent)
	})
}

// Somebody restarts etcd the moment it ends. The request that sleeps in the kernel
// gets the lock every time.
//
// Rules: P7.
func TestQueueBeatsRestart(t *testing.T) {
	s := locktest.NewSite(t, "3.6")
	s.StartLoop(t)
	e := newSignal(t, s)
	ctx := locktest.Context(t)
	for i := range 30 {
		locktest.Until(t, "etcd has the lock", func() bool {
			p := e.Process()
			return p.Running && !p.Waiting && p.Err == nil
		})
		old := e.Process().StartID
		q, err := Queue(s.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if err := unix.Kill(old.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l, err := q.Wait(ctx)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		locktest.Until(t, "the next etcd waits", func() bool {
			p := e.Process()
			return p.Waiting && p.StartID != old
		})
		if err := errors.Join(l.Verify(), l.Release()); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
}

// Acquire ends with its context, whatever it is doing, and leaves nothing locked.
//
// Rules: P7; F13.
func TestAcquireEnds(t *testing.T) {
	dir := fakeDir(t)
	held := mustTry(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	stops := 0
	_, err := Acquire(ctx, dir, func(context.Context) error {
		if stops++; stops == 3 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || stops != 3 {
		t.Fatalf("%v after %d stops, want context.Canceled after 3", err, stops)
	}
	broken := errors.New("broken")
	if _, err := Acquire(locktest.Context(t), dir, func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("%v, want the error of stop", err)
	}
	if n := locktest.Blocked(t, DBPath(dir)); n != 0 {
		t.Fatalf("%d requests left in the kernel", n)
	}
	held.Release()
	mustTry(t, dir)
}
