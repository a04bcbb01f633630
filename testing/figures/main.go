package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"twok/internal/lab"
	"twok/testing/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var kinds []string
	for _, k := range lab.CutKinds {
		kinds = append(kinds, string(k))
	}
	fs := flag.NewFlagSet("figures", flag.ContinueOnError)
	twok := fs.String("twok", "bin/twok", "the `program`")
	versions := fs.String("versions", strings.Join(lab.Minors, ","), "etcd's release `lines`")
	cuts := fs.String("cuts", strings.Join(kinds, ","), "`kinds` of cut")
	rounds := fs.Int("rounds", 1, "`rounds` of each")
	more := fs.String("demo", "", "more `flags` for twok demo")
	arbiter := fs.String("arbiter", "", "`URL` of the record, which must be absent: for one version and one cut")
	rest := fs.Duration("rest", 0, "measure the agents of a whole pair at rest for this `time` instead")
	if err := fs.Parse(args); err != nil {
		return err
	}
	flags := strings.Fields(*more)
	if *arbiter != "" {
		if strings.Contains(*versions+*cuts, ",") {
			return errors.New("--arbiter takes one version and one cut: each run needs a record of its own")
		}
		flags = append(flags, "--arbiter", *arbiter)
	}
	if *rest > 0 {
		return atRest(ctx, *twok, strings.Split(*versions, ","), *rest)
	}
	fmt.Printf("%-8s  %-20s %6s  %-19s  %-19s  %-13s  %8s %5s\n", "etcd", "cut", "rounds",
		"first write, s", "whole again, s", "former leader", "writes", "lost")
	fmt.Printf("%-8s  %-20s %6s  %-19s  %-19s  %-13s\n", "", "", "", "median     maximum", "median     maximum", "survives")
	failed := 0
	for _, v := range strings.Split(*versions, ",") {
		for _, c := range strings.Split(*cuts, ",") {
			if err := one(ctx, *twok, v, c, *rounds, flags); err != nil {
				failed++
				fmt.Printf("%-8s  %-20s FAILED: %v\n", v, c, err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d runs failed", failed)
	}
	return nil
}

// result is what is used of the demo's JSON object.
type result struct {
	Version string `json:"etcd_version"`
	Acked   int64
	Lost    int64
	Hashes  bool `json:"hashes_equal"`
	Rounds  []struct {
		Leader     string
		Survivor   *string
		FirstWrite *float64 `json:"first_write_after_cut_s"`
		Whole      *float64 `json:"whole_after_heal_s"`
	}
}

// one runs one demo, holds its trace against the model, and prints its line.
func one(ctx context.Context, twok, version, cut string, rounds int, more []string) (err error) {
	tmp, err := os.MkdirTemp("", "twok-figures-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(tmp)
		} else {
			err = fmt.Errorf("%w (data, logs and traces are in %s)", err, tmp)
		}
	}()
	dir := filepath.Join(tmp, "demo")
	args := append([]string{"demo", "--json", "--dir", dir, "--etcd-version", version, "--cut", cut, "--rounds", fmt.Sprint(rounds)}, more...)
	cmd := exec.CommandContext(ctx, twok, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		os.Stderr.Write(stderr.Bytes())
		return err
	}
	var r result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		return err
	}
	if r.Lost != 0 || !r.Hashes || len(r.Rounds) != rounds || r.Acked == 0 {
		return fmt.Errorf("status 0, but %s", stdout.Bytes())
	}
	if err := explained(dir); err != nil {
		return err
	}
	var first, whole []float64
	won, claimed := 0, 0
	for _, x := range r.Rounds {
		if x.FirstWrite == nil || x.Whole == nil {
			return fmt.Errorf("status 0, but %s", stdout.Bytes())
		}
		first, whole = append(first, *x.FirstWrite), append(whole, *x.Whole)
		if x.Survivor != nil {
			claimed++
			if *x.Survivor == x.Leader {
				won++
			}
		}
	}
	former := "no claim"
	if claimed > 0 {
		former = fmt.Sprintf("%d of %d", won, claimed)
	}
	fmt.Printf("%-8s  %-20s %6d  %6.2f %12.2f  %6.2f %12.2f  %-13s  %8d %5d\n", r.Version, cut, rounds,
		median(first), slices.Max(first), median(whole), slices.Max(whole), former, r.Acked, r.Lost)
	return nil
}

// explained says whether the model allows what the agents of a demo did.
func explained(dir string) error {
	ls, err := trace.ReadFiles(filepath.Join(dir, "a", "trace.jsonl"), filepath.Join(dir, "b", "trace.jsonl"), "")
	if err != nil {
		return err
	}
	_, err = trace.Check(ls, trace.Options{})
	return err
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// atRest starts a pair with the agents' own defaults and looks at them for a while.
func atRest(ctx context.Context, twok string, versions []string, d time.Duration) (err error) {
	fmt.Printf("%-8s  %-5s  %12s %12s  %8s\n", "etcd", "agent", "RssAnon, kB", "RSS, kB", "CPU, %")
	for _, v := range versions {
		if e := restOf(ctx, twok, v, d); e != nil {
			err = errors.Join(err, fmt.Errorf("etcd %s: %w", v, e))
		}
	}
	return err
}

func restOf(ctx context.Context, twok, version string, d time.Duration) (err error) {
	etcd, err := lab.Etcd(ctx, version, os.Stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "twok-rest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := lab.NewCluster(lab.Config{Dir: dir, Etcd: etcd, Mode: lab.External, Twok: twok})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Start(ctx); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := c.WaitWhole(wait, nil); err != nil {
		return err
	}
	before := map[string]lab.Usage{}
	for _, name := range lab.Sites {
		if before[name], err = lab.UsageOf(c.Site(name).AgentPID()); err != nil {
			return err
		}
	}
	start := time.Now()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
	}
	for _, name := range lab.Sites {
		u, err := lab.UsageOf(c.Site(name).AgentPID())
		if err != nil {
			return err
		}
		cpu := 100 * (u.CPU - before[name].CPU).Seconds() / time.Since(start).Seconds()
		fmt.Printf("%-8s  %-5s  %12d %12d  %8.2f\n", etcd.Version, name, u.RSSAnon/1024, u.RSS/1024, cpu)
	}
	return nil
}
