package lab

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// splitLines yields lines without their ends.
func splitLines(data []byte) iter.Seq[string] {
	return strings.SplitSeq(strings.TrimRight(string(data), "\n"), "\n")
}
