package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"twok/internal/lab"
)

// ErrNotAllowed: this user or this machine cannot make namespaces.
var ErrNotAllowed = errors.New("namespaces are not allowed here; run as root on a Linux machine (in a container: privileged), " +
	"or set TWOK_HARNESS=proxy for the subset that needs none")

// stage says how far in this program is: nothing, "init" or "inside".
const stage = "TWOK_SANDBOX"

// Outside says whether Enter would run the program again: what needs the machine's own network is done before.
func Outside() bool { return os.Getenv(stage) == "" && !entered }

// entered: this program came out of Enter inside.
var entered bool

// Enter runs the program again, with the same arguments, in namespaces of its own. There it
// returns inside true, and the program goes on. Outside it returns when that program has
// ended, with its exit status; the caller exits with it. An error is only returned outside.
func Enter() (inside bool, status int, err error) {
	switch os.Getenv(stage) {
	case "inside":
		entered = true
		return true, 0, os.Unsetenv(stage) // for programs of this kind that it starts
	case "init":
		status, err = beInit()
		return false, status, err
	}
	if err := lab.OnPath(context.Background(), os.Stderr, "ip", "nft", "strace"); err != nil {
		return false, 1, fmt.Errorf("the harness needs ip, nft and strace: %w; install iproute2, nftables and strace", err)
	}
	// The death signal comes when the thread that started the child ends, so it stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := start("init", &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		Pdeathsig:  syscall.SIGKILL, Setpgid: true,
	})
	if err != nil {
		return false, 1, fmt.Errorf("enter namespaces: %w: %w", ErrNotAllowed, err)
	}
	defer forward(p)()
	st, err := p.Wait()
	if err != nil {
		return false, 1, err
	}
	return false, exitStatus(st.Sys().(syscall.WaitStatus)), nil
}

func start(next string, attr *syscall.SysProcAttr) (*os.Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.Setenv(stage, next); err != nil {
		return nil, err
	}
	return os.StartProcess(exe, os.Args, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr,
	})
}

// forward sends the signals that end a program on to p, until stop.
func forward(p *os.Process) (stop func()) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	go func() {
		for s := range c {
			p.Signal(s)
		}
	}()
	return func() { signal.Stop(c); close(c) }
}

func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// beInit is PID 1 of the new namespace: it makes /proc fit, starts the program and reaps
// whatever ends. When it returns, and its process ends, the kernel ends all that is left.
func beInit() (int, error) {
	if os.Getpid() != 1 {
		return 1, fmt.Errorf("%s=init is for the harness itself; unset it", stage)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 1, fmt.Errorf("make the mounts private: %w: %w", ErrNotAllowed, err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return 1, fmt.Errorf("mount /proc: %w: %w", ErrNotAllowed, err)
	}
	p, err := start("inside", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL})
	if err != nil {
		return 1, fmt.Errorf("start the program in its namespaces: %w", err)
	}
	defer forward(p)()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD:
			time.Sleep(time.Millisecond) // cannot be while the program runs
		case err != nil:
			return 1, fmt.Errorf("wait for the program: %w", err)
		case pid == p.Pid:
			return exitStatus(ws), nil
		}
	}
}
