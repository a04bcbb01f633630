package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Parent is a small process that is etcd's parent, as systemd with Restart=always or a kubelet is: it starts etcd again a tenth of a
// second after every end, and SIGTERM ends both. It has a life of its own: neither this program nor
// an agent has anything to do with it.
type Parent struct {
	s *Site
	x *proc
}

// The trap runs when wait is interrupted; etcd is a child of this shell, and nothing waits for a pipe.
const parentScript = `log=$0
trap 'kill -TERM $child; wait $child; exit 0' TERM
while :; do
	"$@" & child=$!
	echo $child >>"$log"
	wait $child
	sleep 0.1
done`

// StartParent starts the site's etcd under a parent of its own, in a cluster of mode External whose restarter is paused.
func (s *Site) StartParent() (*Parent, error) {
	if s.restarter == nil || s.mode() != External {
		return nil, fmt.Errorf("a parent for the etcd of %s: the mode is %s", s.Name, s.mode())
	}
	s.restarter.setPaused(true)
	x, err := s.c.procs.start(s.Name, s.EtcdLog, nil, append([]string{"sh", "-c", parentScript, s.parentLog()}, s.EtcdArgs()...)...)
	if err != nil {
		return nil, err
	}
	return &Parent{s, x}, nil
}

func (s *Site) parentLog() string { return filepath.Join(s.Dir, "parent.log") }

// PID is the parent's process.
func (p *Parent) PID() int { return p.x.pid() }

// Alive says whether the parent runs.
func (p *Parent) Alive() bool { return p.x.alive() }

// Stop ends etcd and its parent by SIGTERM, as stopping a unit does, and waits for both.
func (p *Parent) Stop() { p.x.end(syscall.SIGTERM, 20*time.Second) }

// Starts are the processes that the site's parents have started so far, oldest first.
func (p *Parent) Starts() ([]string, error) {
	b, err := os.ReadFile(p.s.parentLog())
	return strings.Fields(string(b)), err
}
