package network_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A program that is killed from outside, or in its namespaces, itself or their init, leaves nothing, and whoever started it sees the end.
//
// Rules: none (the harness).
func TestKilled(t *testing.T) {
	root(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// How far above the process of a site is what is killed: the program, its init, and what was started.
	for above, what := range []string{"the program in its namespaces", "their init", "the program outside"} {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), helper+"=1")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatalf("the program says %q: %v", line, err)
			}
			at := sleeps(t)
			if len(at) != 1 {
				t.Fatalf("%d sleeps run, want the program's", len(at))
			}
			victim := parent(t, at[0])
			for range above {
				victim = parent(t, victim)
			}
			if outside := victim == cmd.Process.Pid; outside != (above == 2) || victim == os.Getpid() {
				t.Fatalf("process %d is not %s; process %d was started", victim, what, cmd.Process.Pid)
			}
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); err == nil || above < 2 && ws.ExitStatus() != 128+int(syscall.SIGKILL) {
					t.Errorf("what was started ends with %v, want the status of a kill", err)
				}
			case <-time.After(patience):
				t.Fatal("what was started goes on")
			}
			for end := time.Now().Add(patience); len(sleeps(t)) > 0; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the process of a site outlived its program")
				}
			}
		})
	}
}

// sleeps are the living "sleep 1000" below this program's PID namespace.
func sleeps(t *testing.T) (pids []int) {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if b, err := os.ReadFile("/proc/" + d.Name() + "/cmdline"); err == nil && strings.HasPrefix(string(b), "sleep\x001000") {
			pid, err := strconv.Atoi(d.Name())
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// parent is the process that started this one.
func parent(t *testing.T, pid int) (ppid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(status), "\nPPid:")
	if _, err := fmt.Sscan(rest, &ppid); !ok || err != nil {
		t.Fatalf("the parent of process %d: %v in %s", pid, err, status)
	}
	return ppid
}
