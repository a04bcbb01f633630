package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"twok/arbiter"
	"twok/arbiter/httpcas"
)

// Exit codes of `twok arbiter show`, and of every command that ends because of
// what the arbiter said.
const (
	exitAbsent        = 10
	exitEmpty         = 11 // no bytes, or white space only
	exitGarbage       = 12
	exitForeign       = 13
	exitFuture        = 14
	exitForbidden     = 20
	exitUnavailable   = 21
	exitMisconfigured = 22
	exitUnknown       = 23
	exitConflict      = 24
	exitUntrusted     = 25 // of probe: the store does not keep its promise
)

func arbiterCommand() *cli.Command {
	return &cli.Command{
		Name:  "arbiter",
		Usage: "serve or look at the record that decides who survives",
		Description: "The record is one value in a store with an atomic compare-and-swap, named by a URL:\n" +
			"http[s]://HOST[:PORT]/NAME\ns3://BUCKET/KEY[?region=…&endpoint=…&path-style=true]\netcd://HOST:PORT[,HOST:PORT…]/KEY[?tls=true]\nconfigmap://NAMESPACE/NAME\n\n" + arbiterEnvironment,
		Subcommands: []*cli.Command{
			arbiterServeCommand(),
			arbiterInitCommand(),
			arbiterClaimCommand(),
			arbiterShowCommand(),
			arbiterHistoryCommand(),
			arbiterProbeCommand(),
		},
	}
}

// arbiterFlag is --arbiter, the same in every command.
func arbiterFlag() cli.Flag {
	return &cli.StringFlag{
		Name: "arbiter", Required: true, EnvVars: []string{"TWOK_ARBITER"},
		Usage: "`URL` of the pair's record: " + arbiterURLs,
	}
}

func arbiterShowCommand() *cli.Command {
	return &cli.Command{
		Name:  "show",
		Usage: "read the record once, say what it means, and print it",
		Description: `Exit codes:
0   a record was read
2   wrong usage
10  absent: the register holds no value
11  empty: a value without bytes, or white space only
12  garbage: not a record, truncated or contradictory
13  foreign: JSON that is not a twok record
14  future: a record of a newer format; upgrade twok
20  forbidden: the store refused these credentials
21  unavailable: the store was not reached or is not serving
22  misconfigured: this URL does not lead to a usable store
23  unknown: any other error of the store`,
		Flags: recordFlags("print one JSON object {arbiter, version, words, record}"),
		Action: withRecord(func(c *cli.Context, r arbiter.Register, rec arbiter.Record, data []byte, v arbiter.Version) error {
			if c.Bool("json") {
				return showJSON(c.App.Writer, r, words(rec, time.Now()), data, v)
			}
			return showTable(c.App.Writer, rec, time.Now())
		}),
	}
}

// recordFlags are those of a command that reads the record once.
func recordFlags(json string) []cli.Flag {
	return []cli.Flag{
		arbiterFlag(),
		&cli.BoolFlag{Name: "json", Usage: json},
		&cli.DurationFlag{Name: "timeout", Value: httpcas.DefaultTimeout, Usage: "give up after this `TIME`"},
	}
}

// withRecord reads the record and hands it to f.
func withRecord(f func(c *cli.Context, r arbiter.Register, rec arbiter.Record, data []byte, v arbiter.Version) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.NArg() > 0 {
			return usageError("twok arbiter %s takes no argument, got %q", c.Command.Name, c.Args().First())
		}
		r, err := arbiterRegister(c.String("arbiter"))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
		defer cancel()
		rec, data, v, err := readRecord(ctx, r)
		if err != nil {
			return err
		}
		return f(c, r, rec, data, v)
	}
}

// readRecord reads and decodes; the error has a hint and an exit code.
func readRecord(ctx context.Context, r arbiter.Register) (arbiter.Record, []byte, arbiter.Version, error) {
	fail := func(err error) (arbiter.Record, []byte, arbiter.Version, error) {
		return arbiter.Record{}, nil, arbiter.Absent, err
	}
	data, v, err := r.Read(ctx)
	if err != nil {
		return fail(arbiterError(err))
	}
	if !v.Exists() {
		return fail(hint(withCode(fmt.Errorf("read %v: absent: the register holds no value", r), exitAbsent),
			"a running pair whose agents use this arbiter creates the record; if there was one, check the URL before anything else"))
	}
	rec, err := arbiter.Decode(data)
	if err != nil {
		return fail(arbiterError(fmt.Errorf("read %v: %w", r, err)))
	}
	return rec, data, v, nil
}

