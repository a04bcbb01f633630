package scenario

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestShuffle: every cell once, each fault before any comes again, and another seed has another order.
//
// Rules: none (the harness).
func TestShuffle(t *testing.T) {
	names := func(cells []Cell) (out []string) {
		for _, c := range cells {
			out = append(out, c.Name())
		}
		return out
	}
	all := Matrix()
	got := Shuffle(slices.Clone(all), rand.New(rand.NewPCG(1, 0)))
	first := map[string]bool{}
	for _, c := range all {
		first[c.Fault.Name] = true
	}
	for _, c := range got[:len(first)] {
		delete(first, c.Fault.Name)
	}
	if len(first) > 0 {
		t.Errorf("not before others come again: %v", first)
	}
	if other := Shuffle(slices.Clone(all), rand.New(rand.NewPCG(2, 0))); slices.Equal(names(other), names(got)) {
		t.Error("two seeds, one order")
	}
	sorted, want := names(got), names(all)
	slices.Sort(sorted)
	slices.Sort(want)
	if !slices.Equal(sorted, want) {
		t.Errorf("%d cells of %d, or other ones", len(sorted), len(want))
	}
}
