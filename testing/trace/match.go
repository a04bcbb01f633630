package trace

import (
	"fmt"
	"slices"

	"twok/internal/agent"
	"twok/internal/failover"
	"twok/testing/explore"
)

// need is what stands between a candidate and the next line.
type need struct {
	peer   bool   // the other site has to answer, or to be silent
	status bool   // a leader, none, or no etcd
	inside bool   // a member list or a token has to be applied
	start  bool   // etcd has to be started
	commit int    // this much has to be committed
	reply  int    // 1 + the slot whose action has to be carried out
	why    string // for people
}

func (n *need) say(format string, args ...any) {
	if n.why == "" {
		n.why = fmt.Sprintf(format, args...)
	}
}

func (n *need) any() bool { return n.why != "" }

// The costs of saying that a watcher saw less than there is: a call of it ran into its
// deadline. Dearer than a cut that makes it so.
const (
	blindPeer   = 2
	blindStatus = 2
	blindAway   = 1
	blindInside = 1
	lateMessage = 3
)

// look holds what the agent of site i saw against what was there to see. An observation
// may be old, part by part, and it may show less than there is; it never shows what was not there.
func (c *cand) look(f *facts, l *Line) (fed failover.Obs, n need, blind int) {
	i, now, o := l.Site, l.At, l.In.Obs
	fed = o
	fed.Term, fed.Cluster, fed.Token = f.term(o.Term), f.clusterOf(o.Cluster), f.token(o.Token)
	fed.Token.EntryTerm = 0
	last := &c.last[i]
	etcd := func(s failover.EtcdState) func(*view) bool { return func(v *view) bool { return v.obs.Etcd == s } }
	switch o.Etcd {
	case failover.EtcdLed:
		// etcd reads the leader, and the term of the last applied entry, apart: the term may be one of before.
		ok := c.seen(i, now, func(v *view) bool {
			return v.obs.Etcd == failover.EtcdLed && v.obs.Leader == o.Leader && v.obs.Term >= fed.Term && v.obs.Learner == o.Learner
		}) && c.seen(i, now, func(v *view) bool { return v.obs.Term == fed.Term })
		late := !ok && !o.Learner && c.echo(i, now, o.Leader, fed.Term)
		switch {
		case late && last.Etcd != failover.EtcdLed:
			blind += lateMessage
		case !ok && !late:
			n.status = true
			n.say("it sees %016x lead in term %d (learner %t)", o.Leader, fed.Term, o.Learner)
		}
		if o.Learner {
			break
		}
		if o.Voters.Count == 0 {
			blind += blindInside
		} else if !c.seen(i, now, func(v *view) bool { return v.obs.Voters == o.Voters }) && !(late && o.Voters == c.w.OwnVoters(i)) {
			n.inside = true
			n.say("its list shows %d voters %x and %d learners", o.Voters.Count, o.Voters.IDs, o.Voters.Learners)
		}
	case failover.EtcdNoLeader:
		switch {
		case c.seen(i, now, etcd(failover.EtcdNoLeader)):
		case c.seen(i, now, etcd(failover.EtcdLed)):
			if last.Etcd != failover.EtcdNoLeader { // else as before
				blind += blindStatus
			}
		default:
			n.status = true
			n.say("its etcd answers")
		}
	case failover.EtcdAway:
		if !c.seen(i, now, etcd(failover.EtcdAway)) && last.Etcd != failover.EtcdAway {
			blind += blindAway
		}
	}
	if o.Etcd != failover.EtcdLed { // the core asks for none of these then
		fed.Voters, fed.Leader, fed.Learner = failover.Voters{}, 0, false
	}
	switch {
	case !o.TokenRead:
	case c.seen(i, now, func(v *view) bool { return v.obs.Token == fed.Token }):
	case o.Etcd != failover.EtcdLed && last.TokenRead && last.Token == fed.Token: // kept from before
	default:
		n.inside = true
		n.say("it sees a token of generation %d for %x", fed.Token.Generation, fed.Token.Members)
	}
	contact := l.Quiet < l.Ticks
	switch {
	case (o.Peer || contact) && !c.seen(i, now, func(v *view) bool { return v.obs.Peer }):
		n.peer = true
		n.say("the other site answers")
	case !o.Peer && last.Peer && !c.seen(i, now, func(v *view) bool { return !v.obs.Peer }):
		blind += blindPeer
	}
	switch {
	case o.Member == 0 || o.Member == last.Member:
	case !c.seen(i, now, func(v *view) bool { return v.obs.Member == o.Member }):
		n.inside = true
		n.say("its member is %016x", o.Member)
	}
	if at := int(f.index(o.Commit)); at > c.top[i] {
		n.commit = at
		n.say("it sees the commit index %d, %d of the model", o.Commit, at)
	}
	// An etcd that is started while the agent holds the locks waits for them: the model's starts afterwards.
	if s := c.starts[i]; started(o.Start) && o.Start != s.real && !c.w.Sites[i].Locked && !c.seen(i, now, func(v *view) bool { return v.obs.Start > s.model }) {
		n.start = true
		n.say("its etcd was started")
	}
	return fed, n, blind
}

