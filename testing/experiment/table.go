package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// runs is a table's cell: how many, and how many sessions failed.
func runs(c Cell) string {
	if c.Failed > 0 {
		return fmt.Sprintf("%d (%d failed)", c.Runs, c.Failed)
	}
	return fmt.Sprint(c.Runs)
}

// seconds is median and maximum of times.
func seconds(d Dist) string {
	if d.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f s, %.2f s", d.P50, d.Max)
}

// megabytes is median and maximum of sizes.
func megabytes(d Dist) string {
	if d.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f MB, %.2f MB", d.P50/1e6, d.Max/1e6)
}

// frequent is texts, the most frequent first.
func frequent(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a, b))
	})
}

// tally is texts with how often each was seen, the most frequent first.
func tally(counts map[string]int) string {
	texts := frequent(counts)
	for i, t := range texts {
		texts[i] = fmt.Sprintf("%d × `%s`", counts[t], t)
	}
	return strings.Join(texts, "; ")
}
