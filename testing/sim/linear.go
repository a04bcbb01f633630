package sim

import (
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

type input struct {
	write bool
	val   uint64
}

// register is one key: a write sets it, a read sees it.
func registerModel(initial uint64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, in, out any) (bool, any) {
			i := in.(input)
			if i.write {
				return true, i.val
			}
			return out.(uint64) == state.(uint64), state
		},
	}
}

// final is the newest state that anybody applied.
func (w *world) final() (vals [keys]uint64) {
	var best db
	for _, s := range w.sites {
		if s == nil {
			continue
		}
		if s.n != nil && s.n.state.ci >= best.ci {
			best = s.n.state
		}
		if s.disk.db.ci > best.ci {
			best = s.disk.db
		}
	}
	return best.vals
}

// judge looks at what clients saw: in every history every key is linearizable, where an operation
// without an answer may have happened at any time after its call, or never.
func (w *world) judge(initial [keys]uint64) {
	answered := map[int]bool{}
	for _, o := range w.ops {
		if o.ret != 0 && !answered[o.line] {
			answered[o.line] = true
			for k := range keys {
				w.judgeKey(o.line, k, initial[k])
			}
		}
	}
}

func (w *world) judgeKey(line, k int, initial uint64) {
	var ops []porcupine.Operation
	seen := map[uint64]bool{}
	for _, o := range w.ops {
		if o.key == k && !o.write && w.standing(o, line) == within {
			seen[o.val] = true
		}
	}
	for i, o := range w.ops {
		// A write without an answer that nobody saw can be taken out of any
		// order, or put at the end of it: it decides nothing.
		if o.key != k {
			continue
		}
		st := w.standing(o, line)
		if st == foreign || (st == perhaps && (!o.write || !seen[o.val])) {
			continue
		}
		p := porcupine.Operation{ClientId: i, Input: input{o.write, o.val}, Call: o.call, Output: o.val, Return: o.ret}
		if st == perhaps {
			p.Return = math.MaxInt64
		}
		ops = append(ops, p)
	}
	if len(ops) == 0 {
		return
	}
	switch porcupine.CheckOperationsTimeout(registerModel(initial), ops, 5*time.Second) {
	case porcupine.Illegal:
		w.violation("the operations on key %d are not linearizable in history %d: %s", k, line, w.history(k))
	case porcupine.Unknown:
		w.violation("the operations on key %d were not checked in time", k)
	}
}