// noProcess is Obs.Start while no process runs: the hash of nothing.
const noProcess = 0x69691905

// started: zero is not known.
func started(v uint32) bool { return v != 0 && v != noProcess }

// tick lets the agent of the line see what the trace says, if that was to be seen.
func (c *cand) tick(f *facts, l *Line) (n need, blind int) {
	fed, n, blind := c.look(f, l)
	if n.any() {
		return n, blind
	}
	i := l.Site
	if o := l.In.Obs; started(o.Start) && o.Start != c.starts[i].real {
		c.starts[i].real = o.Start
		for k := range c.views[i] {
			if v := &c.views[i][k]; v.until >= l.At-staleFor && v.obs.Start > c.starts[i].model {
				c.starts[i].model = v.obs.Start
				break
			}
		}
	}
	c.last[i] = fed
	e := l.In.Event
	e.Obs = fed
	c.step(f, l, e, &n)
	return n, blind
}

// step gives the model's agent the event and holds what it does against the line.
func (c *cand) step(f *facts, l *Line, e failover.Event, n *need) {
	i := l.Site
	s := &c.w.Sites[i]
	tmp := *l
	tmp.In = &agent.Given{Event: e}
	e.RecordID = explore.RecordID
	var acts []failover.Action
	_, acts = replay(s.S, &tmp, func(_ failover.State, e failover.Event) (failover.State, []failover.Action) {
		e.Stamp, e.RecordID = c.w.Stamp(), explore.RecordID
		acts := c.w.Given(i, e)
		return s.S, acts
	})
	switch {
	case c.w.Broken():
		n.say("%s: %s", c.w.Prop, c.w.Text)
	case s.S.Phase.String() != l.To || s.S.Why.String() != l.Reason:
		n.say("the model's agent goes to %s (%s)", s.S.Phase, s.S.Why)
	case len(acts) != len(l.Out):
		n.say("the model's agent asks for %d actions", len(acts))
	}
	if n.any() {
		return
	}
	for k := range acts {
		c.same(f, l, &acts[k], l.Out[k].Action, n)
	}
	if l.Dropped {
		s.Out = [2]*failover.Action{}
	}
}

// same holds an action of the model's agent against the real one.
func (c *cand) same(f *facts, l *Line, model *failover.Action, real failover.Action, n *need) {
	i := l.Site
	switch real.Kind {
	case failover.ReadRecord:
		c.asked[i] = l.At
	case failover.LookAtList:
		c.lists[i] = nil
	case failover.Rewrite:
		c.wrote[i] = *model
	case failover.Sample:
		c.from[i] = c.w.Nodes[i].Applied
	case failover.Swap:
		out := c.w.Sites[i].Out[0]
		if p := c.w.Sites[i].S.Purpose; p == failover.ForWhole || p == failover.ForMark {
			// The commit index is the agent's own, as it saw it.
			model.Record.MarkIndex = f.index(model.Record.MarkIndex)
			out.Record.MarkIndex = model.Record.MarkIndex
		}
		if real.Prev.Exists() != model.Prev.Exists() || (real.Prev.Exists() && !c.version(real.Prev.Tag(), explore.VersionOf(model.Prev))) {
			n.say("the swap expects the version %q", real.Prev.Tag())
		}
		want, have := f.rec(real.Record), bare(model.Record)
		if !real.Prev.Exists() {
			want.ID = explore.RecordID // of this proposal; see came
		}
		if want != have {
			n.say("the swap stores another record: %s", diff(want, have))
		}
		if !c.claim(real.Record.ClaimNonce, model.Record.ClaimNonce) {
			n.say("the record shows another claim")
		}
		real.Record, real.Prev = model.Record, model.Prev
	}
	real.Index, real.Term, real.Cluster, real.RecordID = f.index(real.Index), f.term(real.Term), f.clusterOf(real.Cluster), f.recordOf(real.RecordID)
	slices.Sort(real.Remove[:])
	m := *model
	slices.Sort(m.Remove[:])
	m.Twins, real.Twins = 0, 0
	if m != real {
		n.say("the model's agent asks for another %s: %s", m.Kind, diff(real, m))
	}
}

