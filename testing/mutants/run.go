package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const core = "internal/failover"

// check is one set of tests that may kill a mutant.
type check struct {
	name, pkg string
	args      []string
	limit     time.Duration // of processor time, set by prepare
}

const slowTests = "^(TestRandomWalks|TestKilledAtEveryAction)$"

func checks() []*check {
	return []*check{
		{name: "tables and scripts", pkg: core, args: []string{"-test.skip", slowTests}},
		{name: "walks and deaths", pkg: core, args: []string{"-test.run", slowTests}},
		{name: "explore", pkg: "testing/explore"},
		{name: "sim", pkg: "testing/sim"},
	}
}

// The ends of a mutant besides the names of the checks.
const (
	lives       = "lives"
	timedOut    = "timed out"
	noMutant    = "does not compile"
	leastLimit  = 10 * time.Second
	limitFactor = 10
	wallLimit   = 30 * time.Minute // for what waits and does nothing
)

// result is how a mutant ended, and by which test.
type result struct {
	mutant
	end, by string
}

// runner runs the mutants of one tree. All that stand in functions are compiled together: each function gets a clone for each of
// its mutants, and the environment chooses one when the tests start. Mutants of constants are compiled one by one. The files of the
// core are those of its start: whoever edits them meanwhile does not disturb the pass.
type runner struct {
	root, dir string
	files     []*source
	mutants   []mutant
	numbers   []int // of the mutants, for the environment; zero: does not compile, or stands in no function
	checks    []*check
}

// newRunner makes a runner with its own scratch directory, which close removes.
func newRunner(root string, files []*source, ms []mutant, some []*check) (*runner, error) {
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	return &runner{root: root, dir: dir, files: files, mutants: ms, checks: some}, nil
}

func (r *runner) close() error { return os.RemoveAll(r.dir) }

