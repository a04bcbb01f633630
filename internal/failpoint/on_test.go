//go:build failpoints

package failpoint_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"twok/internal/failpoint"
)

const (
	stepA = "test/on/a"
	stepB = "test/on/b"
)

var (
	_ = failpoint.Declare(stepA)
	_ = failpoint.Declare(stepB)
)

// TestMain lets a child of this binary run into a failpoint.
func TestMain(m *testing.M) {
	if os.Getenv("FAILPOINT_CHILD") != "" {
		for range 3 {
			if err := failpoint.Hit(stepA); err != nil {
				os.Exit(7)
			}
			os.Stdout.WriteString("step\n")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, spec string) (string, *os.ProcessState, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=1", failpoint.Env+"="+spec)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the state says how it ended
	if cmd.ProcessState == nil {
		t.Fatalf("the child did not run for %q", spec)
	}
	return out.String(), cmd.ProcessState, errs.String()
}

// Kill, exit and error act at the hit that the specification names.
//
// Rules: none (test support).
func TestActions(t *testing.T) {
	if out, st, _ := child(t, ""); out != "step\nstep\nstep\n" || st.ExitCode() != 0 {
		t.Fatalf("no specification: %q, %v", out, st)
	}
	out, st, _ := child(t, stepA+"=kill@2")
	if ws := st.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL || out != "step\n" {
		t.Fatalf("kill@2: %q, %v", out, st)
	}
	if out, st, _ := child(t, stepA+"=exit"); st.ExitCode() != failpoint.ExitCode || out != "" {
		t.Fatalf("exit: %q, %v", out, st)
	}
	if out, st, _ := child(t, stepA+"=error@3"); st.ExitCode() != 7 || out != "step\nstep\n" {
		t.Fatalf("error@3: %q, %v", out, st)
	}
}

// A specification that cannot act is loud.
//
// Rules: none (test support).
func TestBadSpecificationPanics(t *testing.T) {
	for _, spec := range []string{"nosuch=kill", stepA, stepA + "=", stepA + "=boom", stepA + "=kill@0", stepA + "=kill@x",
		stepA + "=pause:", stepA + "=kill:x", stepA + "=kill;" + stepA + "=exit"} {
		_, st, errs := child(t, spec)
		if st.Success() || !strings.Contains(errs, "failpoint: ") {
			t.Errorf("%q: %v, stderr %q", spec, st, errs)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("hit of an undeclared name did not panic")
		}
	}()
	_ = failpoint.Hit("test/undeclared")
}

// A pause announces itself and ends when its file appears.
//
// Rules: none (test support).
func TestPauseSetList(t *testing.T) {
	defer failpoint.Set("")
	file := filepath.Join(t.TempDir(), "go@on")
	if err := failpoint.Set(stepA + "=pause:" + file + "@1; " + stepB + "=error"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- failpoint.Hit(stepA) }()
	for {
		if _, err := os.Stat(file + ".reached"); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-done:
		t.Fatal("the pause ended before its file existed")
	default:
	}
	if err := failpoint.Hit(stepB); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatalf("error: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if l := failpoint.List(); !slices.Equal(l, []string{stepA, stepB}) {
		t.Fatalf("List: %v", l)
	}
}
