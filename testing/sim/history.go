package sim

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"twok/arbiter"
	"twok/internal/failover"
)

// history is what is committed from the beginning of the cluster to its newest entry, without a forced
// claim in between that gave anything up: an append of a forced claim begins a new one (P18), of which the log before it is a part.
type history struct {
	parent int
	gens   []uint64         // of the forced claims that it goes on by
	fork   arbiter.Position // the first entry of its own; zero in the first history
	born   int64            // when that was written, in the order of the clients' operations
	chain  []link           // by index, from the beginning
	top    struct {
		term, index uint64
		site        int
	}
}

// link is one committed entry.
type link struct {
	term, data uint64
	by         string
}

func (l link) same(m link) bool { return l.term == m.term && l.data == m.data }

// has says whether a state of this position is of this history: two entries of one index and term are one
// entry, and so are those before them (w.written).
func (h *history) has(at arbiter.Position) bool {
	return at.Index < uint64(len(h.chain)) && h.chain[at.Index].term == at.Term
}

// tokenAt is where a token was applied.
type tokenAt struct {
	line  int
	index uint64
}

// watchForces turns on what only schedules with forced claims need.
func (w *world) watchForces() {
	w.match, w.tokens, w.reg.forks = map[arbiter.Position]uint64{}, map[uint64]tokenAt{}, map[arbiter.Position]bool{}
	last := w.reg.rec
	w.reg.heard = func(rec *arbiter.Record) {
		prev := last
		last = *rec
		for _, s := range w.sites[:2] {
			switch {
			case s.disk.id != rec.Survivor.ID:
			case rec.Forced && rec.Confirmed.Index != 0, prev.Forced && prev.Survivor.ID == s.disk.id && prev.Fork.Index != 0 && !rec.Forced:
				// Its outcome was known late: its member led already, and goes on without.
				h := w.lines[s.disk.line]
				h.gens = append(h.gens, prev.Generation, rec.Generation)
			case rec.Generation > prev.Generation && !rec.Forced:
				w.goesOn(s)
			}
		}
	}
	for _, s := range w.sites[:2] {
		for _, e := range s.disk.ents {
			w.written(s, e)
		}
		if t := s.disk.db.token; t.Present {
			w.tokens[t.Generation] = tokenAt{}
		}
	}
}

// written is Raft's Log Matching over all histories, and over all logs that there ever were, those that were set aside
// too: two entries of one index and term are one entry.
func (w *world) written(s *site, e *raftpb.Entry) {
	if w.match == nil {
		return
	}
	at, d := arbiter.Position{Index: e.GetIndex(), Term: e.GetTerm()}, digest(e)
	if old, ok := w.match[at]; ok && old != d {
		w.violation("%s has another entry at %d/%d than a log had before", s.name, at.Index, at.Term)
	}
	w.match[at] = d
}

// birth: a forced append is written. The whole log before it, committed or not, is the history that it goes on with.
func (w *world) birth(a *agent, fork arbiter.Position) {
	d := a.s.disk
	h := &history{parent: d.line, gens: []uint64{a.claim.from + 1}, fork: fork, born: w.seq}
	h.chain = append(h.chain, w.lines[d.db.line].chain[:d.db.ci+1]...)
	ents, _ := d.after(d.db.ci)
	for _, e := range ents {
		h.chain = append(h.chain, link{e.GetTerm(), digest(e), a.s.name})
	}
	w.lines = append(w.lines, h)
	d.line = len(w.lines) - 1
	if a.claim.joins {
		w.joins++
	}
	w.say("%s begins history %d at %d/%d", a.s.name, len(w.lines)-1, fork.Index, fork.Term)
	// A pair that was whole under the order made it void: what that pair has acknowledged nobody gave up (P18).
	t, ok := w.tokens[a.claim.from]
	for _, o := range w.ops {
		if ok && o.ret != 0 && o.write && o.line == t.line && o.at.Index >= t.index && !h.has(o.at) {
			w.violation("%s carries out the order of generation %d, under which the pair was whole, and gives up a write at %d/%d that was acknowledged since",
				a.s.name, a.claim.from, o.at.Index, o.at.Term)
			return
		}
	}
}

// sent: a leader's entries, or its snapshot, come to a member, which follows that leader's history from here on, unless
// it has committed something else.
func (w *world) sent(from, n *node, m *raftpb.Message, line int) {
	d, st := n.s.disk, n.rn.BasicStatus().HardState
	if t := m.GetType(); line == d.line || from == nil || (t != raftpb.MsgApp && t != raftpb.MsgSnap) || m.GetTerm() < st.GetTerm() {
		return
	}
	h := w.lines[line]
	other := func(at, term uint64) bool {
		have, err := n.ms.Term(at)
		return err == nil && at > 0 && have != term
	}
	commit := max(st.GetCommit(), n.state.ci)
	at := min(commit, uint64(len(h.chain))-1)
	if other(at, h.chain[at].term) || (commit >= h.fork.Index && other(h.fork.Index, h.fork.Term)) {
		return
	}
	d.line = line
}

