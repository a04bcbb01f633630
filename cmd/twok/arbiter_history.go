package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"twok/arbiter"
)

func arbiterHistoryCommand() *cli.Command {
	return &cli.Command{
		Name:  "history",
		Usage: "read the record once and print who survived, oldest first",
		Description: fmt.Sprintf(`The record keeps the last %d entries. A run of claims by one survivor, with no whole pair in
between, is one entry with its first fork. A forced claim begins a new one, and says who ordered it; "yes": it was its
continuation, under a new member ID. The generation before the first entry had no claim
that is still known.

Exit codes: those of twok arbiter show.`, arbiter.HistoryLen),
		Flags: recordFlags("print a JSON array of {first, last, survivor, fork, forced, by, at}"),
		Action: withRecord(func(c *cli.Context, _ arbiter.Register, rec arbiter.Record, _ []byte, _ arbiter.Version) error {
			if c.Bool("json") {
				return historyJSON(c.App.Writer, rec)
			}
			if rec.HistoryCount() == 0 {
				_, err := fmt.Fprintf(c.App.Writer, "no claim yet: generation %d is the first\n", rec.Generation)
				return err
			}
			return historyTable(c.App.Writer, rec, time.Now())
		}),
	}
}

func historyTable(out io.Writer, r arbiter.Record, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "GENERATIONS\tSURVIVOR\tFORK\tFORCED BY\tCLAIMED")
	for _, e := range r.History[:r.HistoryCount()] {
		generations := fmt.Sprint(e.First)
		if e.Last != e.First {
			generations = fmt.Sprintf("%d-%d", e.First, e.Last)
		}
		forced := "no"
		if e.Forced {
			forced = "yes"
			if e.By != "" {
				forced = printable(e.By)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", generations, arbiter.FormatID(e.Survivor), showPosition(e.Fork), forced, showTime(e.At, now))
	}
	return w.Flush()
}

// historyEntry is an entry for scripts: IDs as text, since JSON numbers do not hold them.
type historyEntry struct {
	First    uint64           `json:"first"`
	Last     uint64           `json:"last"`
	Survivor string           `json:"survivor"`
	Fork     arbiter.Position `json:"fork"`
	Forced   bool             `json:"forced"`
	By       string           `json:"by"`
	At       time.Time        `json:"at"`
}

func historyJSON(w io.Writer, r arbiter.Record) error {
	es := []historyEntry{}
	for _, e := range r.History[:r.HistoryCount()] {
		es = append(es, historyEntry{e.First, e.Last, arbiter.FormatID(e.Survivor), e.Fork, e.Forced, e.By, time.UnixMilli(e.At).UTC()})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(es)
}
