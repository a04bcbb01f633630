package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"twok/internal/lab"
)

// Config says what Play plays.
type Config struct {
	Out      string // directory
	Versions []string
	Cases    []string // only those that match one of these (path.Match); none: all
	Runs     int      // more runs of each cell; if 0
	Total    int      // as many as are missing to this
	// For ends Play after the session that is under way then. 0: never.
	For time.Duration
	Log io.Writer
}

type cell struct {
	e             *Experiment
	version, name string
	left, failed  int
}

// giveUp is after how many failed sessions in a row a cell is left.
const giveUp = 2

// Play plays sessions, the cell that has most left first, until nothing is left. Its error says what failed, too.
func Play(ctx context.Context, es []Experiment, cfg Config) error {
	runs, err := Read(cfg.Out)
	if err != nil {
		return err
	}
	cells, err := plan(es, cfg, runs)
	if err != nil {
		return err
	}
	begin := time.Now()
	var errs []error
	for {
		c := next(cells)
		if c == nil {
			break
		}
		if cfg.For > 0 && time.Since(begin) > cfg.For {
			left := 0
			for _, c := range cells {
				left += c.left
			}
			fmt.Fprintf(cfg.Log, "the time is over, %d runs are left\n", left)
			break
		}
		made, err := session(ctx, c, cfg)
		c.left -= made
		if err == nil && made == 0 {
			err = fmt.Errorf("%s %s %s: a session without a run", c.e.Name, c.version, c.name)
		}
		if err != nil {
			errs = append(errs, err)
			fmt.Fprintln(cfg.Log, "error:", err)
			if c.failed++; c.failed >= giveUp {
				c.left = 0
			}
		} else {
			c.failed = 0
		}
		if err := saveSummary(cfg.Out); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

func plan(es []Experiment, cfg Config, runs []Run) ([]*cell, error) {
	done := map[string]int{}
	for _, r := range runs {
		if r.Error == "" {
			done[r.Experiment+" "+r.Version+" "+r.Case]++
		}
	}
	var cells []*cell
	for i := range es {
		for _, name := range es[i].Cases {
			ok, err := selected(cfg.Cases, name)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			for _, v := range cfg.Versions {
				c := &cell{e: &es[i], version: v, name: name, left: cfg.Runs}
				if cfg.Runs == 0 {
					c.left = cfg.Total - done[es[i].Name+" "+v+" "+name]
				}
				cells = append(cells, c)
			}
		}
	}
	if len(cells) == 0 {
		return nil, fmt.Errorf("no cell of these names: cases %q, versions %q", cfg.Cases, cfg.Versions)
	}
	return cells, nil
}

func selected(patterns []string, name string) (bool, error) {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok || err != nil {
			return ok, err
		}
	}
	return len(patterns) == 0, nil
}

func next(cells []*cell) *cell {
	var best *cell
	for _, c := range cells {
		if c.left > 0 && (best == nil || c.left > best.left) {
			best = c
		}
	}
	return best
}

func session(ctx context.Context, c *cell, cfg Config) (made int, err error) {
	bin, err := lab.Etcd(ctx, c.version, cfg.Log)
	if err != nil {
		return 0, err
	}
	parent := filepath.Join(cfg.Out, c.e.Name, c.version, c.name)
	id := time.Now().UTC().Format("20060102T150405.000")
	dir, err := filepath.Abs(filepath.Join(parent, id))
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	n := min(c.left, max(c.e.Batch, 1))
	begin := time.Now()
	s := &Session{Version: c.version, Case: c.name, Dir: dir, Bin: bin, Log: cfg.Log, experiment: c.e.Name}
	s.save = func(r Run) error {
		r.Experiment, r.Version, r.Etcd, r.Case, r.Session, r.Ended = c.e.Name, c.version, bin.Version, c.name, id, time.Now()
		return appendRun(filepath.Join(parent, "runs.jsonl"), r)
	}
	err = c.e.Run(ctx, s, n)
	fmt.Fprintf(cfg.Log, "%s %s %s: %d runs in %.1f s\n", c.e.Name, c.version, c.name, s.made, time.Since(begin).Seconds())
	if err != nil && ctx.Err() == nil { // one that was interrupted did not fail
		err = errors.Join(fmt.Errorf("%s %s %s, %s: %w", c.e.Name, c.version, c.name, dir, err), s.save(Run{Error: err.Error()}))
	}
	return s.made, err
}

func appendRun(path string, r Run) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}
