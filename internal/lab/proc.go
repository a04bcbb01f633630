package lab

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// marker is the environment variable that every process of a lab and all its
// children carry: TWOK_LAB=<lab>/<site>. It finds children that a killed agent left.
const marker = "TWOK_LAB="

// procs starts processes and ends all of them. A guard, a shell on the other
// end of a pipe, ends them if this program dies without having done so.
type procs struct {
	id    string
	place *Place
	guard *exec.Cmd
	pipe  io.WriteCloser

	mu     sync.Mutex
	closed bool
}

const guardScript = `read -r _ && exit 0
for round in 1 2 3 4 5 6 7 8 9 10; do
	for p in /proc/[0-9]*; do
		if tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -q "^$0/"; then kill -9 "${p#/proc/}"; fi
	done
	sleep 0.1
done 2>/dev/null`

func newProcs(place *Place) (*procs, error) {
	var raw [8]byte
	rand.Read(raw[:])
	p := &procs{id: hex.EncodeToString(raw[:]), place: place}
	p.guard = exec.Command("sh", "-c", guardScript, marker+p.id)
	p.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if p.pipe, err = p.guard.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.guard.Start(); err != nil {
		return nil, fmt.Errorf("start the guard that ends what a killed lab leaves: %w", err)
	}
	return p, nil
}

// proc is one process. done is closed once it was reaped.
type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// start runs argv in a process group of its own, output appended to logPath.
func (p *procs) start(site, logPath string, env []string, argv ...string) (*proc, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("start %s: the lab is closed", argv[0])
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(append(os.Environ(), env...), marker+p.id+"/"+site)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.place.in(site, cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	x := &proc{cmd: cmd, done: make(chan struct{})}
	go func() { cmd.Wait(); close(x.done) }()
	return x, nil
}

func (x *proc) pid() int { return x.cmd.Process.Pid }

func (x *proc) alive() bool {
	if x == nil {
		return false
	}
	select {
	case <-x.done:
		return false
	default:
		return true
	}
}

// reaped waits until a process that was killed is not alive any more: it is dead a moment before it is reaped.
func (x *proc) reaped() {
	if x != nil {
		<-x.done
	}
}

// signal is a no-op for a process that ended.
func (x *proc) signal(s os.Signal) {
	if x.alive() {
		x.cmd.Process.Signal(s)
	}
}

// end sends s and waits; after patience it kills.
func (x *proc) end(s os.Signal, patience time.Duration) {
	if !x.alive() {
		return
	}
	x.signal(s)
	select {
	case <-x.done:
	case <-time.After(patience):
		x.signal(syscall.SIGKILL)
		<-x.done
	}
}

// marked lists the living processes of site; of every site if it is empty.
func (p *procs) marked(site string) ([]int, error) {
	want := []byte(marker + p.id + "/" + site)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue // ended, or somebody else's
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(kv, want) || site == "" && bytes.HasPrefix(kv, want) {
				if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && !dying(dir) {
					pids = append(pids, pid)
				}
				break
			}
		}
	}
	return pids, nil
}

// dying: a zombie, or dead.
func dying(dir string) bool {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return true
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	return !ok || rest[0] == 'Z' || rest[0] == 'X'
}

// kill ends every process of site by SIGKILL, freezing all of them first so
// that none can react to another's death, and waits until they are gone.
func (p *procs) kill(site string) error {
	deadline := time.Now().Add(10 * time.Second)
	sent := map[int]bool{}
	for {
		pids, err := p.marked(site)
		if err != nil {
			return err
		}
		for pid := range sent {
			// On its way out a process has no environment any more, and is not dead yet.
			if dying(filepath.Join("/proc", strconv.Itoa(pid))) {
				delete(sent, pid)
			}
		}
		if len(pids) == 0 && len(sent) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of site %q survive SIGKILL", pids, site)
		}
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			for _, pid := range pids {
				sent[pid] = true
				if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
					return fmt.Errorf("send %s to process %d: %w", s, pid, err)
				}
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// close kills everything and the guard.
func (p *procs) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.kill("")
	if err != nil {
		return err // the guard stays and tries again when this program ends
	}
	p.pipe.Write([]byte("done\n"))
	p.pipe.Close()
	p.guard.Wait()
	return nil
}

// restarter keeps a process running as a kubelet would: it starts it again a
// tenth of a second after every end, whatever the reason, until it is paused.
type restarter struct {
	start func() (*proc, error)

	mu      sync.Mutex
	paused  bool
	current *proc
	err     error
	wake    chan struct{} // closed and replaced when paused changed
	stop    chan struct{}
	stopped chan struct{}
}

func newRestarter(start func() (*proc, error)) *restarter {
	r := &restarter{start: start, paused: true, wake: make(chan struct{}), stop: make(chan struct{}), stopped: make(chan struct{})}
	go r.run()
	return r
}

func (r *restarter) run() {
	defer close(r.stopped)
	for {
		r.mu.Lock()
		paused, wake := r.paused, r.wake
		if !paused {
			r.current, r.err = r.start() // under the lock: pause waits for it
		}
		x, err := r.current, r.err
		r.mu.Unlock()
		switch {
		case paused:
			select {
			case <-wake:
			case <-r.stop:
				return
			}
			continue
		case err == nil:
			select {
			case <-x.done:
			case <-r.stop:
				return
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.stop:
			return
		}
	}
}

// setPaused: when setPaused(true) returned, nothing is started any more.
func (r *restarter) setPaused(p bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused != p {
		r.paused = p
		close(r.wake)
		r.wake = make(chan struct{})
	}
}

// running is the process that was started last, nil before the first.
func (r *restarter) running() *proc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// close does not end the process.
func (r *restarter) close() {
	r.setPaused(true)
	close(r.stop)
	<-r.stopped
}
