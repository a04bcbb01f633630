package preflight

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes one line a check. The remedy is only where there is something to do.
func Table(w io.Writer, rs []Result) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tSTATE\tSEEN\tREMEDY")
	for _, r := range rs {
		line := fmt.Sprintf("%s\t%s\t%s\t%s", r.Name, r.State, r.Detail, r.Remedy)
		fmt.Fprintln(t, strings.TrimRight(line, "\t"))
	}
	return t.Flush()
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