// arbiterError gives an error of a register or of Decode its exit code and hint.
func arbiterError(err error) error {
	const look = "nothing overwrites it; find out who wrote it, and check the URL"
	for _, c := range []struct {
		is   error
		code int
		hint string
	}{
		{arbiter.ErrEmpty, exitEmpty, look},
		{arbiter.ErrWhitespace, exitEmpty, look},
		{arbiter.ErrGarbage, exitGarbage, look},
		{arbiter.ErrForeign, exitForeign, look},
		{arbiter.ErrFuture, exitFuture, "upgrade this twok to the version that wrote the record"},
	} {
		if errors.Is(err, c.is) {
			return hint(withCode(err, c.code), c.hint)
		}
	}
	switch arbiter.Class(err) {
	case nil:
		return nil
	case arbiter.ErrForbidden:
		return hint(withCode(err, exitForbidden), "check the credentials (see `twok arbiter --help`) and the store's access rules")
	case arbiter.ErrUnavailable:
		return hint(withCode(err, exitUnavailable), "check that the arbiter runs and that this machine reaches it")
	case arbiter.ErrMisconfigured:
		return hint(withCode(err, exitMisconfigured), "check the URL and the store; `twok arbiter probe` tries whether it can hold a record")
	case arbiter.ErrConflict:
		return hint(withCode(err, exitConflict), "somebody else wrote the record; look at it with `twok arbiter show` and try again")
	}
	return hint(withCode(err, exitUnknown), "read the record with `twok arbiter show` to see what happened")
}

// showJSON prints the record as it is stored.
func showJSON(w io.Writer, r arbiter.Register, words []string, data []byte, v arbiter.Version) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Arbiter string          `json:"arbiter"`
		Version string          `json:"version"`
		Words   []string        `json:"words"`
		Record  json.RawMessage `json:"record"`
	}{fmt.Sprint(r), v.Tag(), words, data})
}

// showTable prints the record for people. now is only for "… ago".
func showTable(out io.Writer, r arbiter.Record, now time.Time) error {
	for _, s := range words(r, now) {
		fmt.Fprintln(out, s)
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("record", "%s", r.ID)
	row("cluster", "%s", arbiter.FormatID(r.ClusterID))
	row("generation", "%d", r.Generation)
	if r.Survivor.ID == 0 {
		row("survivor", "nobody yet")
	} else {
		row("survivor", "%s %s", arbiter.FormatID(r.Survivor.ID), printable(r.Survivor.Name))
		row("claimed", "%s, %s", showTime(r.ClaimedAt, now), printable(r.Reason))
		row("claim end", "%s", showPosition(r.ClaimEnd))
		row("fork", "%s", showPosition(r.Fork))
		if r.Confirmed == (arbiter.Position{}) {
			row("confirmed", "not yet, or whole again")
		} else {
			row("confirmed", "%s, %s", showPosition(r.Confirmed), showTime(r.ConfirmedAt, now))
		}
	}
	if r.WholeGeneration == 0 {
		row("whole", "no note")
	} else {
		row("whole", "at generation %d, %s and %s, %s", r.WholeGeneration,
			arbiter.FormatID(r.WholeMembers[0]), arbiter.FormatID(r.WholeMembers[1]), showTime(r.WholeAt, now))
	}
	if r.MarkGeneration != 0 {
		row("commit mark", "index %d at generation %d", r.MarkIndex, r.MarkGeneration)
	}
	flags := ""
	for _, f := range []struct {
		name string
		set  bool
	}{{"drain", r.Drain}, {"pause", r.Pause}, {"forced", r.Forced}} {
		if f.set {
			flags += " " + f.name
		}
	}
	if flags == "" {
		flags = " none"
	}
	row("flags", "%s", flags[1:])
	row("created", "%s", showTime(r.CreatedAt, now))
	row("written", "%s", showTime(r.WrittenAt, now))
	row("nonce", "%s", r.Nonce)
	if r.Extra != "" {
		row("unknown fields", "%s", printable(r.Extra))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.HistoryCount() == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return historyTable(out, r, now)
}

func showPosition(p arbiter.Position) string {
	if p == (arbiter.Position{}) {
		return "none"
	}
	return fmt.Sprintf("index %d, term %d", p.Index, p.Term)
}

func showTime(ms int64, now time.Time) string {
	if ms == 0 {
		return "no time"
	}
	t := time.UnixMilli(ms).UTC()
	s := t.Format("2006-01-02 15:04:05.000Z")
	switch age := now.Sub(t).Round(time.Second); {
	case age >= 48*time.Hour:
		return fmt.Sprintf("%s (%d days ago)", s, age/(24*time.Hour))
	case age >= 0:
		return fmt.Sprintf("%s (%v ago)", s, age)
	}
	return s + " (by a clock ahead of this one)"
}

// printable keeps a stored text from controlling the terminal.
func printable(s string) string {
	q := fmt.Sprintf("%q", s)
	if plain := q[1 : len(q)-1]; plain == s {
		return s
	}
	return q
}
