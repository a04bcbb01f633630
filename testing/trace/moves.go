package trace

import (
	"fmt"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/testing/explore"
)

// env makes the hidden moves: what happened between two lines and no agent wrote down. Every
// one is a move of the explorer or several in a row; foresight (facts) only says how
// far a log grows, how much is on disk and what a new member's ID is.
type env struct {
	*facts
	opt  Options
	line int // that is to be explained
	// The highest term that is seen in it or soon after: nobody was elected in a later one, or nobody ever saw it.
	topTerm uint32
}

// leader is the node that leads in the highest term.
func leader(w *explore.World) int {
	l := -1
	for i := range w.Nodes {
		if w.Leads(i) && (l < 0 || w.Nodes[i].Term > w.Nodes[l].Term) {
			l = i
		}
	}
	return l
}

// isSpecial says whether the entry that comes next at this leader is known to be no client's.
func (f *facts) isSpecial(index int, term uint32) bool {
	return f.special[arbiter.Position{Index: uint64(index), Term: uint64(term)}] != 0
}

// place lets clients write until what leader l proposes next, for site i, has its known place.
func (v *env) place(w *explore.World, i, l int, what uint64) {
	n := &w.Nodes[l]
	at := 0
	for p, x := range v.special {
		if x != what || int(p.Index) <= len(n.Log) || p.Term != uint64(n.Term) || (at > 0 && int(p.Index) > at) {
			continue
		}
		// Of several writes of one token the last one is the one that stays.
		if line, told := v.written[p]; what == aToken && told && line != v.reply(i) {
			continue
		}
		at = int(p.Index)
	}
	if at > 0 {
		v.write(w, l, at-1)
		v.flow(w)
	}
}

// unkept says whether the next reply to a rewrite says that the log was not kept.
func (v *env) unkept(i int) bool {
	for _, l := range v.lines[v.line:] {
		if l.Site == i && l.In != nil && l.In.Kind == failover.Rewritten {
			return l.In.Why != failover.None
		}
	}
	return false
}

// reply is the line that answers the token write that site i has out.
func (v *env) reply(i int) int {
	for _, n := range v.tokens[i] {
		if n >= v.line {
			return n
		}
	}
	return -1
}

// limit is how long the log of node i gets while this leader leads, as far as that is known.
func (v *env) limit(w *explore.World, i, l int) int {
	if i < 2 {
		d, term := v.next(i, v.line, w.Nodes[i].ID), uint64(w.Nodes[l].Term)
		switch {
		case d == nil:
		case d.Last.Term == term:
			return int(d.Last.Index)
		case i != l && d.Last.Term < term && d.Term >= term: // it heard of the term, and got no entry of it
			return 0
		}
	}
	return 1 << 30
}

// fill lets clients write until the log of leader l has this length. They leave the last places before
// an entry that is known to be none of theirs to the changes of members that came before it.
func (v *env) fill(w *explore.World, l, upto int) bool {
	n := &w.Nodes[l]
	for p := range v.special {
		if at := int(p.Index); at > len(n.Log) && p.Term == uint64(n.Term) {
			upto = min(upto, at-1-spare)
		}
	}
	return v.write(w, l, upto)
}

// write lets clients write until the log of leader l has this length.
func (v *env) write(w *explore.World, l, upto int) bool {
	upto = min(upto, v.limit(w, l, l))
	did := false
	for n := &w.Nodes[l]; len(n.Log) < upto; did = true {
		if v.isSpecial(len(n.Log)+1, n.Term) || !w.Put(l) {
			break
		}
	}
	return did
}

// flow lets the leader send, hear, commit and apply all that it can.
func (v *env) flow(w *explore.World) bool {
	did := false
	for range 4 {
		again := false
		l := leader(w)
		for j := range w.Nodes {
			if l >= 0 && w.Leads(l) && j != l {
				again = w.SendTo(l, j, v.limit(w, j, l), true) || again
			}
		}
		for i := range w.Nodes {
			if w.Alive(i) {
				again = w.ApplyAll(i) || again
			}
		}
		if !again {
			break
		}
		did = true
	}
	return did
}

// behind is how many writes leader l commits alone after the promotion of node i that comes next, before it applies
// it: what the leader is known to have committed in its time, and the other one's log is known to have ended
// before. Negative: nothing says that there was any.
func (v *env) behind(w *explore.World, i, l int) int {
	n := &w.Nodes[l]
	at, has := len(n.Log)+1, v.limit(w, i, l)
	if l > 1 || has >= at-1 {
		return -1
	}
	d := v.next(l, v.line, n.ID)
	if d == nil || d.Last.Term != uint64(n.Term) {
		return -1
	}
	return max(0, int(d.Commit)-at)
}

// theLink is what ends in prepare when no member does.
const theLink = -1

// prepare brings the logs to the length that they are known to have at the end of this
// leader's time, before a member, or the link, ends it.
func (v *env) prepare(w *explore.World, ends int) {
	l := leader(w)
	if l < 0 || l > 1 || ends > 1 {
		return
	}
	if n := v.limit(w, 1-l, l); n < 1<<30 {
		v.fill(w, l, n)
		v.flow(w)
	}
	if n := v.limit(w, l, l); n < 1<<30 && (ends == l || (ends == theLink && w.OwnVoters(l).Count > 1)) {
		v.fill(w, l, n)
		w.ApplyAll(l) // what it commits alone may be in its database, though no hard state on disk says so
	}
}

