package etcdproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// stat reads the state letter and the start of a process from /proc/PID/stat.
// An error that os.ErrProcessDone matches: there is no such process.
func stat(pid int) (state byte, id StartID, err error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return 0, StartID{}, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
		}
		return 0, StartID{}, err
	}
	// The name, field 2, is in parentheses and may hold anything: fields are counted after it.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return 0, StartID{}, fmt.Errorf("%s: %d fields after the name, want 20 or more", name, len(f))
	}
	ticks, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return 0, StartID{}, fmt.Errorf("%s: start time: %w", name, err)
	}
	return f[0][0], StartID{PID: pid, Ticks: ticks}, nil
}

// handle is one process, by pidfd.
type handle struct {
	id StartID
	fd int
}

// openHandle fails with os.ErrProcessDone when id is not there any more.
func openHandle(id StartID) (*handle, error) {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("process %d: %w", id.PID, os.ErrProcessDone)
		}
		return nil, fmt.Errorf("pidfd_open of process %d (needs Linux 5.3): %w", id.PID, err)
	}
	_, now, err := stat(id.PID)
	if err == nil && now != id {
		err = fmt.Errorf("process %d: %w", id.PID, os.ErrProcessDone)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &handle{id: id, fd: fd}, nil
}

func (h *handle) close() { unix.Close(h.fd) }

// signal is nil when the process is gone.
func (h *handle) signal(sig unix.Signal) error {
	err := unix.PidfdSendSignal(h.fd, sig, nil, 0)
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("send %s to etcd, process %d: %w", unix.SignalName(sig), h.id.PID, err)
}

// wait returns nil when all threads have ended: files are closed by then, though the
// process may still be a zombie of its parent.
func (h *handle) wait(ctx context.Context) error {
	for {
		// The slice bounds how late the end of ctx is seen, not how late the process's end is.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, 20)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: poll: %w", h.id.PID, err)
		}
		if n > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// end is the ladder: SIGTERM, SIGKILL after grace.
func (h *handle) end(ctx context.Context, grace time.Duration, log *zap.Logger) error {
	if err := h.signal(unix.SIGTERM); err != nil {
		return err
	}
	term, cancel := context.WithTimeout(ctx, grace)
	err := h.wait(term)
	cancel()
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		log.Info("etcd did not end by SIGTERM, sending SIGKILL", zap.Int("pid", h.id.PID), zap.Duration("grace", grace))
		if err := h.signal(unix.SIGKILL); err != nil {
			return err
		}
		if err = h.wait(ctx); err == nil {
			return nil
		}
	}
	state := "?"
	if s, _, serr := stat(h.id.PID); serr == nil {
		state = string(s)
	}
	return fmt.Errorf("stop etcd, process %d (state %s): %w: %w", h.id.PID, state, ErrStuck, err)
}

// endAll ends several at once; those that are gone count as ended.
func endAll(ctx context.Context, ids []StartID, grace time.Duration, log *zap.Logger) error {
	errs := make([]error, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		h, err := openHandle(id)
		if err != nil {
			if !errors.Is(err, os.ErrProcessDone) {
				errs[i] = err
			}
			continue
		}
		wg.Go(func() {
			defer h.close()
			errs[i] = h.end(ctx, grace, log)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
