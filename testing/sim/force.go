package sim

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"twok/arbiter"
	"twok/internal/failover"
)

// forcedClaim is what the shell has to know of the claim that it is about to append for.
type forcedClaim struct {
	fork  arbiter.Position // zero: it is not forced
	from  uint64           // the generation that it was made from
	joins bool             // under a new member ID
	prev  arbiter.Version  // Off.OrderSwap: the swap that comes after the append
	next  []byte
}

type shown struct {
	rec arbiter.Record
	ver arbiter.Version
}

// order is an operator's forced claim: twok arbiter claim --accept-data-loss --override-live-survivor (internal/force).
func (w *world) order(i int) {
	g, s := &w.reg, w.sites[i]
	if g.ver == 0 {
		return
	}
	w.nonce++
	st := failover.Stamp{Nonce: "n" + strconv.FormatUint(w.nonce, 10), Now: int64(w.now+1) * 100}
	rec := failover.Force(g.rec, arbiter.Member{ID: s.disk.id, Name: s.name}, "operator", "forced", st)
	b, err := arbiter.Encode(rec)
	if err != nil {
		w.violation("the order cannot be encoded: %v", err)
		return
	}
	g.swap(g.version(), b)
	w.note(g.rec)
}

// back is the operator's way out of an order that its member refuses, while nobody serves: the next order names the other
// one. If this does not help, the end says so.
func (w *world) back(end string) string {
	for _, s := range w.sites {
		if s != nil && s.n != nil && s.n.leads {
			return end // somebody serves
		}
	}
	other := -1
	for i, s := range w.sites[:2] {
		if s.disk.id != w.reg.rec.Survivor.ID && (other < 0 || s.a.st.Phase == failover.Fenced) {
			other = i
		}
	}
	if other < 0 || !w.reg.rec.Forced {
		return end
	}
	w.order(other)
	if again, _ := w.calm(); again != "whole" {
		return end + ", and after an order for the other one " + again
	}
	return end
}

// removeEverywhere is the same in a history that was given up.
func (w *world) removeEverywhere() {
	for _, s := range w.sites {
		if len(w.lines) == 1 || s == nil || !s.running() || !s.n.leads || s.n == w.leader() || s.n.applied != s.n.commit {
			continue
		}
		w.guard(s, func() {
			s.n.propose(payload{kind: payConf, conf: failover.ConfChange{Kind: failover.ChangeRemove, ID: w.third}})
			w.pump(s)
		})
	}
}

// claims notes what is swapped (P18), and takes the term jump out of it with Off.ForceTerm.
func (a *agent) claims(rec *arbiter.Record) {
	a.claim = forcedClaim{}
	if !rec.Forced || rec.Fork.Index == 0 {
		return
	}
	if d := a.s.disk; a.s.w.off.ForceTerm {
		_, last := d.last()
		was := rec.Fork
		rec.Fork.Term = max(d.hs.term, last) + 1
		for i := range rec.History {
			if rec.History[i].Fork == was {
				rec.History[i].Fork = rec.Fork
			}
		}
	}
	a.claim = forcedClaim{fork: rec.Fork, from: rec.Generation - 1, joins: rec.Survivor.ID != a.s.disk.id}
}

// unfenced shows a lone leader the record as it last named it (Off.Fence), and says so.
func (a *agent) unfenced(e *failover.Event) bool {
	if n := a.s.n; !a.s.w.off.Fence || n == nil || e.Record.Survivor.ID == n.id {
		a.shown = shown{e.Record, e.Version}
		return false
	} else if !n.leads || n.state.voters().Count != 1 || a.shown.rec.Survivor.ID != n.id {
		return false
	}
	e.Record, e.Version, e.Seen = a.shown.rec, a.shown.ver, a.shown.rec.Generation
	return true
}

// forced says whether the operator forces a claim in this schedule.
func (s schedule) forced() bool {
	return slices.ContainsFunc(s.events, func(e event) bool { return e.verb == "force" })
}

// drawForced is draw with forced claims, from a stream of their own: the schedules of draw stay what they are. third
// says whether a third member may be there, too.
func drawForced(seed uint64, steps int, third bool) schedule {
	s := draw(seed, steps)
	s.events = slices.DeleteFunc(s.events, func(e event) bool { return e.verb == "third" && !third })
	r := rand.New(rand.NewPCG(seed, 0xf0ced))
	for range 1 + r.IntN(2) {
		s.events = append(s.events, drawOrder(r, r.IntN(steps*3/4))...)
	}
	slices.SortStableFunc(s.events, func(a, b event) int { return a.at - b.at })
	return s
}

// drawOrder is a story with one order or more in it, from tick t on.
func drawOrder(r *rand.Rand, t int) (es []event) {
	a := two(r)
	add := func(verb string, arg ...int) { es = append(es, event{t, verb, arg}) }
	switch r.IntN(8) {
	case 0: // at any time
		add("force", a)
	case 1: // the double failure: a survivor is lost before the other one came back
		add("cut")
		t += 20 + r.IntN(30)
		if r.IntN(2) == 0 {
			add("off", a)
		} else {
			add("pause", a, 1+r.IntN(60))
			add("hang", a, 1+r.IntN(60))
		}
		add("heal", 0)
		t += r.IntN(12)
		add("force", 1-a)
		t += r.IntN(60)
		add("on", a)
	case 2: // alive behind a cut, and without the arbiter: both write
		add("cut")
		t += 20 + r.IntN(20)
		add("arb", a, r.IntN(3))
		add("force", 1-a)
		t += 10 + r.IntN(60)
		add("arbup")
		t += r.IntN(20)
		add("heal", r.IntN(10))
	case 3: // two operators
		add([]string{"cut", "arbup"}[r.IntN(2)])
		t += r.IntN(40)
		add("force", a)
		t += r.IntN(8)
		add("force", 1-a)
		t += r.IntN(40)
		add("heal", 0)
	case 4: // to one and back to the other
		add("cut")
		t += 20 + r.IntN(20)
		add("force", a)
		t += 8 + r.IntN(30)
		add("force", 1-a)
		t += r.IntN(30)
		add("heal", r.IntN(10))
		add("force", two(r))
	case 5: // a member is removed by hand, and the other one lost
		add("remove", a)
		t += 2 + r.IntN(20)
		add("off", 1-a)
		t += r.IntN(20)
		add("force", a)
		t += 10 + r.IntN(60)
		add("on", 1-a)
	case 6: // who carries it out dies
		add("cut")
		t += 10 + r.IntN(30)
		add("force", a)
		t += r.IntN(4)
		add("afuse", a, 1+r.IntN(24))
		add("afuse", 1-a, 1+r.IntN(40))
		t += r.IntN(20)
		add("fuse", a, 1+r.IntN(30))
		t += r.IntN(30)
		add("heal", 0)
	case 7: // who has its claim out is slow, and the other one is named meanwhile
		add("cut")
		t += r.IntN(40)
		add("force", a)
		t += 2 + r.IntN(8)
		add("hang", a, 4+r.IntN(30))
		t += r.IntN(6)
		add("force", 1-a)
		t += r.IntN(40)
		add("agent", a)
		t += r.IntN(30)
		add("heal", 0)
	}
	return es
}
