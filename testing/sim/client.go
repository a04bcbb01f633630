package sim

import (
	"fmt"

	"twok/arbiter"
)

// op is one client operation. After its deadline nobody knows what became of it.
type op struct {
	key     int
	write   bool
	val     uint64
	call    int64
	ret     int64 // zero: no answer
	site    int
	inc     uint32
	req     *request
	end     int
	unknown bool
	line    int              // the history that answered
	at      arbiter.Position // and where it was then: a write's own entry
}

// clients begin operations and collect answers.
func (w *world) clients() {
	busy := 0
	for _, o := range w.ops {
		if o.ret != 0 || o.unknown {
			continue
		}
		busy++
		s := w.sites[o.site]
		switch {
		case o.req.done && s.n != nil && s.n.inc == o.inc && s.pausedTo <= w.now:
			if !o.req.ok {
				o.unknown = true
				break
			}
			if !o.write {
				o.val = o.req.res.vals[o.key]
			}
			w.seq++
			o.ret = w.seq
			o.line, o.at = o.req.res.line, arbiter.Position{Index: o.req.res.ci, Term: o.req.res.term}
			w.acknowledged(s, o)
		case w.now > o.end || s.n == nil || s.n.inc != o.inc:
			o.unknown = true
		}
	}
	if !w.mute && busy < 6 && len(w.ops) < 70 && w.r.IntN(3) == 0 {
		w.begin()
	}
}

func (w *world) begin() {
	i := w.r.IntN(2)
	n := w.client(i, i)
	if n == nil || n.lead == 0 {
		return
	}
	for range 1 + w.r.IntN(3)/2 {
		w.seq++
		o := &op{key: w.r.IntN(keys), write: w.r.IntN(5) < 3, call: w.seq, site: i, inc: n.inc, end: w.now + 10}
		if o.write {
			w.seq++
			o.val = uint64(w.seq)
			o.req = n.propose(payload{kind: payPut, key: o.key, val: o.val})
		} else {
			o.req = n.read()
		}
		w.ops = append(w.ops, o)
		w.pump(w.sites[i])
		if w.sites[i].n != n {
			return
		}
	}
}

// history prints the operations on one key.
func (w *world) history(k int) string {
	out := ""
	for _, o := range w.ops {
		if o.key != k {
			continue
		}
		kind := "read"
		if o.write {
			kind = "write"
		}
		out += fmt.Sprintf("\n  %d..%d %s %d at %s", o.call, o.ret, kind, o.val, w.sites[o.site].name)
	}
	return out
}