// goTool runs the go command on the tree with these texts in place of the core's files.
func (r *runner) goTool(ctx context.Context, work string, texts map[string][]byte, args ...string) (out string, err error) {
	replace := map[string]string{}
	for name, text := range texts {
		path := filepath.Join(work, name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(r.root, core, name)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(work, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{args[0], "-overlay", file}, args[1:]...)...)
	cmd.Dir = r.root
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// compile builds the tests of every package that a check runs, one binary each, in the directory work.
func (r *runner) compile(ctx context.Context, work string, texts map[string][]byte) (string, error) {
	for _, c := range r.checks {
		if out, err := r.goTool(ctx, work, texts, "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", binary(work, c), "./"+c.pkg); err != nil {
			return out, fmt.Errorf("build %s: %w", c.pkg, err)
		}
	}
	return "", nil
}

func binary(work string, c *check) string {
	return filepath.Join(work, strings.ReplaceAll(c.pkg, "/", "-")+".test")
}

var compilerLine = regexp.MustCompile(`(?m)^\S*?([^/\s:]+\.go):(\d+):\d+: `)

// prepare compiles the core with all its mutants, leaving out those that do not compile, and runs every check
// without a mutant, which sets the time limits.
func (r *runner) prepare(ctx context.Context, say func(string, ...any)) error {
	r.numbers = make([]int, len(r.mutants))
	for i, m := range r.mutants {
		if !m.alone {
			r.numbers[i] = i + 1
		}
	}
	texts := map[string][]byte{"mutants_selector.go": []byte(selector)}
	for {
		spans := map[string][]span{}
		for _, f := range r.files {
			var err error
			if texts[f.name], spans[f.name], err = f.instrument(r.mutants, r.numbers); err != nil {
				return err
			}
		}
		out, err := r.goTool(ctx, r.dir, texts, "build", "-gcflags=-e", "./"+core)
		if err == nil {
			break
		}
		dropped := 0
		for _, at := range compilerLine.FindAllStringSubmatch(out, -1) {
			line, err := strconv.Atoi(at[2])
			if err != nil {
				return err
			}
			for _, s := range spans[at[1]] {
				if s.from <= line && line < s.to && r.numbers[s.mutant-1] != 0 {
					r.numbers[s.mutant-1] = 0
					dropped++
				}
			}
		}
		if dropped == 0 || ctx.Err() != nil {
			return fmt.Errorf("build %s with its mutants: %w\n%s", core, err, out)
		}
		say("%d mutants do not compile", dropped)
	}
	if out, err := r.compile(ctx, r.dir, texts); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	for _, c := range r.checks {
		e, err := r.test(ctx, c, r.dir, 0, 10*time.Minute)
		if err == nil && !e.passed {
			err = fmt.Errorf("%s fails", e.by)
		}
		if err != nil {
			return fmt.Errorf("%s without a mutant: %w", c.name, err)
		}
		c.limit = max(leastLimit, limitFactor*e.used)
		say("%s: %.1fs of processor time without a mutant", c.name, e.used.Seconds())
	}
	return nil
}

// ending is how a run of a check ended.
type ending struct {
	passed, overran bool
	used            time.Duration // of processor time
	by              string        // the test that failed
}

// test runs a check as compiled in work with this mutant. The limit is one of processor time, so that a
// busy machine kills no mutant.
func (r *runner) test(ctx context.Context, c *check, work string, number int, limit time.Duration) (ending, error) {
	ctx, cancel := context.WithTimeout(ctx, wallLimit)
	defer cancel()
	seconds := strconv.Itoa(int(limit.Seconds()))
	args := append([]string{"-c", `ulimit -t "$0"; exec "$@"`, seconds, binary(work, c), "-test.failfast", "-test.timeout=0"}, c.args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Dir, cmd.WaitDelay = filepath.Join(r.root, c.pkg), time.Second
	cmd.Env = append(os.Environ(), "TWOK_ROOT="+r.root, fmt.Sprintf("%s=%d", chosen, number))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return ending{}, err
	}
	e := ending{passed: err == nil, used: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	killed := !cmd.ProcessState.Exited()
	e.overran = killed && (errors.Is(ctx.Err(), context.DeadlineExceeded) || e.used > limit-2*time.Second)
	if !e.passed && !e.overran {
		e.by = failed(string(out))
	}
	return e, nil
}

var failLine = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// failed is the innermost test that a run says failed.
func failed(out string) string {
	by := "?"
	for i, m := range failLine.FindAllStringSubmatch(out, -1) {
		if i == 0 || strings.HasPrefix(m[1], by+"/") {
			by = m[1]
		}
	}
	if strings.Contains(out, "panic: ") || strings.Contains(out, "fatal error: ") {
		by += " (panic)"
	}
	return by
}

// one tries the i-th mutant; what has to be built for it alone is built in the directory work.
func (r *runner) one(ctx context.Context, work string, i int) (result, error) {
	m, bins := r.mutants[i], r.dir
	switch {
	case m.alone:
		bins = work
		texts := map[string][]byte{}
		for _, f := range r.files {
			texts[f.name] = f.text
			if f.name == m.file {
				texts[f.name] = f.apply(m)
			}
		}
		out, err := r.compile(ctx, work, texts)
		if err != nil && (ctx.Err() != nil || !compilerLine.MatchString(out)) {
			return result{}, fmt.Errorf("%s: %w\n%s", m.key, err, out)
		}
		if err != nil {
			return result{m, noMutant, ""}, nil
		}
	case r.numbers[i] == 0:
		return result{m, noMutant, ""}, nil
	}
	for _, c := range r.checks {
		e, err := r.test(ctx, c, bins, r.numbers[i], c.limit)
		switch {
		case err != nil || ctx.Err() != nil:
			return result{}, fmt.Errorf("%s: %w", m.key, errors.Join(err, ctx.Err()))
		case e.overran:
			return result{m, timedOut, c.name}, nil
		case !e.passed:
			return result{m, c.name, e.by}, nil
		}
	}
	return result{m, lives, ""}, nil
}

// all tries every mutant, in several workers, and gives each result to done, one at a time.
func (r *runner) all(ctx context.Context, workers int, done func(result)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := 0
	for w := range workers {
		work := filepath.Join(r.dir, fmt.Sprint("worker", w))
		if err := os.MkdirAll(work, 0o755); err != nil {
			return err
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(r.mutants) {
					return
				}
				res, err := r.one(ctx, work, i)
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				done(res)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
