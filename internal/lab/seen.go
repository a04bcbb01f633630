package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ProcState is what a process looks like from outside.
type ProcState string

// The states. Frozen is stopped by a signal.
const (
	Down    ProcState = "down"
	Frozen  ProcState = "frozen"
	Running ProcState = "running"
)

// Seen is what runs at the site now. It may be asked for while the site is being changed.
func (s *Site) Seen() (etcd, agent ProcState, err error) {
	etcd, agent = Down, Down
	pids, err := s.c.procs.marked(s.Name)
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		line, lerr := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, serr := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || lerr != nil || serr != nil {
			continue // it has ended
		}
		state := Running
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && rest[0] == 'T' {
			state = Frozen
		}
		switch args := bytes.Split(line, []byte{0}); {
		case filepath.Base(exe) == "etcd":
			etcd = state
		case len(args) > 1 && string(args[1]) == "agent":
			agent = state
		}
	}
	return etcd, agent, err
}