// version binds a version of the store to one of the model's, and says whether that is possible.
func (c *cand) version(real string, model uint32) bool {
	for _, v := range c.vers {
		if v.real == real || v.model == model {
			return v.real == real && v.model == model
		}
	}
	c.vers = append(c.vers, pair[string, uint32]{real, model})
	return true
}

// claim does the same for nonces of claims.
func (c *cand) claim(real, model string) bool {
	if (real == "") != (model == "") {
		return false
	}
	for _, v := range c.claims {
		if v.real == real || v.model == model {
			return v.real == real && v.model == model
		}
	}
	c.claims = append(c.claims, pair[string, string]{real, model})
	return true
}

// reply lets the agent of the line have its reply, if the model can give it.
func (c *cand) reply(f *facts, l *Line) (n need) {
	i, real := l.Site, l.In.Event
	s := &c.w.Sites[i]
	slot := 1
	if real.Kind == failover.RecordRead || real.Kind == failover.Swapped {
		slot = 0
	}
	out, back := s.Out[slot], s.Back[slot]
	if (out == nil || out.Kind.Reply() != real.Kind) && (back == nil || back.Kind != real.Kind) {
		n.say("nothing is out that %s answers", real.Kind)
		return n
	}
	var e failover.Event
	if real.Kind == failover.DataRead && real.Outcome == failover.Done && real.Data.Problem != failover.None {
		e = real // a damaged disk: nothing else counts then
	} else if back != nil {
		e = *back
		c.sameReply(f, i, &e, real, &n)
	} else {
		e = failover.Event{Kind: real.Kind}
		c.pure(f, l, out, &e, &n)
	}
	if n.any() {
		return n
	}
	s.Out[slot], s.Back[slot] = nil, nil
	e.Outcome, e.Why, e.Random = real.Outcome, real.Why, real.Random
	e.List.Version = real.List.Version
	c.step(f, l, e, &n)
	return n
}

// pure is the reply to an action that has no effect, or that had none: it failed, or nobody knows.
func (c *cand) pure(f *facts, l *Line, out *failover.Action, e *failover.Event, n *need) {
	i, real := l.Site, l.In.Event
	undone := real.Outcome == failover.Failed || real.Outcome == failover.Unknown
	switch real.Kind {
	case failover.RecordRead:
		c.readRecord(f, l, e, n)
		return
	case failover.Listed:
		if real.Outcome != failover.Done || !real.List.OK {
			return
		}
		want := real.List
		want.Cluster, want.Version = f.clusterOf(want.Cluster), 0
		for _, m := range c.lists[i] {
			m.Version = 0
			if m == want {
				e.List = m
				return
			}
		}
		n.reply = 2
		n.say("the survivor's list shows %+v, not %+v", want, c.lists[i])
		return
	case failover.Sampled:
		if real.Outcome != failover.Done {
			return
		}
		p := f.pos(real.Position)
		if int(p.Index) > c.w.Nodes[i].Applied {
			n.commit = int(p.Index)
			n.say("it has applied %d@%d, %d@%d of the model", real.Position.Index, real.Position.Term, p.Index, p.Term)
		} else if int(p.Index) <= c.from[i] || !c.w.ConfirmedAt(i, p) {
			n.reply = 2
			n.say("it may not confirm %d@%d of the model, having applied %d when it was asked", p.Index, p.Term, c.from[i])
		}
		e.Position = p
		return
	case failover.Preflighted, failover.Tidied:
		return
	}
	if undone {
		return
	}
	n.reply = 2
	if real.Kind == failover.Swapped {
		n.reply = 1
	}
	n.say("%s is carried out", out.Kind)
}

