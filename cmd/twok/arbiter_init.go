package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"twok/arbiter"
	"twok/internal/bind"
	"twok/internal/etcdapi"
)

// Exit codes of `twok arbiter init` beside those of the arbiter's answers.
const (
	exitNotAPair = 30
	exitNoLeader = 31
	exitBound    = 32
	exitTaken    = 33
)

func arbiterInitCommand() *cli.Command {
	return &cli.Command{
		Name:  "init",
		Usage: "bind a running pair to a record, or move it to another one",
		Description: `The agents of a new pair create its record by themselves; init does the same by hand, and moves
a pair that is bound to one record to another (--rebind): a new store, a record that was lost.

It needs a running pair, both members answering, or a survivor that leads alone. It creates the
record, then writes the pair token through the member that leads (docs/design/protocol.md, P3, P14). A
record of another cluster, or that a pair has used, is never overwritten. The loser of a survivor that is moved
while alone returns from an empty log. Afterwards start both agents with the new --arbiter:
until then, each of them says record-elsewhere and the pair is unprotected.

Exit codes:
0      bound, also if it was before
2      wrong usage
10-24  what the arbiter said, as of twok arbiter show
30     not a pair of two voters that both answer, nor a survivor alone
31     no member leads, or it cannot be reached
32     the pair is bound to another record: give --rebind
33     the register holds another record`,
		Flags: []cli.Flag{
			arbiterFlag(),
			&cli.StringSliceFlag{Name: "client-url", Usage: "a member's client `URL`; may be given several times", Value: cli.NewStringSlice("http://127.0.0.1:2379"), EnvVars: []string{"TWOK_CLIENT_URL"}},
			&cli.StringFlag{Name: "client-cert", Usage: "certificate for etcd's client ports"},
			&cli.StringFlag{Name: "client-key", Usage: "its key"},
			&cli.StringFlag{Name: "client-ca", Usage: "the CA of etcd's client ports"},
			&cli.BoolFlag{Name: "rebind", Usage: "replace the binding to another record"},
			&cli.StringFlag{Name: "old-arbiter", Usage: "`URL` of the record that the pair is bound to, if it can still be read"},
			&cli.DurationFlag{Name: "timeout", Value: time.Minute, Usage: "give up after this `TIME`"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		},
		Action: arbiterInit,
	}
}

func arbiterInit(c *cli.Context) error {
	if c.NArg() > 0 {
		return usageError("twok arbiter init takes no argument, got %q", c.Args().First())
	}
	if c.String("old-arbiter") != "" && !c.Bool("rebind") {
		return usageError("--old-arbiter goes with --rebind")
	}
	o := bind.Options{ClientURLs: c.StringSlice("client-url"), Rebind: c.Bool("rebind")}
	var err error
	if o.Register, err = arbiterRegister(c.String("arbiter")); err != nil {
		return err
	}
	if url := c.String("old-arbiter"); url != "" {
		if o.Old, err = arbiterRegister(url); err != nil {
			return err
		}
	}
	t, _, err := tlsConfig(c, "client", nil)
	if err != nil {
		return err
	}
	for _, u := range o.ClientURLs {
		if t == nil && strings.HasPrefix(u, "https:") {
			t = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	o.Dialer = &etcdapi.Dialer{ClientTLS: t}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer cancel()
	res, err := bind.Init(ctx, o)
	if err != nil {
		return initError(err)
	}
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		return enc.Encode(res)
	}
	what := "the pair"
	if res.Alone {
		what = "the survivor " + res.Member
	}
	if !res.Token {
		_, err = fmt.Fprintf(c.App.Writer, "%s is bound to the record %s already; nothing was changed\n", what, res.RecordID)
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s is bound to the record %s, from generation %d on\n", what, res.RecordID, res.Generation)
	if err == nil && res.Before != "" {
		_, err = fmt.Fprintf(c.App.Writer, "it was bound to %s: start both agents with --arbiter %s\n", res.Before, c.String("arbiter"))
	}
	return err
}

func initError(err error) error {
	for _, x := range []struct {
		is   error
		code int
		hint string
	}{
		{bind.ErrBound, exitBound, "look at it with `twok arbiter show`; to move the pair, give --rebind, and --old-arbiter URL if the old record can be read"},
		{bind.ErrTaken, exitTaken, "give each pair a key of its own; look at what is there with `twok arbiter show`"},
		{bind.ErrNotAPair, exitNotAPair, "let the pair become whole first, and both members answer at the client URLs that they publish: etcdctl member list shows who is there"},
		{bind.ErrNoLeader, exitNoLeader, "give the --client-url of a member of a running pair; the member that leads must be reachable under the client URL that it publishes"},
	} {
		if errors.Is(err, x.is) {
			return hint(withCode(err, x.code), x.hint)
		}
	}
	// What the old record holds, or what a store said.
	notARecord := func(e error) bool { return errors.Is(err, e) }
	if slices.ContainsFunc([]error{arbiter.ErrEmpty, arbiter.ErrWhitespace, arbiter.ErrGarbage, arbiter.ErrForeign, arbiter.ErrFuture}, notARecord) ||
		arbiter.Class(err) != arbiter.ErrUnknown {
		return arbiterError(err)
	}
	return hint(err, "run it again: it goes on where it stopped; check that both members answer")
}
