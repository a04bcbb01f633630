package preflight

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes one line a check. The remedy is only where there is something to do.
func Table(w io.Writer, rs []Result) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tSTATE\tSEEN\tREMEDY")
	for _, r := range rs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Name, r.State, r.Detail, r.Remedy)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// Verdict sums up.
func Verdict(rs []Result) string {
	refused, warned := Names(rs, Refused), Names(rs, Warning)
	switch {
	case len(refused) > 0:
		return fmt.Sprintf("refused: %s", strings.Join(refused, ", "))
	case len(warned) > 0:
		return fmt.Sprintf("nothing is in the way; warnings: %s", strings.Join(warned, ", "))
	}
	return "nothing is in the way"
}
