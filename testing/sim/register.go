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
	any   bool // Off.Swap
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
