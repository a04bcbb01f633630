package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"twok/internal/lab"
	"twok/testing/cluster"
)

// smallDisk holds etcd's first WAL segments and a database, and is full soon.
const smallDisk = 400 << 20

// almostFull is less than a claim wants to be free (walsurgery.CheckSpace), and more than etcd's code needs to open a log.
const almostFull = 80 << 20

// fill writes until so many bytes are left and returns what undoes it.
func fill(dir string, leave int64) (free func() error, err error) {
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	free = func() error { return os.Remove(path) }
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
			return free, err
		}
		if leave > 0 && int64(st.Bavail)*st.Bsize <= leave {
			break
		}
		if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			chunk = chunk[:len(chunk)/2]
		} else if err != nil {
			return free, err
		}
	}
	return free, nil
}

func disks() []Fault {
	full := func(ctx context.Context, s *Stage, leave int64, during func(context.Context) error) error {
		s.Note("the disk of %s is full, but for %d MB", s.Target, leave>>20)
		free, err := fill(s.Site(s.Target).DataDir, leave)
		if err != nil {
			return err
		}
		if err := during(ctx); err != nil {
			return err
		}
		s.Note("there is room again")
		return free()
	}
	small := func(o *cluster.Options) {
		o.SmallDisk = map[string]int64{lab.Sites[0]: smallDisk, lab.Sites[1]: smallDisk}
	}
	all := []Fault{
		{
			Name: "disk-full", About: "the target's disk is full for some seconds of writing", Rows: []string{"F31"}, Roles: both,
			Needs: Needs{Namespaces: true}, Prepare: small, Large: true,
			Run: func(ctx context.Context, s *Stage) error {
				err := full(ctx, s, 0, func(ctx context.Context) error { return s.Wait(ctx, s.Between(4*time.Second, 8*time.Second)) })
				s.AtEnd(func(context.Context) error {
					for _, path := range []string{s.Site(s.Target).AgentLog, s.Site(s.Target).EtcdLog} {
						if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "no space left on device") {
							return nil
						}
					}
					return fmt.Errorf("nobody at %s noticed the full disk: this showed nothing", s.Target)
				})
				return errors.Join(err, s.Resumes(ctx))
			},
		},
		{
			Name: "disk-full-claim", About: "the target's disk is full, or almost, when it would have to claim: it does not, and nobody writes until there is room", Rows: []string{"F31"}, Claims: 1, Roles: both,
			Needs: Needs{Namespaces: true}, Prepare: small,
			Run: func(ctx context.Context, s *Stage) error {
				// Full and alone at once: first alone would be a race with its claim.
				err := full(ctx, s, almostFull*int64(s.Rand.IntN(2)), func(ctx context.Context) error {
					return do(ctx, func(context.Context) error { return s.Kill(s.Other()) }, func(ctx context.Context) error {
						return s.Silence(ctx, "alone with a full disk", s.Between(3*time.Second, 5*time.Second))
					}, func(ctx context.Context) error { return s.Reason(ctx, s.Target, "disk-full") },
						func(context.Context) error { s.Note("%s says disk-full", s.Target); return nil })
				})
				return errors.Join(err, s.Resumes(ctx), s.Up(s.Other()))
			},
		},
		{
			Name: "slow-fsync", About: "each fdatasync of the target's etcd takes long, before, during and after a cut", Claims: 1, Roles: both,
			Needs: Needs{Strace: true},
			Run: func(ctx context.Context, s *Stage) error {
				slow, stop := context.WithCancel(ctx)
				defer stop()
				// Longer than an election timeout and nobody leads for long; that is a fault of another kind.
				delay := s.Between(5*time.Millisecond, 40*time.Millisecond)
				if s.Options.Real {
					delay *= 5
				}
				ended := make(chan error, 1)
				go func() { ended <- s.slowFsync(slow, s.Target, delay) }()
				err := do(ctx, func(ctx context.Context) error { return s.Writes(ctx, 30) }, now(s.CutLink),
					func(ctx context.Context) error { return s.Writes(ctx, 20) }, now(s.HealLink),
					func(ctx context.Context) error { _, err := s.Whole(ctx); return err })
				stop()
				if e := <-ended; err == nil {
					err = e
				}
				return err
			},
		},
	}
	return append(all, quotas()...)
}

// slowFsync delays each fdatasync of whatever etcd runs at the site, until ctx ends. That strace never took hold of one is an error.
func (s *Stage) slowFsync(ctx context.Context, site string, delay time.Duration) error {
	s.Note("each fdatasync at %s takes %s longer", site, delay)
	held := 0
	for ctx.Err() == nil {
		pid, err := s.Site(site).EtcdPID()
		if err != nil {
			return err
		}
		if pid == 0 {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		log := filepath.Join(s.Options.Dir, "strace-"+site+".log")
		cmd := exec.CommandContext(ctx, "strace", "-f", "-qq", "-o", log, "-e", "trace=fdatasync",
			"-e", "inject=fdatasync:delay_enter="+strconv.FormatInt(delay.Microseconds(), 10), "-p", strconv.Itoa(pid))
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it lets go of etcd
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if fi, serr := os.Stat(log); serr == nil && fi.Size() > 0 {
			held++
		} else if err != nil && ctx.Err() == nil {
			s.Note("strace of process %d: %v: %s", pid, err, out) // it may have ended meanwhile
		}
		pause(ctx, 20*time.Millisecond)
	}
	if held == 0 {
		return fmt.Errorf("strace delayed no fdatasync at %s; it needs the right to trace", site)
	}
	return nil
}
