package sim

import (
	"fmt"
	"strings"

	"twok/internal/failover"
)

// coverage counts the cells of phase and event that the cores went through.
type coverage struct {
	Cells [32][32]uint64
}

func (c *coverage) note(p failover.Phase, e failover.EventKind) { c.Cells[p][e]++ }

func (c *coverage) count() (n int) {
	for i := range c.Cells {
		for _, x := range c.Cells[i] {
			if x > 0 {
				n++
			}
		}
	}
	return n
}

// String is the table phase x event.
func (c *coverage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-13s", "")
	for _, e := range failover.EventKinds() {
		fmt.Fprintf(&b, " %9.9s", e)
	}
	b.WriteByte('\n')
	for _, p := range failover.Phases() {
		fmt.Fprintf(&b, "%-13s", p)
		for _, e := range failover.EventKinds() {
			fmt.Fprintf(&b, " %9d", c.Cells[p][e])
		}
		b.WriteByte('\n')
	}
	return b.String()
}
