package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Ports returns n ports of 127.0.0.1 on which nobody listens.
func Ports(n int) ([]int, error) {
	var ports []int
	seen := map[int]bool{}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("twok-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for tries := 0; len(ports) < n; tries++ {
		if tries > 10_000 {
			return nil, errors.New("no free ports between 10000 and 32000 on 127.0.0.1")
		}
		port := 10_000 + rand.IntN(22_000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil || seen[port] {
			if err == nil {
				l.Close()
			}
			continue
		}
		l.Close()
		mine, err := reserve(filepath.Join(dir, strconv.Itoa(port)))
		if err != nil {
			return nil, err
		}
		if !mine {
			continue
		}
		seen[port] = true
		ports = append(ports, port)
	}
	return ports, nil
}

// reserve takes a lock for the life of this process. False: another process has it, or this one already.
func reserve(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, errors.Join(f.Close(), unexpected(err))
	}
	reserved.Lock()
	defer reserved.Unlock()
	reserved.files = append(reserved.files, f)
	return true, nil
}

func unexpected(err error) error {
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	return err
}

// reserved keeps the files from being closed by the garbage collector.
var reserved struct {
	sync.Mutex
	files []*os.File
}
