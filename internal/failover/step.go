package failover

import "twok/arbiter"

// Step is one step of an agent: its next state, and what to do.
func Step(s State, e Event) (State, []Action) {
	m := machine{s: s, e: e}
	switch {
	case e.Kind == Tick:
		m.tick()
	case e.Kind == RecordRead && s.Arb == ReadRecord:
		m.s.Arb = NoAction
		m.recordRead()
	case e.Kind == Swapped && s.Arb == Swap:
		m.s.Arb = NoAction
		m.swapped()
	case e.Kind != NoEvent && s.Site.Reply() == e.Kind:
		m.s.Site = NoAction
		m.siteReply(s.Site)
	}
	return m.s, m.out
}

// machine is one step under way.
type machine struct {
	s   State
	e   Event
	out []Action
}

// do emits an action if its slot is free, and says so.
func (m *machine) do(a Action) bool {
	if a.Kind.onArbiter() {
		if m.s.Arb != NoAction {
			return false
		}
		m.s.Arb = a.Kind
	} else {
		if m.s.Site != NoAction {
			return false
		}
		m.s.Site = a.Kind
	}
	m.out = append(m.out, a)
	return true
}

func (m *machine) self() uint64 { return m.s.Obs.Member }

// old says whether the record as read is older than one seen before (P17).
func (s *State) old() bool { return s.Rec.Generation < s.Seen }

// tick takes in what the shell saw and does what is due.
func (m *machine) tick() {
	m.count()
	switch m.s.Phase {
	case Stopping, Deciding, Claiming, Appending, Rechecking, Releasing, Joining, Preparing:
		// Each of these waits for one reply, which always comes.
		m.nudgeSection()
		return
	case Fenced:
		m.fenced()
		return
	}
	m.classify()
	switch m.s.Phase {
	case Following:
		m.following()
	case Leading:
		m.leading()
	case Alone:
		m.alone()
	case Leaderless:
		m.leaderless()
	case Lost:
		m.lost()
	case CatchingUp, Promoting:
		m.catchingUp()
	}
}

// nudgeSection sends the section's read when the arbiter slot was taken by an
// older operation at the time the locks were granted.
func (m *machine) nudgeSection() {
	s := &m.s
	waits := (s.Phase == Deciding && s.Site == NoAction) || (s.Phase == Preparing && s.Site == NoAction && s.Locked)
	if waits && s.Arb == NoAction {
		s.Fresh = m.do(Action{Kind: ReadRecord})
	}
}

// count moves every counter on. All saturate, so that states stay finite.
func (m *machine) count() {
	s, o := &m.s, m.e.Obs
	n := max(m.e.Ticks, 1)
	up := func(counter, limit uint32) uint32 { return min(counter+min(n, limit), limit) }
	down := func(counter uint32) uint32 { return counter - min(n, counter) }
	s.Obs = o
	p := s.P
	switch o.Etcd {
	case EtcdLed:
		s.NoLeader, s.Woken, s.PeerGone, s.PeerBack = 0, false, false, 0
		s.WasLeader = o.Leader == o.Member
		s.Preflight = RecordUnread
		s.TokStale = s.TokStale || o.Voters.Count > 2
	case EtcdNoLeader:
		s.NoLeader = up(s.NoLeader, p.ClaimAfter+p.HeadStart)
	}
	if o.Contact {
		s.PeerLost = 0
	} else {
		s.PeerLost = up(s.PeerLost, p.ClaimAfter)
	}
	if o.Peer {
		if o.Etcd != EtcdLed {
			s.PeerBack = up(s.PeerBack, p.WakeAfter+p.WakeOther)
		}
	} else {
		s.PeerBack, s.Woken = 0, false
		s.PeerGone = o.Etcd != EtcdLed
	}
	if o.TokenRead {
		s.Tok, s.TokKnown = o.Token, true
	}
	s.RecAge = up(s.RecAge, max(p.RecordIdle, p.RecordBusy))
	s.ListAge = up(s.ListAge, p.ListEvery)
	s.NoteAge = up(s.NoteAge, p.ConfirmEach)
	s.TokenAge = up(s.TokenAge, 2*p.TokenEach)
	s.LossAge = up(s.LossAge, p.HoldWindow)
	s.Hold, s.JoinWait, s.TokenWait, s.PreWait = down(s.Hold), down(s.JoinWait), down(s.TokenWait), down(s.PreWait)
	s.SwapWait = down(s.SwapWait)
	if o.Etcd == EtcdNoLeader || o.Etcd == EtcdLed {
		s.StopWait = down(s.StopWait)
	}
}

// classify finds the phase from what etcd says and the record.
func (m *machine) classify() {
	s, o := &m.s, m.s.Obs
	back := s.Phase == CatchingUp || s.Phase == Promoting
	next := s.Phase
	switch {
	case o.Etcd == EtcdUnknown:
		return
	case o.Blank && s.RecStatus == Readable && s.Rec.Survivor.ID != 0:
		next = Lost // whoever is named, it is nobody with these data
	case o.Blank:
		next = Leaderless
	case o.Etcd == EtcdLed && o.Learner: // a learner refuses to show its list
		if !back {
			next = CatchingUp
		}
	case o.Etcd == EtcdLed && o.Voters.Count == 0:
		return // a leader, but the own list is not known yet
	case o.Etcd == EtcdLed && o.Leader == o.Member && o.Voters.Count == 1:
		next = Alone
	case o.Etcd == EtcdLed && o.Leader == o.Member:
		next = Leading
	case o.Etcd == EtcdLed:
		next = Following
	case back && !m.voter() && !m.ordered():
	case m.loser():
		next = Lost
	default:
		next = Leaderless
	}
	if next == s.Phase {
		return
	}
	if next == Following || next == Leading || next == Alone {
		s.Removed, s.NewID, s.Equal, s.List = false, 0, false, List{}
		s.StopLevel, s.Refused = 0, None
		s.Intent, s.NoteAge, s.Retries = false, s.P.ConfirmEach, 0
		s.TokenAge, s.TokenAt, s.TokenSeg = 0, 0, 0
		if back {
			s.LossAge = 0 // a return ends here
		}
	}
	m.enter(next)
}

