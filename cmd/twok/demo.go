package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"twok/arbiter"
	"twok/internal/lab"
)

// productClaimAfter is the agent's own default, for comparison in the demo's output.
const productClaimAfter = 20 * time.Second

const demoName = "demo"

const (
	exitNotWhole    = 3 // of demo: the pair did not become whole, or nobody took over
	exitLost        = 4 // of demo: the audit found something
	exitInterrupted = 130
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  demoName,
		Usage: "show a failover and the return on a real etcd pair on loopback",
		Description: `Starts two etcd members under two agents and an embedded arbiter, writes all the time, makes a
cut, heals it, waits until the pair is whole and audits: every acknowledged write is there, on
both members, and their key spaces have equal hashes. It needs a checkout, above the
working directory or in TWOK_ROOT; the first run builds etcd from the pinned source, with Go. Later
runs need no network. No flag of the demo comes from the environment, and its agents see no TWOK_ setting of
a real pair.

Cuts:
link                 nothing passes between the sites
kill-leader          SIGKILL of the leader's etcd and agent at once; the heal starts both
kill-follower        the same at the other site
one-way-to-leader    what is sent towards the leader stalls
one-way-to-follower  what is sent towards the follower stalls
restart-both         SIGKILL of everything at both sites, and a start at once: no survivor

Exit codes:
0    nothing was lost and the pair is whole
1    any other error
2    wrong usage
3    nobody took over in time, or the pair did not become whole again
4    the audit found lost or altered keys, unequal hashes or a wrong membership
130  interrupted`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "etcd-version", Value: "3.6", Usage: "etcd's release `LINE`: 3.5, 3.6 or 3.7"},
			&cli.StringFlag{Name: "cut", Value: string(lab.CutLink), Usage: "`KIND` of cut, see above"},
			&cli.DurationFlag{Name: "claim-after", Value: 3 * time.Second, Usage: fmt.Sprintf("`TIME` without the peer after which the former leader claims (outside the demo: %s)", productClaimAfter)},
			&cli.DurationFlag{Name: "head-start", DefaultText: "claim-after/4", Usage: "`TIME` that any other agent waits longer"},
			&cli.StringFlag{Name: "arbiter", Usage: "`URL` of the pair's record in an arbiter of yours, which must be absent (default: an embedded arbiter)"},
			&cli.IntFlag{Name: "rounds", Value: 1, Usage: "cut and heal `N` times, with the same pair; with more than one the agents run without hold-down before a promotion"},
			&cli.StringFlag{Name: "dir", Usage: "empty `DIR` for data, logs and traces, which is kept (default: a temporary one, kept after a failure)"},
			&cli.StringFlag{Name: "etcd-run", Value: string(lab.Supervise), Usage: "`WHO` runs etcd: supervise (its agent) or external (a loop that restarts it, as a kubelet would)"},
			&cli.BoolFlag{Name: "fast", Usage: "etcd with a heartbeat of 20 ms and an election timeout of 200 ms"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object to stdout at the end; the timeline goes to stderr"},
			&cli.BoolFlag{Name: "json-events", Usage: "print the timeline as JSON lines to stderr"},
		},
		Action: demoAction,
	}
}

func demoAction(c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError("twok demo takes no argument, got %q", c.Args().First())
	}
	cut, err := lab.ParseCut(c.String("cut"))
	if err != nil {
		return usageError("--cut: %w", err)
	}
	mode := lab.Mode(c.String("etcd-run"))
	if mode != lab.Supervise && mode != lab.External {
		return usageError("--etcd-run %s: choose supervise or external", mode)
	}
	claimAfter, headStart := c.Duration("claim-after"), c.Duration("head-start")
	if !c.IsSet("head-start") {
		headStart = claimAfter / 4
	}
	if claimAfter <= 0 || headStart < 0 || c.Int("rounds") < 1 {
		return usageError("--claim-after and --rounds must be positive, --head-start not negative")
	}
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()

	twok, err := os.Executable()
	if err != nil {
		return err
	}
	out := c.App.Writer
	if c.Bool("json") {
		out = c.App.ErrWriter
	}
	var events io.Writer
	if c.Bool("json-events") {
		events = c.App.ErrWriter
		if c.Bool("json") {
			out = io.Discard
		}
	}
	minor := c.String("etcd-version")
	if !slices.Contains(lab.Minors, minor) {
		return usageError("--etcd-version %s: choose one of %s", minor, strings.Join(lab.Minors, ", "))
	}
	var reg arbiter.Register
	if u := c.String("arbiter"); u != "" {
		if reg, err = arbiterRegister(u); err != nil {
			return err
		}
	}
	if err := forgetSettings(reg != nil); err != nil {
		return err
	}
	dir, remove, err := demoDir(c.String("dir"))
	if err != nil {
		return err
	}
	etcd, err := lab.Etcd(ctx, minor, c.App.ErrWriter)
	if err != nil {
		return errors.Join(err, remove())
	}
	cfg := lab.Config{
		Dir: dir, Etcd: etcd, Mode: mode, Twok: twok, Arbiter: c.String("arbiter"), Register: reg,
		ClaimAfter: claimAfter, HeadStart: headStart,
	}
	if c.Int("rounds") > 1 {
		// Losses every few seconds would hold each promotion down for longer (F35).
		cfg.AgentFlags = []string{"--hold-down", "0"}
	}
	if c.Bool("fast") {
		cfg.Timing = lab.Fast
	}
	d := &demo{cfg: cfg, cut: cut, rounds: c.Int("rounds"), tell: newNarrator(out, events)}
	result, err := d.run(ctx)
	if ctx.Err() != nil {
		err = withCode(fmt.Errorf("interrupted: %w", context.Cause(ctx)), exitInterrupted)
	}
	if err != nil {
		err = fmt.Errorf("%w (data, logs and traces are in %s)", err, dir)
	} else {
		err = remove()
	}
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		err = errors.Join(err, enc.Encode(result))
	}
	return err
}

// demoDir is the directory to work in, and what to do with it after success.
func demoDir(dir string) (string, func() error, error) {
	if dir == "" {
		tmp, err := os.MkdirTemp("", "twok-demo-")
		return tmp, func() error { return os.RemoveAll(tmp) }, err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("--dir: %w", err)
	}
	switch entries, err := os.ReadDir(dir); {
	case err != nil:
		return "", nil, fmt.Errorf("--dir: %w", err)
	case len(entries) > 0:
		return "", nil, hint(usageError("--dir %s is not empty", dir), "choose a new directory: the demo starts with empty members and deletes nothing of yours")
	}
	return dir, func() error { return nil }, nil
}