func (c *cand) readRecord(f *facts, l *Line, e *failover.Event, n *need) {
	i, real := l.Site, l.In.Event
	e.Status = real.Status
	switch real.Status {
	case failover.Unavailable, failover.Forbidden, failover.Misconfigured:
		return
	}
	want := f.rec(real.Record)
	var tried []string
	for k := len(c.regs) - 1; k >= 0; k-- {
		r := &c.regs[k]
		switch {
		case r.until < c.asked[i]:
			continue
		case real.Status == failover.Absent && r.ver == 0, real.Status == r.status && r.status != failover.Readable:
			return
		case real.Status != failover.Readable || r.ver == 0 || r.status != failover.Readable:
			continue
		case bare(*r.rec) != want:
			tried = append(tried, diff(want, bare(*r.rec)))
			continue
		}
		if !c.version(real.Version.Tag(), r.ver) {
			tried = append(tried, "another version")
			continue
		}
		if !c.claim(real.Record.ClaimNonce, r.rec.ClaimNonce) {
			tried = append(tried, "another claim")
			continue
		}
		s := &c.w.Sites[i]
		if real.Seen > s.Seen {
			n.say("it remembers generation %d, the model %d", real.Seen, s.Seen)
			return
		}
		s.Seen = max(s.Seen, r.rec.Generation)
		e.Record, e.Version, e.Seen = *r.rec, explore.VersionAt(r.ver), real.Seen
		return
	}
	n.reply = 1
	n.say("the register never held this since it was asked for: %s, generation %d, %v", real.Status.Reason(), want.Generation, tried)
}

// housed drops what a member's own peer URLs tell of its data (failover.FoldSite): only a forced claim asks for it.
func housed(d *failover.Data) {
	d.Confs.Only, d.Confs.Twins, d.Homeless = false, 0, false
	slices.Sort(d.Confs.Remove[:])
}

// sameReply holds a reply of the model against the real one.
func (c *cand) sameReply(f *facts, i int, e *failover.Event, real failover.Event, n *need) {
	if real.Outcome == failover.Unknown || (real.Outcome == failover.Conflict && real.Kind == failover.Swapped) {
		// The reply was lost; or something below repeated an own swap, and a conflict says nothing (P1).
		if real.Outcome == failover.Conflict && e.Outcome == failover.Done {
			e.Outcome = failover.Conflict
		}
		return
	}
	if e.Outcome != real.Outcome {
		n.say("the model's outcome is %d", e.Outcome)
		return
	}
	if real.Outcome != failover.Done {
		return
	}
	switch real.Kind {
	case failover.DataRead:
		if real.Data.Problem != failover.None {
			n.say("the data of the model have no problem")
			return
		}
		want, have := f.data(real.Data), e.Data
		have.Name, have.Snap = "", 0
		housed(&want)
		housed(&have)
		if want != have {
			n.say("the data of the model are others: %s", diff(want, have))
		}
		e.Data.Snap = 0
	case failover.MemberChanged:
		if e.ID != real.ID {
			n.say("the model's new member is %016x", e.ID)
		}
	case failover.Rewritten:
		// A log that reads but of which no copy can be vouched for is not kept either.
		if a := c.wrote[i]; real.Why != a.Why && !(a.Keep && real.Why == failover.WALUnreadable) {
			n.say("the log was to be kept: %t (%s); it was not, because of %s", a.Keep, a.Why, real.Why)
		}
	case failover.Compared:
		if e.Equal != real.Equal {
			n.say("in the model the key spaces are equal: %t", e.Equal)
		}
	case failover.TokenWritten:
		if want := f.token(real.Token); want != e.Token {
			n.say("the model's token is another: %s", diff(want, e.Token))
		}
	}
}
