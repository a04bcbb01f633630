//go:build linux && (amd64 || arm64)

package systrace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config says what to run.
type Config struct {
	Path  string   // of the program
	Args  []string // without the program's name
	Env   []string // added to this process's
	Root  string   // the directory that is watched
	Reads bool     // list also calls that change nothing
	Limit time.Duration
}

// Result is what a run did.
type Result struct {
	Ops    []Op
	Fired  bool // the fault's op came up
	State  syscall.WaitStatus
	Output string // standard output and error
}

// Killed tells whether the program was ended by SIGKILL.
func (r Result) Killed() bool { return r.State.Signaled() && r.State.Signal() == syscall.SIGKILL }

// Run runs the program under f, or undisturbed if f is nil, until it has ended. It
// returns an error where it could not trace, or when Config.Limit (default a
// minute) has passed; the program is then dead.
func Run(c Config, f *Fault) (Result, error) {
	type reply struct {
		r   Result
		err error
	}
	done := make(chan reply)
	go func() {
		// ptrace belongs to a thread. This one ends with the goroutine.
		runtime.LockOSThread()
		r, err := run(c, f)
		done <- reply{r, err}
	}()
	got := <-done
	if got.err != nil {
		return got.r, fmt.Errorf("trace %s: %w", c.Path, got.err)
	}
	return got.r, nil
}

func run(c Config, f *Fault) (Result, error) {
	root, err := filepath.EvalSymlinks(c.Root)
	if err != nil {
		return Result{}, err
	}
	fd, err := unix.MemfdCreate("systrace", unix.MFD_CLOEXEC)
	if err != nil {
		return Result{}, err
	}
	out := os.NewFile(uintptr(fd), "output")
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Result{}, err
	}
	defer null.Close()
	// A process group of its own: waiting for it takes no other child's status.
	p, err := os.StartProcess(c.Path, append([]string{c.Path}, c.Args...), &os.ProcAttr{
		Env: append(os.Environ(), c.Env...), Files: []*os.File{null, out, out}, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true}})
	if err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w: ptrace is not permitted here: allow a process to trace its own children "+
				"(kernel.yama.ptrace_scope at most 1, or the capability SYS_PTRACE and a seccomp profile with ptrace)", err)
		}
		return Result{}, err
	}
	t := &tracer{pid: p.Pid, roots: []string{root, filepath.Clean(c.Root)}, reads: c.Reads, fault: f,
		known: map[int]bool{}, open: map[int]int{}, count: map[string]int{}}
	limit := c.Limit
	if limit == 0 {
		limit = time.Minute
	}
	late := make(chan struct{})
	timer := time.AfterFunc(limit, func() { close(late); _ = p.Kill() })
	err = t.loop()
	timer.Stop()
	if err != nil {
		t.end()
	}
	_ = p.Release()
	select {
	case <-late:
		err = errors.Join(fmt.Errorf("it did not end within %s", limit), err)
	default:
	}
	if _, serr := out.Seek(0, io.SeekStart); serr != nil {
		return t.res, serr
	}
	text, rerr := io.ReadAll(out)
	t.res.Output = string(text)
	return t.res, errors.Join(err, rerr)
}

type tracer struct {
	pid    int
	roots  []string
	reads  bool
	fault  *Fault
	next   string // ShortFail: call and path of the op that fails next
	known  map[int]bool
	open   map[int]int // thread -> index of the op it is in
	count  map[string]int
	clock  int
	killed bool
	res    Result
}

const options = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE |
	unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK

// loop traces from the stop at the first exec to the end.
func (t *tracer) loop() error {
	var ws syscall.WaitStatus
	if _, err := wait(t.pid, &ws); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if !ws.Stopped() {
		t.res.State = ws
		return fmt.Errorf("it did not stop at its beginning: ptrace does not work here (status %#x)", int(ws))
	}
	if err := unix.PtraceSetOptions(t.pid, options); err != nil {
		return fmt.Errorf("ptrace options: %w", err)
	}
	t.known[t.pid] = true
	if err := t.resume(t.pid, 0); err != nil {
		return err
	}
	for {
		tid, err := wait(-t.pid, &ws)
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if ws.Exited() || ws.Signaled() {
			if tid == t.pid { // the last of its threads
				t.res.State = ws
				return nil
			}
			continue
		}
		sig := 0
		switch s := ws.StopSignal(); {
		case s == syscall.SIGTRAP|0x80:
			if err := t.stopped(tid); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		case s == syscall.SIGTRAP && ws.TrapCause() > 0:
		case s == syscall.SIGSTOP && !t.known[tid]: // how a new thread begins
		default:
			sig = int(s)
		}
		t.known[tid] = true
		if t.killed {
			continue // it wakes up to die
		}
		if err := t.resume(tid, sig); err != nil {
			return err
		}
	}
}

func wait(pid int, ws *syscall.WaitStatus) (int, error) {
	for {
		tid, err := syscall.Wait4(pid, ws, unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return tid, err
		}
	}
}

func (t *tracer) resume(tid, sig int) error {
	if err := unix.PtraceSyscall(tid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("ptrace: %w", err)
	}
	return nil
}

