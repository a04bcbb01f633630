package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A signal that the agent's parent had it ignore stays ignored, as nohup means it; the others end the agent.
//
// Rules: F4.
func TestIgnoredSignals(t *testing.T) {
	twok, err := builtTwok()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		trap    string
		ignored map[syscall.Signal]bool
	}{
		{"true", nil},
		{`trap "" HUP`, map[syscall.Signal]bool{syscall.SIGHUP: true}},
		{`trap "" HUP INT`, map[syscall.Signal]bool{syscall.SIGHUP: true, syscall.SIGINT: true}},
	} {
		t.Run(c.trap, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.trap+`; exec "$@"`, "sh", twok, "agent",
				"--data-dir", filepath.Join(t.TempDir(), "later"), "--arbiter", "http://127.0.0.1:1/r", "--election-timeout", "1s")
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer cmd.Process.Kill()
			for lines := bufio.NewScanner(stderr); ; {
				if !lines.Scan() {
					t.Fatal("the agent ended")
				}
				if strings.Contains(lines.Text(), "waiting for etcd's data directory") {
					break
				}
			}
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			mask := map[string]uint64{}
			for line := range strings.Lines(string(b)) {
				if k, v, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(k, "Sig") {
					mask[k], _ = strconv.ParseUint(strings.TrimSpace(v), 16, 64)
				}
			}
			for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
				bit := uint64(1) << (sig - 1)
				want := c.ignored[sig] || signal.Ignored(sig) // of this test's own parent
				if got := mask["SigIgn"]&bit != 0; got != want || mask["SigCgt"]&bit != 0 == got {
					t.Errorf("%v: ignored %t, caught %t; want ignored %t", sig, got, mask["SigCgt"]&bit != 0, want)
				}
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("ended by SIGTERM: %v", err)
			}
		})
	}
}