// voter: the own data hold a token of the record's generation that names this member.
// Tokens name voters, so the return is over, even if no leader was seen since the promotion.
func (m *machine) voter() bool {
	t := m.s.Tok
	return m.s.TokKnown && t.Present && !t.Bad && t.Generation >= m.s.Rec.Generation && t.Other(m.self()) != 0
}

// enter changes the phase.
func (m *machine) enter(p Phase) {
	s := &m.s
	if p == Lost && s.Phase != Lost && s.Phase != Joining && s.Phase != Preparing && s.Phase != CatchingUp && s.Phase != Promoting {
		// A loss. Frequent ones hold the promotion down (F35). Not one: a member that the
		// survivor's list shows as a voter, whose etcd does not say so yet.
		switch {
		case s.List.Self == ListedVoter:
		case s.LossAge < s.P.HoldWindow:
			s.HoldLevel = min(s.HoldLevel+1, 32)
		default:
			s.HoldLevel = 0
		}
	}
	s.Phase, s.Why = p, None
}

// loser says whether the record, or the survivor, made this member the loser (P12).
func (m *machine) loser() bool {
	s := &m.s
	if m.ordered() || m.appointed() {
		return false
	}
	if s.Removed {
		return true
	}
	rec := s.Rec
	return s.RecKnown && rec.Survivor.ID != 0 && m.self() != 0 && rec.Survivor.ID != m.self() &&
		s.TokKnown && s.Tok.Generation < rec.Generation
}

// poll reads the record when the last attempt is this many ticks ago.
func (m *machine) poll(every uint32) {
	if m.s.RecAge >= every {
		m.do(Action{Kind: ReadRecord})
	}
}

func (m *machine) recordRead() {
	s, e := &m.s, m.e
	s.RecStatus, s.RecAge = e.Status, 0
	if e.Status == Readable {
		if e.Record.ID != s.Rec.ID {
			s.Seen = 0
		}
		s.Seen = max(s.Seen, e.Seen, e.Record.Generation)
		s.Rec, s.RecVer, s.RecKnown = e.Record, e.Version, true
	}
	switch s.Phase {
	case Deciding:
		m.decideRecord()
	case Claiming:
		m.resolve()
	case Rechecking:
		m.rechecked()
	case Preparing:
		m.prepareRecord()
	case Fenced:
		m.fencedRecord()
	case Alone:
		m.aloneRecord()
	case Leading:
		m.leading()
	}
}

func (m *machine) swapped() {
	s := &m.s
	purpose := s.Purpose
	s.Purpose = NoPurpose
	switch {
	case purpose == ForClaim:
		m.claimSwapped()
		return
	case m.e.Outcome == Done:
		s.SwapWhy = None
	case m.e.Outcome != Conflict:
		s.SwapWait, s.SwapWhy = max(s.P.RecordBusy, 1), m.e.Why
	}
	if s.Phase == Deciding || s.Phase == Preparing {
		m.nudgeSection()
		return
	}
	// Whatever became of it, the record is looked at before the next swap (P1): now, or, after a
	// note that comes again and again, when it is read anyway.
	if m.e.Outcome == Done && (purpose == ForConfirm || purpose == ForMark || purpose == ForWhole) {
		s.NoteAge = 0
		if purpose == ForMark || (purpose == ForConfirm && s.Rec.Confirmed.Index != 0) {
			return
		}
	}
	m.do(Action{Kind: ReadRecord})
}

func (m *machine) siteReply(kind ActionKind) {
	s := &m.s
	switch kind {
	case Stop:
		m.stopped()
	case ReadData:
		m.dataRead()
	case Append:
		m.appended()
	case Release:
		m.released()
	case Preflight:
		s.Preflight = m.e.Why
		if m.e.Outcome != Done && s.Preflight == None {
			s.Preflight = WALUnreadable
		}
		s.PreWait = max(s.P.MinRun, 1)
	case Restart:
		if m.e.Outcome == Failed {
			s.Woken, s.PeerBack = false, 0
		}
	case LookAtList:
		m.listed()
	case RemoveLearner, AddLearner, Promote:
		m.memberChanged(kind)
	case Rewrite:
		m.rewritten()
	case Compare:
		m.compared()
	case Sample:
		m.sampled()
	case WriteToken:
		m.tokenWritten()
	case Tidy:
		s.Tidied = s.Rec.Generation // what could not be tidied up stays until the next one
	}
}

// swap emits a swap of the record as last read.
func (m *machine) swap(p Purpose, next arbiter.Record) bool {
	if p != ForClaim && m.s.SwapWait > 0 {
		return false
	}
	prev := m.s.RecVer
	if p == ForCreate {
		prev = arbiter.Absent
	}
	if !m.do(Action{Kind: Swap, Record: next, Prev: prev, Claim: p == ForClaim || p == ForReassert}) {
		return false
	}
	m.s.Purpose = p
	return true
}