// flush writes what the disk of node i is known to hold the next time that it is read.
func (v *env) flush(w *explore.World, i int) {
	if i > 1 {
		return
	}
	d := v.next(i, v.line, w.Nodes[i].ID)
	if d == nil {
		w.Flush(i, 1<<30, 1<<30)
		return
	}
	w.Flush(i, int(d.Commit), int(d.Applied))
	if d.First > 0 {
		w.CompactTo(i, int(d.First)-1)
	}
}

// lastToken is the index of the last token in a log.
func lastToken(n *explore.Node) int {
	for k := len(n.Log); k > 0; k-- {
		if n.Log[k-1].Kind == explore.TokenWrite {
			return k
		}
	}
	return 0
}

// effect carries out what agent i has out.
func (v *env) effect(c *cand, i, slot int, how explore.How) bool {
	w := &c.w
	a := w.Sites[i].Out[slot]
	if a == nil {
		return false
	}
	switch a.Kind {
	case failover.ReadRecord, failover.LookAtList, failover.Sample, failover.Preflight, failover.Tidy:
		return false // without effect: see pure
	case failover.Stop:
		if w.Alive(i) {
			v.prepare(w, i)
			v.flush(w, i)
		}
	case failover.Restart:
		v.flush(w, i)
	case failover.WriteToken, failover.Promote:
		what := uint64(aToken)
		if a.Kind == failover.Promote {
			what = a.ID
		}
		if l := leader(w); l >= 0 {
			v.place(w, i, l, what)
			if n := v.behind(w, i, l); a.Kind == failover.Promote && how == explore.OK && n >= 0 {
				return w.PromoteBehind(i, slot, n)
			}
		}
	case failover.Rewrite:
		if a.Keep && v.unkept(i) {
			b := *a
			b.Keep = false
			w.Sites[i].Out[slot] = &b
		}
	case failover.AddLearner:
		if n := c.added[i]; n < len(v.later[i]) {
			w.IDs = v.later[i][n] - 1
		} else {
			w.IDs = max(w.IDs, 1<<63) + 1
		}
	}
	if !w.Effect(i, slot, how) {
		return false
	}
	if a.Kind == failover.AddLearner && w.Nodes[1-i].Leader {
		c.added[i]++
	}
	return true
}

// What the end of an etcd costs, and a user's deed: dearer than that a watcher missed something.
const (
	crash  = 4
	byUser = 3
)

// attempt makes a hidden move and gives its outcome to each, if it could be made.
func (v *env) attempt(c *cand, name string, move func(d *cand) bool, each func(*cand)) {
	v.attemptFor(1, c, name, move, each)
}

// attemptFor does so for this cost.
func (v *env) attemptFor(cost int, c *cand, name string, move func(d *cand) bool, each func(*cand)) {
	d := c.clone()
	if !move(d) || d.w.Broken() {
		d.free()
		return
	}
	d.did(v.line, "%s", name)
	d.steps++
	d.price += cost
	each(d)
}

// ends carries out what is out before the agent of the line dies, or never learns of it.
func (v *env) ends(c *cand, l *Line, each func(*cand)) {
	hows := []explore.How{explore.OK, explore.Lose, explore.Later, explore.Tear1, explore.Tear2}
	for slot, a := range c.w.Sites[l.Site].Out {
		if a == nil || (l.Start == nil && a.Kind.Reply() != l.In.Kind) {
			continue
		}
		for _, how := range hows {
			if (how == explore.Tear1 || how == explore.Tear2) && (a.Kind != failover.Append || l.Start == nil) {
				continue
			}
			v.attempt(c, fmt.Sprintf("%s of %s is carried out (%s)", a.Kind, string("ab"[l.Site]), how),
				func(d *cand) bool { return v.effect(d, l.Site, slot, how) }, each)
			if a.Kind == failover.WriteToken && how != explore.OK { // the other member's list may just have come so far
				v.attempt(c, fmt.Sprintf("the leader's messages arrive, %s of %s is carried out (%s)", a.Kind, string("ab"[l.Site]), how),
					func(d *cand) bool { return v.flow(&d.w) && v.effect(d, l.Site, slot, how) }, each)
			}
		}
	}
}

