package experiment

import (
	"context"
	"encoding/json"
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
	NoToken    Program = "notoken"    // without P4 (a)'s conditions: any token will do
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
func (p Program) args(root, dir string) ([]string, error) {
	switch p {
	case NoToken:
		overlay, err := withoutToken(root, dir)
		return []string{"-overlay", overlay}, err
	case Twok:
		return nil, nil
	case Failpoints:
		return []string{"-tags", "failpoints"}, nil
	}
	return nil, fmt.Errorf("no program %q", p)
}

// The rule that NoToken lacks. In its place a token of any generation, with any names, is as good as this one: a
// voter of two may claim.
const (
	tokenRule   = "\tcase t.Generation != rec.Generation:\n\t\treturn TokenGeneration\n\tcase t.Cluster != d.Cluster:\n"
	noTokenRule = "\tcase true:\n\t\treturn None\n\tcase t.Cluster != d.Cluster:\n"
)

// withoutToken writes an overlay for go build, which replaces one file of the core.
func withoutToken(root, dir string) (string, error) {
	path := filepath.Join(root, "internal", "failover", "eligible.go")
	src, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), tokenRule); n != 1 {
		return "", fmt.Errorf("switch P4 (a) off: its clause is %d times in %s; make tokenRule say what is there", n, path)
	}
	changed := filepath.Join(dir, "eligible.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, errors.Join(os.WriteFile(changed, []byte(strings.Replace(string(src), tokenRule, noTokenRule, 1)), 0o644), os.WriteFile(file, overlay, 0o644))
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
			more, err := p.args(root, dir)
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
