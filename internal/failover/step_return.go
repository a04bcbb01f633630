package failover

// lost: the record or the survivor says that this member is out. It waits for a
// linearizable list at the survivor that lacks it, and for nothing else (P12).
func (m *machine) lost() {
	s := &m.s
	m.poll(s.P.RecordBusy)
	if s.Why == None {
		s.Why = NamedOther
	}
	if s.ListAge >= s.P.ListEvery && s.JoinWait == 0 {
		m.look()
	}
}

func (m *machine) look() { m.do(Action{Kind: LookAtList}) }

// listed takes in a list read at the other member.
func (m *machine) listed() {
	s, l := &m.s, m.e.List
	s.ListAge = 0
	if m.e.Outcome != Done || !l.OK {
		s.List = List{}
		switch s.Phase {
		case Lost:
			s.Why = SurvivorSilent
		case Joining:
			m.enter(m.waiting())
			s.Why = SurvivorSilent
		case Promoting:
			m.enter(CatchingUp)
			s.Why = SurvivorSilent
		}
		return
	}
	s.List, s.Asked = l, false
	switch s.Phase {
	case Leaderless, Lost, Joining, CatchingUp, Promoting, Fenced:
	default:
		return
	}
	switch l.Self {
	case ListedVoter:
		s.Removed = false
		switch s.Phase {
		case CatchingUp, Promoting:
			// Promoted. The own list will say so as soon as it is applied here.
			m.settle()
		case Joining, Lost:
			// A voter again, or still: its leader and its token are waited for.
			m.enter(m.waiting())
			if s.Why = s.Fence; s.Why == None {
				s.Why = NamedOther
			}
		}
	case ListedLearner:
		s.Removed = false
		switch {
		case s.Phase == CatchingUp:
		case s.Locked:
			// The WAL carries the new ID already, whatever the reply to Rewrite said:
			// these data cannot lead any more.
			s.Held, s.Fence = false, None
			m.do(Action{Kind: Release})
			m.enter(Releasing)
		case s.Held: // the locks are being taken
		default:
			m.enter(CatchingUp) // if it was to be promoted: not yet, compare again
		}
	case NotListed:
		if m.ordered() || m.appointed() { // a list of the history that was given up
			if s.Phase == Joining {
				m.enter(m.waiting())
			}
			return
		}
		s.Removed = true
		m.join()
	}
}

// settle ends a return: etcd is a voter of a pair with a leader.
func (m *machine) settle() {
	s := &m.s
	s.LossAge, s.NewID, s.Equal, s.NoLeader = 0, 0, false, 0
	m.enter(Leaderless)
}

// waiting is the phase in which a member waits for the survivor.
func (m *machine) waiting() Phase {
	if m.s.Held {
		return Fenced
	}
	return Lost
}

// awaits is what a member says that waits for the survivor that the record names.
func (m *machine) awaits() Reason {
	if m.s.Held {
		return Overridden
	}
	return NamedOther
}

// join adds this site to the survivor's list, if nothing speaks against it (P12, P10).
func (m *machine) join() {
	s, l := &m.s, &m.s.List
	if s.Phase == Fenced && (!s.Locked || s.Fence != Overridden) {
		return
	}
	if s.JoinWait > 0 {
		m.enter(m.waiting())
		s.Why = m.awaits()
		return
	}
	if s.Phase == Leaderless {
		m.enter(Lost) // a loss
	}
	if why := m.unjoinable(); why != None {
		m.enter(m.waiting())
		if s.Why = why; why == NamedOther {
			s.Why = m.awaits()
		}
		if why == NotConfirmed || why == NamedOther || why == RemovedByHand { // perhaps only not known yet
			m.do(Action{Kind: ReadRecord})
		}
		return
	}
	if l.Leftover != 0 {
		if m.do(Action{Kind: RemoveLearner, ID: l.Leftover}) {
			m.enter(Joining)
		}
		return
	}
	if m.do(Action{Kind: AddLearner}) {
		m.enter(Joining)
	}
}

// unjoinable is why this member may not be added at the survivor now.
func (m *machine) unjoinable() Reason {
	s, o, rec, l := &m.s, m.s.Obs, &m.s.Rec, &m.s.List
	self := m.claimer()
	switch {
	case !s.RecKnown:
		return s.RecStatus.Reason()
	case l.Cluster != rec.ClusterID || (o.Cluster != 0 && o.Cluster != rec.ClusterID):
		return RecordForeign
	case s.old():
		return RecordOld
	case rec.Pause:
		return Paused
	case rec.Drain:
		return Drained
	case o.Blank && rec.Survivor.ID == 0:
		return DiskBlank
	case rec.Survivor.ID == 0 || rec.Survivor.ID == self:
		return RemovedByHand
	case rec.WholeGeneration == rec.Generation && (rec.WholeMembers[0] == self || rec.WholeMembers[1] == self):
		return RemovedByHand
	case s.TokKnown && s.Tok.Present && s.Tok.RecordID == rec.ID && s.Tok.Generation == rec.Generation:
		return RemovedByHand
	case l.Voters.Count != 1:
		return ThirdVoter
	case l.Voters.IDs[0] != rec.Survivor.ID:
		return NamedOther
	case rec.Confirmed.Index == 0:
		return NotConfirmed
	case o.Version == 0:
		return VersionUnknown
	case o.Version < l.Version:
		return VersionTooOld
	case l.Stranger != 0:
		return ForeignLearner
	}
	return None
}