// follow: a member that goes over to another history has applied nothing that is not of it.
func (w *world) follow(n *node) {
	line := n.s.disk.line
	if line == n.state.line {
		return
	}
	at := arbiter.Position{Index: n.state.ci, Term: n.state.term}
	if at.Index > 0 && !w.lines[line].has(at) {
		w.violation("%s goes over to history %d, which has not the entry at %d/%d that it has applied", n.s.name, line, at.Index, at.Term)
	}
	n.state.line = line
}

func (w *world) tokenApplied(generation uint64, at tokenAt) {
	if w.tokens == nil {
		return
	}
	if h := w.strange(at.line); generation == w.reg.rec.Generation && h.Last != 0 {
		w.violation("a token of generation %d in history %d, which was given up by the forced claim of generations %d to %d", generation, at.line, h.First, h.Last)
	}
	if _, ok := w.tokens[generation]; !ok {
		w.tokens[generation] = at
	}
}

// patience is how many ticks of its agent a lone leader may go on after that agent has read that the record names
// somebody else: until a call that is out ends, and etcd is stopped (P16).
const patience = 24

// tell notes that the agent has read this record while it knows that its member leads alone.
func (a *agent) tell(rec *arbiter.Record) {
	n := a.s.n
	if n == nil || a.st.Phase != failover.Alone || !n.leads || !n.open || n.state.voters().Count != 1 || rec.Survivor.ID == 0 || rec.Survivor.ID == n.id ||
		(n.state.token.Present && n.state.token.Generation == rec.Generation) { // it was left alone by hand (F33)
		a.told = 0
		return
	}
	if a.told == 0 || a.toldInc != n.inc {
		a.told, a.toldInc = 1, n.inc
	}
}

// acknowledged: a client was told that its operation took place.
func (w *world) acknowledged(s *site, o *op) {
	n := s.n
	if s.a.told > patience && s.a.toldInc == n.inc && n.leads && n.state.voters().Count == 1 {
		w.violation("%s answers %d ticks after its agent has read that the record names somebody else", s.name, s.a.told)
	}
	if h := w.lines[o.line]; o.line > 0 && !w.reg.forks[h.fork] {
		w.violation("%s answers in a history, from %d/%d on, that no claim in the record has begun", s.name, h.fork.Index, h.fork.Term)
	}
}

// givenUp counts the acknowledged writes that are not of this history.
func (w *world) givenUp(line int) (n int) {
	for _, o := range w.ops {
		if o.write && o.ret != 0 && !w.lines[line].has(o.at) {
			n++
		}
	}
	return n
}

// strange is the newest forced claim in the record that was carried out, if this history does not go on with it.
func (w *world) strange(line int) arbiter.HistoryEntry {
	of := func(h *history, c arbiter.HistoryEntry) bool {
		return slices.ContainsFunc(h.gens, func(g uint64) bool { return c.First <= g && g <= c.Last })
	}
	var newest arbiter.HistoryEntry
	for _, c := range w.reg.rec.History {
		if c.Forced && slices.ContainsFunc(w.lines, func(h *history) bool { return of(h, c) }) {
			newest = c
		}
	}
	for k := line; newest.Last != 0; k = w.lines[k].parent {
		if of(w.lines[k], newest) {
			return arbiter.HistoryEntry{}
		}
		if k == 0 {
			break
		}
	}
	return newest
}

// goesOn: who claims without force goes on with the history that the record's newest forced claim began.
func (w *world) goesOn(s *site) {
	if h := w.strange(s.disk.line); h.Last != 0 {
		w.violation("%s claims out of history %d, which was given up by the forced claim of generations %d to %d", s.name, s.disk.line, h.First, h.Last)
	}
}

// standing is what a client's answer means in a history.
type standing uint8

const (
	foreign standing = iota // another history's
	perhaps                 // no answer; or a write of this history, answered in one that was given up
	within
)

// standing: an answer counts if it was given in this history, or in one that this one goes on with, before it began.
func (w *world) standing(o *op, line int) standing {
	h := w.lines[line]
	switch {
	case o.ret == 0:
		return perhaps
	case o.line == line:
		return within
	case !h.has(o.at):
		return foreign
	}
	for k := line; k != o.line; k = w.lines[k].parent {
		if k == 0 || w.lines[k].born < o.ret { // at 0: not one of its parents
			if o.write {
				return perhaps
			}
			return foreign
		}
	}
	return within
}

// kept checks a log that is kept at a return (P13, P18): it is of the survivor's history.
func (a *agent) kept() {
	w := a.s.w
	if w.match == nil || w.off.KeepLog || w.off.KeepForced {
		return
	}
	if a.st.Rec.Generation != w.reg.rec.Generation {
		return // it knows an older record, and an order is on its way to the survivor
	}
	if mine, other := a.s.disk.line, w.sites[1-a.s.i].disk.line; mine != other {
		w.violation("%s returns with the log of history %d to a survivor of history %d", a.s.name, mine, other)
	}
}

// keeps is P13 without what it says of forced claims (Off.KeepForced).
func (a *agent) keeps() bool {
	if !a.s.w.off.KeepForced {
		return false
	}
	rec := a.s.w.reg.rec
	for i := range rec.History {
		rec.History[i].Forced = false
	}
	return failover.KeepLog(rec, a.data(0)) == failover.None
}