// end kills what is left and reaps it.
func (t *tracer) end() {
	t.kill()
	var ws syscall.WaitStatus
	for {
		tid, err := wait(-t.pid, &ws)
		if err != nil || tid == t.pid && (ws.Exited() || ws.Signaled()) {
			return
		}
	}
}

func (t *tracer) kill() {
	t.killed = true
	_ = unix.Kill(t.pid, unix.SIGKILL)
}

// callInfo is struct ptrace_syscall_info.
type callInfo struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	nr   uint64 // at the exit: the result
	args [6]uint64
	_    uint64
}

const (
	atEntry = 1 // PTRACE_SYSCALL_INFO_ENTRY
	atExit  = 2
)

// stopped handles a thread at the entry or the exit of a call.
func (t *tracer) stopped(tid int) error {
	var in callInfo
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(in), uintptr(unsafe.Pointer(&in)), 0, 0); e != 0 {
		return fmt.Errorf("ptrace: what call: %w (Linux 5.3 or later is needed)", e)
	}
	switch in.op {
	case atEntry:
		return t.enter(tid, in)
	case atExit:
		return t.exit(tid, int64(in.nr))
	}
	return nil
}

func (t *tracer) enter(tid int, in callInfo) error {
	c := find(in.nr, in.args, t.reads)
	if c == nil {
		return nil
	}
	op := Op{Call: c.name, Read: c.read, Off: -1, Len: -1}
	if c.length >= 0 {
		op.Len = int64(in.args[c.length])
	}
	switch {
	case c.fd >= 0:
		fd := int32(in.args[c.fd])
		op.Reply = fd == 1 && op.Writes()
		op.Path = t.rel(fdPath(tid, fd))
		if op.Writes() && op.Path != "" {
			op.Off = position(tid, fd)
		}
	default:
		op.Path = t.rel(t.name(tid, in.args, c.dirfd, c.path))
	}
	if c.path2 >= 0 {
		to := t.rel(t.name(tid, in.args, c.dirfd2, c.path2))
		if op.Path == "" || to == "" {
			op.Path += to // one of the two is outside
		} else {
			op.To = to
		}
	}
	if op.Path == "" && !op.Reply {
		return nil
	}
	if c.data >= 0 {
		op.Data = memory(tid, in.args[c.data], int(min(op.Len, 1<<20)))
	}
	t.count[op.Call+" "+op.Path+">"+op.To]++
	op.Nth = t.count[op.Call+" "+op.Path+">"+op.To]
	t.clock++
	op.Begin = t.clock
	t.open[tid] = len(t.res.Ops)
	t.res.Ops = append(t.res.Ops, op)
	if op.Reply {
		return nil
	}
	if t.next != "" && t.next == op.Call+" "+op.Path {
		return skipCall(tid)
	}
	if !t.hit(op) {
		return nil
	}
	t.res.Fired = true
	switch t.fault.Do {
	case KillBefore:
		t.kill()
		return skipCall(tid)
	case Fail:
		return skipCall(tid)
	case Short, ShortKill, ShortFail:
		if c.length < 0 || t.fault.Len < 0 || t.fault.Len > op.Len {
			return fmt.Errorf("%s cannot be made %d bytes short", op.Key(), t.fault.Len)
		}
		return setArg(tid, c.length, uint64(t.fault.Len))
	}
	return nil
}

func (t *tracer) exit(tid int, ret int64) error {
	i, ok := t.open[tid]
	if !ok {
		return nil
	}
	delete(t.open, tid)
	op := &t.res.Ops[i]
	var err error
	switch {
	case t.next != "" && t.next == op.Call+" "+op.Path:
		t.next = ""
		ret = -int64(t.fault.Err)
		err = setResult(tid, ret)
	case t.hit(*op):
		switch t.fault.Do {
		case Fail:
			ret = -int64(t.fault.Err)
			err = setResult(tid, ret)
		case KillAfter, ShortKill:
			t.kill()
		case ShortFail:
			t.next = op.Call + " " + op.Path
		}
	}
	t.clock++
	op.End, op.Ret = t.clock, ret
	if ret < 0 && ret > -4096 {
		op.Err = syscall.Errno(-ret)
	}
	return err
}

func (t *tracer) hit(op Op) bool { return t.fault != nil && !op.Reply && op.Key() == t.fault.At }

// rel makes path relative to the root, "" if it is not below it.
func (t *tracer) rel(path string) string {
	for _, root := range t.roots {
		if path == root {
			return "."
		}
		if in, ok := strings.CutPrefix(path, root+"/"); ok {
			return in
		}
	}
	return ""
}

// name resolves a path argument.
func (t *tracer) name(tid int, args [6]uint64, dirfd, path int) string {
	p := text(tid, args[path])
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	dir := fmt.Sprintf("/proc/%d/cwd", tid)
	if dirfd >= 0 && int32(args[dirfd]) != unix.AT_FDCWD {
		return filepath.Join(fdPath(tid, int32(args[dirfd])), p)
	}
	cwd, err := os.Readlink(dir)
	if err != nil {
		return ""
	}
	return filepath.Join(cwd, p)
}
