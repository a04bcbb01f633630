package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"twok/internal/lab"
)

// Program is a form of twok.
type Program string

// The forms.
const (
	Twok       Program = "twok"       // as it is
	Failpoints Program = "failpoints" // with -tags failpoints
)

// env hands the path on to the program in its namespaces.
func (p Program) env() string { return "TWOK_EXPERIMENT_" + strings.ToUpper(string(p)) }

func (p Program) path() string {
	path := os.Getenv(p.env())
	if path == "" {
		panic("experiment: " + string(p) + " is not in Experiment.Programs, or Prepare was not called")
	}
	return path
}

// args are those of go build.
func (p Program) args(string) ([]string, error) {
	switch p {
	case Twok:
		return nil, nil
	case Failpoints:
		return []string{"-tags", "failpoints"}, nil
	}
	return nil, fmt.Errorf("no program %q", p)
}

// Prepare builds what the experiments need: etcd of these release lines, and their forms of twok, into dir. It
// may need the network and so comes before the namespaces.
func Prepare(ctx context.Context, es []Experiment, versions []string, dir string, log io.Writer) error {
	for _, v := range versions {
		if _, err := lab.Etcd(ctx, v, log); err != nil {
			return err
		}
	}
	root, err := lab.Root()
	if err != nil {
		return err
	}
	have := map[Program]bool{}
	for _, e := range es {
		for _, p := range e.Programs {
			if have[p] {
				continue
			}
			have[p] = true
			more, err := p.args(dir)
			if err != nil {
				return err
			}
			path := filepath.Join(dir, string(p))
			cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-trimpath"}, more...), "-o", path, "twok/cmd/twok")...)
			cmd.Dir = root
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("build twok (%s): %w: %s", p, err, out)
			}
			if err := os.Setenv(p.env(), path); err != nil {
				return err
			}
		}
	}
	return nil
}

// binPrefix begins the name of a directory with programs; its owner's process ID follows.
const binPrefix = "twok-experiment-bin-"

// BinDir makes a directory for the programs of this run, and removes those that killed runs left.
func BinDir() (dir string, remove func() error, err error) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), binPrefix+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, d := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(d), binPrefix), "-")
		if _, err := os.Stat("/proc/" + owner); errors.Is(err, os.ErrNotExist) {
			if err := os.RemoveAll(d); err != nil {
				return "", nil, fmt.Errorf("remove what process %s left: %w", owner, err)
			}
		}
	}
	if dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-", binPrefix, os.Getpid())); err != nil {
		return "", nil, err
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}
