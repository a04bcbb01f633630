package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"twok/testing/cluster"
	"twok/testing/network"
	"twok/testing/report"
	"twok/testing/scenario"
)

func main() {
	status, err := start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

type flags struct {
	sel, dir, twok, failpoints, replay, totals string
	seed                                       uint64
	rounds, traceLimit                         int
	soak                                       time.Duration
	list, real, v6, keep, untilRed             bool
}

// again are the flags that playing a scenario again needs beside its seed and name.
func (f flags) again() (out []string) {
	if f.real {
		out = append(out, "--real")
	}
	if f.v6 {
		out = append(out, "--v6")
	}
	if f.twok != "" {
		out = append(out, "--twok", f.twok)
	}
	if f.failpoints != "" {
		out = append(out, "--twok-failpoints", f.failpoints)
	}
	return out
}

func start() (status int, err error) {
	var f flags
	fs := flag.NewFlagSet("scenario", flag.ContinueOnError)
	fs.StringVar(&f.sel, "select", "", "play the cells that match this `expression`, of all, instead of the default ones; see testing/scenario")
	fs.BoolVar(&f.list, "list", false, "list the cells and play nothing")
	fs.StringVar(&f.dir, "dir", "bin/safety", "`directory` for what runs leave")
	fs.StringVar(&f.twok, "twok", "", "the `program`; by default it is built")
	fs.StringVar(&f.failpoints, "twok-failpoints", "", "the `program` built with -tags failpoints; by default it is built")
	fs.Uint64Var(&f.seed, "seed", 0, "the run's seed; 0: a random one")
	fs.IntVar(&f.rounds, "rounds", 1, "play all cells so often, each round with its own seed")
	fs.DurationVar(&f.soak, "for", 0, "play cells in random order, each fault before any comes again, each cell with a seed of its own, until this `time` is over; without --select of all but those with an apiserver and those that take minutes")
	fs.StringVar(&f.totals, "totals", "", "put the run's totals into this `file`, a JSON object a line")
	fs.BoolVar(&f.real, "real", false, "etcd's own timing and the agents' own claim-after")
	fs.BoolVar(&f.v6, "v6", false, "IPv6 between the sites")
	fs.BoolVar(&f.keep, "keep", false, "keep the data directories of green scenarios")
	fs.BoolVar(&f.untilRed, "until-red", false, "stop after the first scenario that is not green")
	fs.IntVar(&f.traceLimit, "trace-limit", 300_000, "look at so many `states` before the agents' traces count as undecided; 0: as many as it takes, which can be minutes")
	fs.StringVar(&f.replay, "replay", "", "make the checks of a scenario's `directory` again and play nothing")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return 2, nil // it was said
	}
	if fs.NArg() > 0 {
		return 2, fmt.Errorf("%q is no flag", fs.Arg(0))
	}
	if f.replay != "" {
		r, err := scenario.Replay(f.replay, f.traceLimit)
		if err != nil {
			return 1, err
		}
		return one(r), nil
	}
	cells := scenario.Default()
	if f.sel != "" {
		if cells, err = scenario.Select(scenario.Matrix(), f.sel); err != nil {
			return 2, err
		}
	}
	if f.soak > 0 && f.sel == "" {
		cells = slices.DeleteFunc(scenario.Matrix(), func(c scenario.Cell) bool { return c.Arbiter == "configmap" || c.Fault.Slow })
	}
	if cluster.Proxy() && f.sel == "" {
		all := len(cells)
		cells = scenario.Possible(cells)
		fmt.Printf("TWOK_HARNESS=proxy: %d of %d scenarios, those that need no namespaces\n", len(cells), all)
	}
	if f.list {
		for _, c := range cells {
			fmt.Printf("%-70s %s\n", c.Name(), c.Fault.About)
		}
		return 0, nil
	}
	if len(cells) == 0 {
		return 1, fmt.Errorf("nothing matches %q; --list --select . lists all", f.sel)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if cluster.Proxy() || network.Outside() {
		clean, err := scenario.Prepare(ctx, cells, f.twok, f.failpoints, os.Stderr)
		defer func() {
			if cerr := clean(); cerr != nil {
				fmt.Fprintln(os.Stderr, "warning:", cerr)
			}
		}()
		if err != nil {
			return 1, err
		}
	}
	if !cluster.Proxy() {
		if inside, status, err := network.Enter(); !inside {
			return status, err
		}
	}
	return play(ctx, f, cells)
}

// one prints a result and all its findings.
func one(r report.Result) int {
	run := report.Run{Planned: []string{r.Name}, Results: []report.Result{r}}
	run.Sum()
	if err := run.Text(os.Stdout); err != nil || !run.OK() {
		return 1
	}
	return 0
}

func play(ctx context.Context, f flags, cells []scenario.Cell) (status int, err error) {
	if f.seed == 0 {
		f.seed = rand.Uint64N(1 << 32)
	}
	dir := filepath.Join(f.dir, fmt.Sprintf("%s-%d", time.Now().UTC().Format("20060102T150405"), f.seed))
	if dir, err = filepath.Abs(dir); err != nil {
		return 1, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 1, err
	}
	cfg := scenario.Config{Dir: dir, Seed: f.seed, Real: f.real, V6: f.v6, Keep: f.keep, TraceLimit: f.traceLimit, Log: os.Stderr}
	run := &report.Run{Command: os.Args, Flags: f.again(), Select: f.sel, Seed: f.seed, Started: time.Now()}
	sum := func() error {
		run.Seconds = time.Since(run.Started).Seconds()
		if run.Sum(); f.totals == "" {
			return nil
		}
		return run.SaveTotals(f.totals)
	}
	if f.soak > 0 {
		f.rounds, run.Of = 1<<30, len(cells)
		cells = scenario.Shuffle(cells, rand.New(rand.NewPCG(f.seed, 0)))
		fmt.Printf("%d cells in random order for %s, seed %d, in %s\n", len(cells), f.soak, f.seed, dir)
	} else {
		for round := range f.rounds {
			for _, c := range cells {
				run.Planned = append(run.Planned, roundName(c, round))
			}
		}
		fmt.Printf("%d scenarios, seed %d, in %s\n", len(run.Planned), f.seed, dir)
	}
	for round, over := 0, false; round < f.rounds && !over; round++ {
		cfg := cfg
		cfg.Seed += uint64(round)
		if round > 0 {
			cfg.Dir = filepath.Join(dir, fmt.Sprintf("round-%d", round+1))
			if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
				return 1, err
			}
		}
		for _, c := range cells {
			if over = ctx.Err() != nil || f.soak > 0 && time.Since(run.Started) > f.soak; over {
				break
			}
			if f.soak > 0 {
				run.Planned = append(run.Planned, roundName(c, round))
			}
			r := scenario.Play(ctx, c, cfg)
			if r.Name = roundName(c, round); ctx.Err() != nil && !r.Violated() {
				break // it was interrupted, and counts as not run
			}
			run.Results = append(run.Results, r)
			fmt.Println(r.Line())
			// Totals that cannot be kept end it: a soak is for them.
			if err = sum(); err != nil || f.untilRed && r.Red() {
				over = true
				break
			}
		}
	}
	err = errors.Join(err, sum())
	fmt.Println(strings.Repeat("-", 72))
	err = errors.Join(err, run.Text(os.Stdout), run.Save(dir))
	if err != nil || !run.OK() {
		return 1, err
	}
	return 0, nil
}

func roundName(c scenario.Cell, round int) string {
	if round == 0 {
		return c.Name()
	}
	return fmt.Sprintf("%s#%d", c.Name(), round+1)
}
