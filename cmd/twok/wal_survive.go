package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/agent"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// Exit codes of twok wal survive beyond 0, 1, 2 and those of inspect.
const (
	exitRefused  = 32
	exitRunning  = 33
	exitMustStay = 34
)

func walSurviveCommand() *cli.Command {
	return &cli.Command{
		Name:      "survive",
		Usage:     "claim by hand: make this member the survivor, if its data allow it",
		ArgsUsage: "DIR",
		Description: `What an agent does when claim-after has passed, by hand, on a member whose etcd and agent are
stopped: the record and the data are read under etcd's locks, the rules decide, the
record is swapped to the next generation, and the removal of the other member is appended to the
WAL in the next term. Nothing is truncated, no acknowledged write is lost. Afterwards
start etcd with the same flags as before: it leads alone.

It overrides nothing. A member that may not claim is refused, with the reason.

Exit codes: 0 done (or, with --dry-run, allowed), 2 wrong usage, 30 no WAL there, 32 refused or not
won: nothing was appended, 33 etcd or an agent runs on DIR, 34 the record names another
survivor by now: do not start etcd here, 1 anything else, also a claim whose append failed or whose
outcome at the arbiter is not known: run it again.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "arbiter", Usage: "the arbiter's `URL`", EnvVars: []string{"TWOK_ARBITER"}, Required: true},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would be written, and write nothing"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.DurationFlag{Name: "timeout", Usage: "for the whole operation", Value: time.Minute},
			&cli.StringFlag{Name: "trace", Usage: "append each decision to `FILE`, a JSON object a line"},
		},
		Action: walSurvive,
	}
}

func walSurvive(c *cli.Context) (err error) {
	if c.NArg() != 1 {
		return hint(usageError("twok wal survive takes one data directory, not %d arguments", c.NArg()), "give etcd's --data-dir; flags come before it")
	}
	reg, err := arbiterRegister(c.String("arbiter"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
	defer cancel()
	dir := c.Args().First()
	cfg := agent.Config{DataDir: dir, Arbiter: reg, Logger: zap.NewNop()}
	if f := c.String("trace"); f != "" {
		w, oerr := openTrace(f)
		if oerr != nil {
			return oerr
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		cfg.Trace = w
	}
	res, err := agent.Survive(ctx, cfg, c.Bool("dry-run"))
	if err != nil {
		return surviveError(dir, err)
	}
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		return enc.Encode(surviveJSON(res))
	}
	w := c.App.Writer
	verb := "would be"
	if res.Applied {
		verb = "is"
	}
	fmt.Fprintf(w, "member %016x of cluster %016x, log end %d@%d\n", res.Data.Member, res.Data.Cluster, res.Data.Last.Index, res.Data.Last.Term)
	fmt.Fprintf(w, "record: generation %d -> %d, the survivor %s %q (%016x)\n", res.Before.Generation, res.Record.Generation, verb, res.Record.Survivor.Name, res.Record.Survivor.ID)
	fmt.Fprintf(w, "WAL: %s appended: %v\n", verb, res.Plan)
	if res.Applied {
		fmt.Fprintln(w, "start etcd now, with the same flags as before")
	} else {
		fmt.Fprintln(w, "nothing was written")
	}
	return nil
}

type survival struct {
	Applied    bool             `json:"applied"`
	Member     string           `json:"member_id"`
	Cluster    string           `json:"cluster_id"`
	LogEnd     arbiter.Position `json:"log_end"`
	From       uint64           `json:"generation_before"`
	Generation uint64           `json:"generation"`
	Fork       arbiter.Position `json:"fork"`
	Plan       walsurgery.Plan  `json:"plan"`
	Survivor   string           `json:"survivor"`
}

func surviveJSON(r agent.Survival) survival {
	return survival{
		Applied: r.Applied, Member: fmt.Sprintf("%016x", r.Data.Member), Cluster: fmt.Sprintf("%016x", r.Data.Cluster),
		LogEnd: r.Data.Last, From: r.Before.Generation, Generation: r.Record.Generation, Fork: r.Record.Fork,
		Plan: r.Plan, Survivor: r.Record.Survivor.Name,
	}
}

func surviveError(dir string, err error) error {
	var refused *agent.RefusedError
	switch {
	case errors.As(err, &refused):
		err = fmt.Errorf("%s: %w", dir, err)
		switch refused.Reason {
		case failover.AppendFailed: // the swap was won
			return hint(err, "the record names this member by now, its WAL is not written: check the disk, then run the same command again")
		case failover.SwapUnknown:
			return hint(err, "the record may name this member by now or soon: see `twok arbiter show`, then run the same command again")
		}
		return withCode(hint(err, refused.Reason.Remedy()), exitRefused)
	case errors.Is(err, agent.ErrEtcdRuns), errors.Is(err, member.ErrHeld):
		return withCode(hint(err, "stop etcd and the agent of this data directory first"), exitRunning)
	case errors.Is(err, agent.ErrAnotherSurvivor):
		return withCode(hint(err, "see `twok arbiter show`; this member returns when the survivor leads and its agent runs"), exitMustStay)
	case errors.Is(err, walsurgery.ErrNoWAL):
		return hint(withCode(err, exitNoWAL), "give etcd's --data-dir")
	}
	return fmt.Errorf("survive %s: %w", dir, err)
}
