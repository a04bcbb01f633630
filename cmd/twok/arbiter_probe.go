package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"twok/arbiter"
	"twok/internal/probe"
)

// besideRecord is the URL of another register, named after the record.
func besideRecord(raw, suffix string) string {
	at, query, _ := strings.Cut(raw, "?")
	if query != "" {
		query = "?" + query
	}
	return at + suffix + query
}

func arbiterProbeCommand() *cli.Command {
	return &cli.Command{
		Name:      "probe",
		ArgsUsage: "[URL]",
		Usage:     "try whether a store keeps its promise of compare-and-swap",
		Description: `Writes to a scratch register beside the record, named after it with ".probe.NAME" behind; the
record itself is neither read nor written. The scratch register is overwritten, never
removed. Each agent does the same when it starts, and does not claim until it passes.

A probe can only disprove: a store that is replicated asynchronously, or restored from a
backup, passes and is wrong all the same (docs/design/protocol.md, A1).

Exit codes:
0   nothing speaks against the store
2   wrong usage
20  forbidden: the store refused these credentials
21  unavailable: the store was not reached or is not serving
22  misconfigured: this URL does not lead to a usable store
23  unknown: the store could not be tried
25  untrusted: it does not keep its promise; the output says what it did`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "arbiter", EnvVars: []string{"TWOK_ARBITER"}, Usage: "`URL` of the pair's record, if it is not the argument"},
			&cli.StringFlag{Name: "as", Value: "cli", Usage: "`NAME` of the scratch register"},
			&cli.IntFlag{Name: "clients", Value: 8, Usage: "how many clients race"},
			&cli.IntFlag{Name: "rounds", Value: 10, Usage: "how many races"},
			&cli.DurationFlag{Name: "claim-after", Value: 20 * time.Second, Usage: "the agents' setting: a tenth of it is what a call may take"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Second, Usage: "give up a call after this `TIME`"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		},
		Action: arbiterProbe,
	}
}

func arbiterProbe(c *cli.Context) error {
	raw := c.String("arbiter")
	onLine := c.IsSet("arbiter") && raw != os.Getenv(envName("arbiter")) // an argument wins over the environment
	switch {
	case c.NArg() == 1 && !onLine:
		raw = c.Args().First()
	case c.NArg() > 0:
		return hint(usageError("twok arbiter probe takes one URL, got %q", strings.Join(c.Args().Slice(), " ")), "flags come before it")
	case raw == "":
		return usageError("twok arbiter probe needs the URL of a record")
	}
	if c.Int("clients") < 2 || c.Int("rounds") < 1 || c.Int("clients") > 64 {
		return usageError("--clients is 2 to 64, --rounds at least 1")
	}
	name := c.String("as")
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return usageError("--as %q: small letters, digits and hyphens", name)
	}
	url := besideRecord(raw, ".probe."+name)
	if _, err := arbiterRegister(raw); err != nil {
		return err
	}
	rep, err := probe.Run(c.Context, probe.Config{
		Open:    func() (arbiter.Register, error) { return arbiterRegister(url) },
		Clients: c.Int("clients"), Rounds: c.Int("rounds"), Timeout: c.Duration("timeout"), ClaimAfter: c.Duration("claim-after"),
		RunID: arbiter.NewNonce(),
	})
	if err != nil {
		if errors.Is(err, probe.ErrBusy) {
			return hint(withCode(err, exitUnknown), "another probe runs under this name: wait for it, or give another --as NAME")
		}
		return arbiterError(err)
	}
	if c.Bool("json") {
		enc := json.NewEncoder(c.App.Writer)
		enc.SetIndent("", "  ")
		err = enc.Encode(rep)
	} else {
		err = showProbe(c.App.Writer, url, rep)
	}
	if err == nil && rep.Problem != nil {
		err = hint(withCode(fmt.Errorf("%s: %s", url, rep.Problem), exitUntrusted), rep.Problem.Remedy)
	}
	return err
}

func showProbe(out io.Writer, url string, rep probe.Report) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	verdict := "nothing speaks against this store"
	if rep.Problem != nil {
		verdict = "do not use this store: " + rep.Problem.String()
	}
	fmt.Fprintf(w, "verdict\t%s\n", verdict)
	fmt.Fprintf(w, "scratch\t%s\n", url)
	fmt.Fprintf(w, "races\t%d with one winner of %d, %d repeated\n", rep.Rounds, rep.Clients, rep.Repeated)
	fmt.Fprintf(w, "storm\t%d swaps applied\n", rep.Storm)
	for _, l := range []struct {
		name string
		probe.Latency
	}{{"read", rep.Read}, {"swap", rep.Swap}} {
		fmt.Fprintf(w, "%s\t%d calls, p50 %v, p99 %v, max %v\n", l.name, l.Calls, brief(l.P50), brief(l.P99), brief(l.Max))
	}
	for _, s := range rep.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", s)
	}
	return w.Flush()
}

func brief(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
