//go:build linux && (amd64 || arm64)

package systrace

import "golang.org/x/sys/unix"

// call tells where in the arguments of a system call its files are. An index is
// -1 where there is none.
type call struct {
	name   string
	fd     int // of the file that is changed
	dirfd  int // to which path is relative
	path   int
	dirfd2 int // likewise, of a second name
	path2  int
	data   int // address of what is written
	length int // number of bytes
	when   func(args [6]uint64) bool
	read   bool // it changes nothing: listed with Config.Reads
}

func onFD(name string) call {
	return call{name: name, fd: 0, dirfd: -1, path: -1, dirfd2: -1, path2: -1, data: -1, length: -1}
}

func write(name string, data, length int) call {
	c := onFD(name)
	c.data, c.length = data, length
	return c
}

// into is a copy whose target is the descriptor at index fd.
func into(name string, fd, length int) call {
	c := onFD(name)
	c.fd, c.length = fd, length
	return c
}

func onPath(name string, dirfd, path int) call {
	c := onFD(name)
	c.fd, c.dirfd, c.path = -1, dirfd, path
	return c
}

func twoPaths(name string, dirfd, path, dirfd2, path2 int) call {
	c := onPath(name, dirfd, path)
	c.dirfd2, c.path2 = dirfd2, path2
	return c
}

func (c call) only(when func(args [6]uint64) bool) call {
	c.when = when
	return c
}

func (c call) reads() call {
	c.read = true
	return c
}

func creates(i int) func([6]uint64) bool {
	return func(a [6]uint64) bool { return a[i]&(unix.O_CREAT|unix.O_TRUNC) != 0 }
}

// calls are the calls of both architectures; legacyCalls those that amd64 alone has.
var calls = map[uint64]call{
	unix.SYS_WRITE:           write("write", 1, 2),
	unix.SYS_PWRITE64:        write("pwrite64", 1, 2),
	unix.SYS_WRITEV:          onFD("writev"),
	unix.SYS_PWRITEV:         onFD("pwritev"),
	unix.SYS_PWRITEV2:        onFD("pwritev2"),
	unix.SYS_COPY_FILE_RANGE: into("copy_file_range", 2, 4),
	unix.SYS_SENDFILE:        into("sendfile", 0, 3),
	unix.SYS_SPLICE:          into("splice", 2, 4),
	unix.SYS_FTRUNCATE:       onFD("ftruncate"),
	unix.SYS_FALLOCATE:       onFD("fallocate"),
	unix.SYS_FCHMOD:          onFD("fchmod"),
	unix.SYS_FCHOWN:          onFD("fchown"),
	unix.SYS_FSETXATTR:       onFD("fsetxattr"),
	unix.SYS_FSYNC:           onFD("fsync"),
	unix.SYS_FDATASYNC:       onFD("fdatasync"),
	unix.SYS_SYNC_FILE_RANGE: onFD("sync_file_range"),
	unix.SYS_SYNCFS:          onFD("syncfs"),
	unix.SYS_MMAP: into("mmap", 4, -1).only(func(a [6]uint64) bool {
		return a[2]&unix.PROT_WRITE != 0 && a[3]&unix.MAP_SHARED != 0 && a[3]&unix.MAP_ANONYMOUS == 0
	}),
	unix.SYS_OPENAT:     onPath("openat", 0, 1).only(creates(2)),
	unix.SYS_TRUNCATE:   onPath("truncate", -1, 0),
	unix.SYS_MKDIRAT:    onPath("mkdirat", 0, 1),
	unix.SYS_MKNODAT:    onPath("mknodat", 0, 1),
	unix.SYS_UNLINKAT:   onPath("unlinkat", 0, 1),
	unix.SYS_FCHMODAT:   onPath("fchmodat", 0, 1),
	unix.SYS_FCHOWNAT:   onPath("fchownat", 0, 1),
	unix.SYS_UTIMENSAT:  onPath("utimensat", 0, 1),
	unix.SYS_SYMLINKAT:  onPath("symlinkat", 1, 2),
	unix.SYS_LINKAT:     twoPaths("linkat", 0, 1, 2, 3),
	unix.SYS_RENAMEAT:   twoPaths("renameat", 0, 1, 2, 3),
	unix.SYS_RENAMEAT2:  twoPaths("renameat2", 0, 1, 2, 3),
	unix.SYS_READ:       write("read", -1, 2).reads(),
	unix.SYS_PREAD64:    write("pread64", -1, 2).reads(),
	unix.SYS_GETDENTS64: onFD("getdents64").reads(),
	unix.SYS_FSTAT:      onFD("fstat").reads(),
	unix.SYS_FLOCK:      onFD("flock").reads(),
	unix.SYS_LSEEK:      onFD("lseek").reads(),
	unix.SYS_STATFS:     onPath("statfs", -1, 0).reads(),
}

func init() {
	for nr, c := range legacyCalls {
		calls[nr] = c
	}
}

// lookOpen is an open that creates nothing.
var lookOpen = onPath("open", 0, 1).reads()

// find returns the call, nil if it is of no interest.
func find(nr uint64, args [6]uint64, reads bool) *call {
	c, ok := calls[nr]
	if ok && c.when != nil && !c.when(args) {
		if ok = nr == unix.SYS_OPENAT; ok {
			c = lookOpen
		}
	}
	if !ok || c.read && !reads {
		return nil
	}
	return &c
}
