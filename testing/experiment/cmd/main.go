package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"twok/internal/lab"
	"twok/testing/experiment"
	"twok/testing/network"
)

func main() {
	status, err := start()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func start() (status int, err error) {
	var cfg experiment.Config
	var only, versions, cases string
	var table, list bool
	fs := flag.NewFlagSet("experiment", flag.ContinueOnError)
	fs.StringVar(&cfg.Out, "out", "bin/experiments", "`directory` for raw logs, runs and summary.json; what is there is added to")
	fs.StringVar(&only, "only", "", "these experiments, `names` with commas")
	fs.StringVar(&cases, "cases", "", "these of their cases, `patterns` with commas (20s-*)")
	fs.StringVar(&versions, "versions", strings.Join(lab.Minors, ","), "release lines of etcd")
	fs.IntVar(&cfg.Runs, "runs", 0, "so many more runs of each cell")
	fs.IntVar(&cfg.Total, "total", 5, "without --runs: what is missing to so many of each")
	fs.DurationVar(&cfg.For, "for", 0, "begin no session after this `time`")
	fs.BoolVar(&table, "table", false, "print the tables of all runs and play nothing")
	fs.BoolVar(&list, "list", false, "list experiments and cases and play nothing")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return 2, nil // it was said
	}
	if fs.NArg() > 0 {
		return 2, fmt.Errorf("%q is no flag", fs.Arg(0))
	}
	es, err := experiment.Select(split(only))
	if err != nil {
		return 2, err
	}
	switch {
	case list:
		for _, e := range es {
			fmt.Printf("%-16s %s: %s\n", e.Name, e.About, strings.Join(e.Cases, ", "))
		}
		return 0, nil
	case table:
		return 0, tables(es, cfg.Out)
	}
	cfg.Cases, cfg.Log = split(cases), os.Stderr
	if cfg.Versions = split(versions); !subset(cfg.Versions, lab.Minors) {
		return 2, fmt.Errorf("--versions %q: choose of %s", versions, strings.Join(lab.Minors, ", "))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if network.Outside() {
		dir, remove, err := experiment.BinDir()
		if err != nil {
			return 1, err
		}
		defer func() {
			if err := remove(); err != nil {
				fmt.Fprintln(os.Stderr, "warning:", err)
			}
		}()
		if err := experiment.Prepare(ctx, es, cfg.Versions, dir, os.Stderr); err != nil {
			return 1, err
		}
	}
	if slices.ContainsFunc(es, func(e experiment.Experiment) bool { return e.Namespaces }) {
		if inside, status, err := network.Enter(); !inside {
			return status, err
		}
		// Those that need no sites of their own use loopback, which is down in a new namespace.
		if _, err := network.New(ctx, network.Config{}); err != nil {
			return 1, err
		}
	}
	begin := time.Now()
	err = experiment.Play(ctx, es, cfg)
	fmt.Fprintf(os.Stderr, "%.0f s; the tables: --table --out %s\n", time.Since(begin).Seconds(), cfg.Out)
	return 0, err
}

func split(list string) (out []string) {
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

func subset(some, all []string) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

func tables(es []experiment.Experiment, out string) error {
	s, err := experiment.ReadSummary(out)
	if err != nil {
		return err
	}
	if len(s.Cells) == 0 {
		return fmt.Errorf("print the tables of %s: nothing was run there yet", out)
	}
	for _, e := range es {
		if len(s.Of(e.Name)) > 0 {
			fmt.Printf("<!-- %s -->\n\n%s\n", e.Name, e.Table(s))
		}
	}
	return nil
}