// hidden tries every move that may lead on from c, and gives those that could be made to each.
func (v *env) hidden(c *cand, n *need, each func(*cand)) {
	try := func(name string, move func(d *cand) bool) { v.attempt(c, name, move, each) }
	op := func(name string, o explore.Op, a int) {
		try(name, func(d *cand) bool { return d.w.Apply(explore.Move{Op: o, A: uint8(a)}) })
	}
	hows := []explore.How{explore.OK, explore.Lose, explore.Later}
	for i, site := range []string{"a", "b"} {
		for slot := range 2 {
			a := c.w.Sites[i].Out[slot]
			if a == nil {
				continue
			}
			for _, how := range hows {
				switch a.Kind {
				case failover.Swap, failover.AddLearner, failover.RemoveLearner, failover.Promote, failover.WriteToken, failover.Rewrite:
				default:
					if how != explore.OK {
						continue
					}
				}
				try(fmt.Sprintf("%s of %s is carried out (%s)", a.Kind, site, how), func(d *cand) bool { return v.effect(d, i, slot, how) })
			}
		}
	}
	if n.commit > 0 {
		try(fmt.Sprintf("clients write up to %d", n.commit), func(d *cand) bool {
			l := leader(&d.w)
			return l >= 0 && (v.write(&d.w, l, n.commit) || v.flow(&d.w)) && (v.flow(&d.w) || true)
		})
	}
	try("the leader's messages arrive", func(d *cand) bool { return v.flow(&d.w) })
	if c.w.Link {
		try("the link is cut", func(d *cand) bool {
			v.prepare(&d.w, theLink)
			return d.w.Apply(explore.Move{Op: explore.Cut})
		})
	} else {
		op("the link is healed", explore.Heal, 0)
	}
	for i, site := range []string{"a", "b", "c"} {
		if c.w.Nodes[i].ID == 0 {
			continue
		}
		try("etcd "+site+" starts", func(d *cand) bool { return d.w.Up(i) })
		for _, lags := range []bool{false, true} {
			name := "etcd " + site + " ends"
			if lags {
				name += ", its database lacks the last token"
			}
			v.attemptFor(crash, c, name, func(d *cand) bool {
				if !d.w.Alive(i) {
					return false
				}
				v.prepare(&d.w, i)
				if !lags {
					v.flush(&d.w, i)
				} else if at := lastToken(&d.w.Nodes[i]); at <= d.w.Nodes[i].DB {
					return false
				} else {
					hs := 1 << 30
					if next := v.next(i, v.line, d.w.Nodes[i].ID); next != nil {
						hs = int(next.Commit)
					}
					d.w.Flush(i, hs, at-1)
				}
				return d.w.Down(i)
			}, each)
		}
		for _, quick := range []bool{true, false} {
			name := site + " is elected"
			if quick {
				name += ", its entry is applied"
			}
			try(name, func(d *cand) bool {
				d.w.ApplyAll(i)
				if !d.w.Apply(explore.Move{Op: explore.Elect, A: uint8(i)}) || d.w.Nodes[i].Term > v.topTerm || !v.mayLead(d.w.Nodes[i].ID, d.w.Nodes[i].Term) {
					return false
				}
				return !quick || v.flow(&d.w) || true
			})
		}
		try(site+" is elected and does not hear of it", func(d *cand) bool {
			return d.w.Apply(explore.Move{Op: explore.ElectLost, A: uint8(i)}) && d.w.Nodes[i].Term <= v.topTerm
		})
		try(site+" steps down", func(d *cand) bool {
			if !d.w.Leads(i) || d.w.Reaches(i) {
				return false
			}
			v.prepare(&d.w, theLink)
			return d.w.Apply(explore.Move{Op: explore.StepDown, A: uint8(i)})
		})
		try(site+" learns that it was removed", func(d *cand) bool {
			v.flush(&d.w, i)
			return d.w.Apply(explore.Move{Op: explore.Learn, A: uint8(i)})
		})
	}
	if v.opt.Disks {
		for i, site := range []string{"a", "b"} {
			v.attemptFor(crash, c, "the disk of "+site+" is replaced, etcd makes itself a member of the beginning there", func(d *cand) bool {
				return d.w.Replace(i)
			}, each)
		}
	}
	if v.opt.Users && (n.inside || n.reply == 2 || n.commit > 0) {
		v.users(c, each)
	}
	for k := range c.w.Late {
		if c.w.Late[k] != nil {
			op("the store applies a late swap", explore.Apply1, k)
		}
	}
	if c.w.Txn != nil {
		op("a late token transaction arrives", explore.Arrive, 0)
	}
}

// users has what people do to the members.
func (v *env) users(c *cand, each func(*cand)) {
	l := leader(&c.w)
	if l < 0 || l > 1 {
		return
	}
	for _, id := range v.third {
		for _, learner := range []bool{false, true} {
			v.attemptFor(byUser, c, fmt.Sprintf("a user adds %016x (learner %t)", id, learner), func(d *cand) bool {
				v.place(&d.w, l, l, id)
				return d.w.UserAdds(l, id, learner) && (v.flow(&d.w) || true)
			}, each)
		}
		v.attemptFor(byUser, c, fmt.Sprintf("a user removes %016x", id), func(d *cand) bool {
			v.place(&d.w, l, l, id)
			return d.w.UserRemoves(l, id) && (v.flow(&d.w) || true)
		}, each)
	}
	v.attemptFor(byUser, c, "a user removes the other member", func(d *cand) bool {
		v.place(&d.w, l, l, d.w.Nodes[1-l].ID)
		return d.w.UserRemoves(l, d.w.Nodes[1-l].ID) && (v.flow(&d.w) || true)
	}, each)
}
