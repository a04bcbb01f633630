package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

const survivorsFile = "testing/mutants/survivors.txt"

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "the repository")
	flag.StringVar(&o.match, "run", "", "only mutants whose key matches this expression")
	flag.StringVar(&o.keys, "keys", "", "only the mutants of this file, in the format of survivors.txt")
	flag.StringVar(&o.checks, "checks", "", "only checks whose name matches this expression (a mutant that they leave alive may yet be killed by the others)")
	flag.BoolVar(&o.list, "list", false, "print the keys and run nothing")
	flag.BoolVar(&o.verbose, "v", false, "print how each mutant ended")
	flag.IntVar(&o.workers, "j", 2, "mutants at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	root, match, keys, checks string
	list, verbose             bool
	workers                   int
}

// maxMemory bounds the address space of a process: a mutant that allocates for ever ends itself.
const maxMemory = 6 << 30

func run(ctx context.Context, o options) (err error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	files, err := load(filepath.Join(root, core))
	if err != nil {
		return err
	}
	all := generate(files)
	ms, err := choose(all, o)
	if err != nil {
		return err
	}
	only, err := regexp.Compile(o.checks)
	if err != nil {
		return err
	}
	some := slices.DeleteFunc(checks(), func(c *check) bool { return !only.MatchString(c.name) })
	if o.list {
		for _, m := range ms {
			fmt.Println(m.key)
		}
		return nil
	}
	listed, err := readSurvivors(filepath.Join(root, survivorsFile))
	if err != nil {
		return err
	}
	r, err := newRunner(root, files, ms, some)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	say := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	if err := r.prepare(ctx, say); err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: maxMemory, Max: maxMemory}); err != nil {
		return fmt.Errorf("bound memory: %w", err)
	}
	t := totals{checks: r.checks, listed: map[string]bool{}, ends: map[string]int{}}
	for _, s := range listed {
		t.listed[s.key] = true
	}
	start := time.Now()
	err = r.all(ctx, o.workers, func(res result) {
		t.add(res)
		if o.verbose {
			say("%s %s\t%s", res.end, res.by, res.key)
		} else if t.tried%100 == 0 {
			say("%d of %d after %s: %s", t.tried, len(ms), time.Since(start).Round(time.Second), &t)
		}
	})
	if err != nil {
		return err
	}
	say("%d mutants tried in %s: %s", t.tried, time.Since(start).Round(time.Second), &t)
	bad := 0
	for _, s := range gone(listed, all) {
		say("%s:%d: there is no such mutant any more: %s", survivorsFile, s.line, s.key)
		bad++
	}
	for _, res := range t.wrong {
		say("%s: listed as a survivor, but killed by %s %s: %s", survivorsFile, res.end, res.by, res.key)
		bad++
	}
	if len(t.unexplained) > 0 {
		say("These live and are not explained in %s:", survivorsFile)
	}
	for _, res := range t.unexplained {
		say("%s", res.key)
		bad++
	}
	if bad > 0 {
		return fmt.Errorf("%d differences from %s: kill a mutant with a test, or explain there why it is harmless", bad, survivorsFile)
	}
	return nil
}

// choose are the mutants that the options ask for.
func choose(all []mutant, o options) ([]mutant, error) {
	re, err := regexp.Compile(o.match)
	if err != nil {
		return nil, err
	}
	var keys map[string]bool
	if o.keys != "" {
		list, err := readSurvivors(o.keys)
		if err != nil {
			return nil, err
		}
		keys = map[string]bool{}
		for _, s := range list {
			keys[s.key] = true
		}
	}
	var out []mutant
	for _, m := range all {
		if re.MatchString(m.key) && (keys == nil || keys[m.key]) {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no mutant matches")
	}
	return out, nil
}

// totals count how mutants end.
type totals struct {
	checks             []*check
	listed             map[string]bool
	tried              int
	ends               map[string]int
	explained          int
	unexplained, wrong []result
}

func (t *totals) add(r result) {
	t.tried++
	t.ends[r.end]++
	switch {
	case r.end == lives && t.listed[r.key]:
		t.explained++
	case r.end == lives:
		t.unexplained = append(t.unexplained, r)
	case t.listed[r.key]:
		t.wrong = append(t.wrong, r)
	}
}

func (t *totals) String() string {
	killed, by := 0, ""
	for _, c := range t.checks {
		killed += t.ends[c.name]
		by += fmt.Sprintf("%d by %s, ", t.ends[c.name], c.name)
	}
	return fmt.Sprintf("%d killed (%s%d timed out), %d live and are explained, %d live unexplained, %d do not compile",
		killed+t.ends[timedOut], by, t.ends[timedOut], t.explained, len(t.unexplained), t.ends[noMutant])
}
