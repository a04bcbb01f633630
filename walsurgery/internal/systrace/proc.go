//go:build linux && (amd64 || arm64)

package systrace

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func fdPath(tid int, fd int32) string {
	p, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, fd))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(p, " (deleted)")
}

// position returns the file position of a descriptor, -1 if it cannot be read.
func position(tid int, fd int32) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", tid, fd))
	if err != nil {
		return -1
	}
	f := strings.Fields(string(b))
	if len(f) < 2 || f[0] != "pos:" {
		return -1
	}
	n, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// memory reads the program's memory, as far as it can be read.
func memory(tid int, addr uint64, n int) []byte {
	if n <= 0 {
		return nil
	}
	b := make([]byte, n)
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(n)
	got, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}, 0)
	if err != nil {
		return nil
	}
	return b[:got]
}

// text reads a string that ends with a zero, up to the end of its second page.
func text(tid int, addr uint64) string {
	const page = 4096
	b := memory(tid, addr, int(page-addr%page))
	if bytes.IndexByte(b, 0) < 0 {
		b = append(b, memory(tid, addr+uint64(len(b)), page)...)
	}
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
