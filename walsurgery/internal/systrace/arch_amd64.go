//go:build linux

package systrace

import "golang.org/x/sys/unix"

var legacyCalls = map[uint64]call{
	unix.SYS_OPEN:       onPath("openat", -1, 0).only(creates(1)),
	unix.SYS_CREAT:      onPath("openat", -1, 0),
	unix.SYS_MKDIR:      onPath("mkdirat", -1, 0),
	unix.SYS_RMDIR:      onPath("unlinkat", -1, 0),
	unix.SYS_UNLINK:     onPath("unlinkat", -1, 0),
	unix.SYS_CHMOD:      onPath("fchmodat", -1, 0),
	unix.SYS_CHOWN:      onPath("fchownat", -1, 0),
	unix.SYS_LCHOWN:     onPath("fchownat", -1, 0),
	unix.SYS_SYMLINK:    onPath("symlinkat", -1, 1),
	unix.SYS_LINK:       twoPaths("linkat", -1, 0, -1, 1),
	unix.SYS_RENAME:     twoPaths("renameat", -1, 0, -1, 1),
	unix.SYS_NEWFSTATAT: onPath("newfstatat", 0, 1).reads(),
}

// skipCall makes the thread, stopped at the entry of a call, not make it.
func skipCall(tid int) error {
	return changeRegs(tid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// setArg replaces an argument at the entry of a call.
func setArg(tid, i int, v uint64) error {
	return changeRegs(tid, func(r *unix.PtraceRegs) {
		*[]*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9}[i] = v
	})
}

// setResult replaces the result at the exit of a call.
func setResult(tid int, v int64) error {
	return changeRegs(tid, func(r *unix.PtraceRegs) { r.Rax = uint64(v) })
}

func changeRegs(tid int, change func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	change(&r)
	return unix.PtraceSetRegs(tid, &r)
}
