package sim

import (
	"strconv"

	"twok/arbiter"
)

// register is the arbiter: the bytes of the real codec under a compare-and-swap.
// Requests can be on their way for long (late).
type register struct {
	value []byte
	ver   int
	rec   arbiter.Record // value, decoded
	err   error
	late  []lateSwap
	heard func(*arbiter.Record)     // of every swap that was applied
	any   bool                      // Off.Swap
	forks map[arbiter.Position]bool // where forced claims that were ever in the record begin
}

type lateSwap struct {
	due  int
	prev arbiter.Version
	next []byte
}

func (g *register) version() arbiter.Version {
	if g.ver == 0 {
		return arbiter.Absent
	}
	return arbiter.At(strconv.Itoa(g.ver))
}

func (g *register) swap(prev arbiter.Version, next []byte) bool {
	if g.version() != prev && !g.any {
		return false
	}
	g.value = next
	g.ver++
	g.rec, g.err = arbiter.Decode(next)
	if g.rec.Forced && g.rec.Fork.Index != 0 && g.forks != nil {
		g.forks[g.rec.Fork] = true
	}
	if g.heard != nil {
		g.heard(&g.rec)
	}
	return true
}

// deliver applies the late swaps that are due, in the order of their due times.
func (g *register) deliver(now int) {
	for i := 0; i < len(g.late); {
		if l := g.late[i]; l.due <= now {
			g.swap(l.prev, l.next)
			g.late = append(g.late[:i], g.late[i+1:]...)
			continue
		}
		i++
	}
}
