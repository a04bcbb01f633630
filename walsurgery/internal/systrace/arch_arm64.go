//go:build linux

package systrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

var legacyCalls = map[uint64]call{
	unix.SYS_FSTATAT: onPath("newfstatat", 0, 1).reads(),
}

// skipCall makes the thread, stopped at the entry of a call, not make it.
func skipCall(tid int) error {
	none := int32(-1)
	v := unix.Iovec{Base: (*byte)(unsafe.Pointer(&none))}
	v.SetLen(4)
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), unix.NT_ARM_SYSTEM_CALL, uintptr(unsafe.Pointer(&v)), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// setArg replaces an argument at the entry of a call.
func setArg(tid, i int, v uint64) error {
	return changeRegs(tid, func(r *unix.PtraceRegsArm64) { r.Regs[i] = v })
}

// setResult replaces the result at the exit of a call.
func setResult(tid int, v int64) error {
	return changeRegs(tid, func(r *unix.PtraceRegsArm64) { r.Regs[0] = uint64(v) })
}

func changeRegs(tid int, change func(*unix.PtraceRegsArm64)) error {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(tid, unix.NT_PRSTATUS, &r); err != nil {
		return err
	}
	change(&r)
	return unix.PtraceSetRegSetArm64(tid, unix.NT_PRSTATUS, &r)
}