// memberChanged: whatever the reply says, the list is looked at before anything
// is repeated (F6). Only the ID of a learner that was surely added is used.
func (m *machine) memberChanged(kind ActionKind) {
	s := &m.s
	if kind == AddLearner && m.e.Outcome == Done && m.e.ID != 0 && s.Phase == Joining {
		s.NewID = m.e.ID
		s.Hold = m.holdDown()
		m.enter(Preparing)
		m.do(Action{Kind: Stop})
		return
	}
	if kind != Promote && m.e.Outcome != Done {
		s.JoinWait = max(s.P.ListEvery, 1) // the list is read at once, the call not repeated at once
		if m.e.Outcome == Failed {         // it was not made at all: something is missing here
			s.JoinWait = max(s.P.MinRun/4, 1)
		}
	}
	m.look()
}

// holdDown is how long promotion waits: not at all after a first loss, then 5 s,
// doubling with each loss within ten minutes of the last return (F35).
func (m *machine) holdDown() uint32 {
	s := &m.s
	if s.HoldLevel == 0 {
		return 0
	}
	hold := uint64(s.P.HoldFirst) << (s.HoldLevel - 1) // at most 31
	return uint32(min(hold, uint64(s.P.HoldMax)))
}

// prepareRecord: under the locks, the record once more for its history (P13).
func (m *machine) prepareRecord() {
	s := &m.s
	if s.Site != NoAction || !s.Locked {
		return
	}
	if !s.Fresh {
		s.Fresh = m.do(Action{Kind: ReadRecord})
		return
	}
	if s.RecStatus == Readable {
		why := None
		switch rec := &s.Rec; {
		case rec.ClusterID != s.List.Cluster:
			why = RecordForeign
		case s.old():
			why = RecordOld
		case rec.Survivor.ID == 0 || rec.Survivor.ID != s.List.Voters.IDs[0]:
			why = NamedOther
		case rec.Pause:
			why = Paused
		case rec.Drain:
			why = Drained
		}
		if why != None {
			m.returnFails(why)
			return
		}
	}
	m.do(Action{Kind: ReadData, Index: s.Rec.Confirmed.Index})
}

// prepareData decides how this member returns: with its log, or from an empty one (P13).
func (m *machine) prepareData() {
	s := &m.s
	switch {
	case s.Data.Problem == LockFailed:
		m.returnFails(LockFailed)
		return
	case m.e.Why != None:
		m.returnFails(m.e.Why)
		return
	}
	why := KeepLog(s.Rec, s.Data)
	if !m.do(Action{Kind: Rewrite, ID: s.NewID, Keep: why == None, Why: why, Cluster: s.Rec.ClusterID}) {
		m.returnFails(RewriteFailed)
	}
}

func (m *machine) rewritten() {
	s := &m.s
	if s.Phase != Preparing {
		return
	}
	if m.e.Outcome != Done {
		m.returnFails(RewriteFailed)
		return
	}
	// A log that was kept holds the token that it held, an empty one none: until etcd
	// shows more, this member is known to be unable to claim, and is not stopped for it.
	if KeepLog(s.Rec, s.Data) != None {
		s.Tok = Token{}
	}
	s.TokKnown = true
	s.Held, s.Fence = false, None // these data cannot lead any more
	m.do(Action{Kind: Release})
}

// returnFails gives the locks back, unless etcd has to stay down; the next look
// at the list starts over.
func (m *machine) returnFails(why Reason) {
	s := &m.s
	s.NewID = 0
	// Each attempt costs the survivor two changes of its members and an ID for ever: ever more rarely, as for claims.
	s.JoinWait = uint32(min(uint64(s.P.MinRun/4)<<s.StopLevel, uint64(s.P.MaxRun))) // at most 16
	s.StopLevel = min(s.StopLevel+1, 16)
	if s.Obs.Blank { // etcd must not start on nothing
		m.enter(Lost)
		s.Why = why
		return
	}
	if s.Held {
		s.Locked = s.Locked && why != LockFailed
		m.enter(Fenced)
		s.Why = why
		return
	}
	m.do(Action{Kind: Release})
	s.Why = why
}

func (m *machine) afterPrepare() {
	s := &m.s
	if s.NewID == 0 {
		why := s.Why
		m.enter(Lost)
		s.Why = why
		return
	}
	// From here on the own WAL carries the new ID.
	s.Obs.Member, s.Obs.Etcd, s.Obs.Voters, s.Obs.TokenRead = s.NewID, EtcdAway, Voters{}, false
	s.Removed, s.NewID, s.Equal, s.Asked = false, 0, false, false
	m.enter(CatchingUp)
	s.Why = CatchingUpLog
}

// catchingUp compares, then promotes (P12).
func (m *machine) catchingUp() {
	s := &m.s
	m.poll(s.P.RecordBusy)
	switch {
	case m.ordered() || m.appointed(): // Raft's learners keep a dead leader
		s.Why = ForcedLearner
	case s.Phase == Promoting:
		m.promote()
	case s.Equal && s.Hold > 0:
		s.Why = HoldDown
		if s.ListAge >= s.P.ListEvery {
			m.look()
		}
	default:
		s.Equal = false
		m.do(Action{Kind: Compare, ID: m.self()})
	}
}

func (m *machine) compared() {
	s := &m.s
	if s.Phase != CatchingUp {
		return
	}
	switch {
	case m.e.Outcome != Done:
		s.Why = CatchingUpLog
		m.look() // the survivor may have removed this learner
	case !m.e.Equal:
		s.Why = HashDiffers
		m.look()
	case s.Hold > 0:
		s.Equal = true
		s.Why = HoldDown
	case s.Rec.Pause:
		s.Why = Paused
		m.look()
	case s.Rec.Drain:
		s.Why = Drained
		m.look()
	case s.Asked:
		m.look() // the first promotion may have happened (F6)
	default:
		m.enter(Promoting)
		m.promote()
	}
}

func (m *machine) promote() {
	if m.do(Action{Kind: Promote, ID: m.self()}) {
		m.s.Asked = true
	}
}
