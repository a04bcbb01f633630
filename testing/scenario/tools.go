package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"twok/internal/lab"
	"twok/testing/cluster"
)

// The programs under test, as the outer program hands them to the one in its namespaces.
const (
	envTwok       = "TWOK_SAFETY_TWOK"
	envFailpoints = "TWOK_SAFETY_FAILPOINTS"
)

// Prepare builds what the cells need and is not there: etcd, stores, and both forms of twok but those
// that are given. It may need the network, which there is none of in the namespaces, so it comes before them; the programs
// are handed on in the environment. clean removes what it built for this run.
func Prepare(ctx context.Context, cells []Cell, twok, failpoints string, log io.Writer) (clean func() error, err error) {
	clean = func() error { return nil }
	have := map[string]bool{}
	once := func(what string, get func() error) {
		if !have[what] && err == nil {
			have[what], err = true, get()
		}
	}
	for _, c := range cells {
		o := cluster.Options{Minor: c.Minor}
		if c.Fault.Prepare != nil {
			c.Fault.Prepare(&o)
		}
		for _, m := range append(slices.Collect(maps.Values(o.MinorOf)), c.Minor) {
			once("etcd "+m, func() error { _, err := lab.Etcd(ctx, m, log); return err })
		}
		switch c.Arbiter {
		case "etcd": // the newest one
			m := lab.Minors[len(lab.Minors)-1]
			once("etcd "+m, func() error { _, err := lab.Etcd(ctx, m, log); return err })
		case "s3":
			once("s3", func() error { _, err := lab.Versitygw(ctx, log); return err })
		case "configmap":
			once("configmap", func() error { _, err := lab.KubeAPIServer(ctx, log); return err })
		}
	}
	if err != nil {
		return clean, err
	}
	if err := reap(); err != nil {
		return clean, err
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", binPrefix, os.Getpid()))
	if err != nil {
		return clean, err
	}
	clean = func() error { return os.RemoveAll(dir) }
	for _, b := range []struct {
		env, given string
		args       []string
	}{{envTwok, twok, nil}, {envFailpoints, failpoints, []string{"-tags", "failpoints"}}} {
		path := filepath.Join(dir, b.env)
		if b.given != "" {
			if path, err = filepath.Abs(b.given); err != nil {
				return clean, err
			}
			if _, err := os.Stat(path); err != nil {
				return clean, err
			}
		} else if out, err := exec.CommandContext(ctx, "go", append(append([]string{"build", "-trimpath"}, b.args...), "-o", path, "twok/cmd/twok")...).CombinedOutput(); err != nil {
			return clean, fmt.Errorf("build twok: %w: %s", err, out)
		}
		if err := os.Setenv(b.env, path); err != nil {
			return clean, err
		}
	}
	return clean, nil
}

// The name of a run's directory begins so; its owner's process ID follows.
const (
	binPrefix = "twok-safety-bin-" // programs
	runPrefix = "twok-safety-run-" // what go test's scenarios leave
	keptFile  = "kept"             // it is there if one of them was red
)

// reap removes what a killed run left: programs, and scenarios of go test that nobody needs to look at. Nothing else of a run outlives it.
func reap() error {
	for _, prefix := range []string{binPrefix, runPrefix} {
		dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), prefix), "-")
			if _, err := strconv.Atoi(owner); err != nil {
				continue
			}
			_, lives := os.Stat("/proc/" + owner)
			_, kept := os.Stat(filepath.Join(dir, keptFile))
			if errors.Is(lives, os.ErrNotExist) && errors.Is(kept, os.ErrNotExist) {
				if err := os.RemoveAll(dir); err != nil {
					return fmt.Errorf("remove what process %s left: %w", owner, err)
				}
			}
		}
	}
	return nil
}

// programs are what Prepare handed on.
func programs() (twok, failpoints string, err error) {
	if twok, failpoints = os.Getenv(envTwok), os.Getenv(envFailpoints); twok == "" || failpoints == "" {
		err = errors.New("scenario: Prepare was not called")
	}
	return twok, failpoints, err
}
