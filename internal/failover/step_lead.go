package failover

// following: the other member leads. Nothing to do but to know whether this
// member could claim, and to tidy up.
func (m *machine) following() {
	s := &m.s
	if m.resurrected() {
		return
	}
	if s.Obs.Voters.Count != 0 { // else the own list was not readable just now
		s.Why = m.unarmed()
	}
	switch {
	case s.RecStatus == Unread:
		m.poll(0)
	case s.Why != None:
		m.poll(s.P.RecordBusy) // unprotected: look often
	default:
		m.poll(s.P.RecordIdle)
	}
	m.tidy()
}

// resurrected stops a pair that was given up (P10, P16). Somebody went on without it, by a confirmed claim or a person's order,
// and these data know nothing of that. Either a leader has the very voters of before the claim: IDs never come back,
// so these logs lack the claim; the survivor's disk was rolled back, or replaced where somebody else starts etcd,
// and it elected the loser or was elected by it. Or it is a pair without the survivor: people added a third member
// at the overridden side.
func (m *machine) resurrected() bool {
	s, o, rec := &m.s, &m.s.Obs, &m.s.Rec
	if s.RecStatus != Readable || s.old() || o.Etcd != EtcdLed || o.Voters.Count != 2 || !o.TokenRead || rec.Survivor.ID == 0 {
		return false
	}
	t, ids := o.Token, o.Voters.IDs
	if t.Bad || (t.Present && (t.RecordID != rec.ID || t.Generation >= rec.Generation)) {
		return false
	}
	led := rec.Confirmed.Index != 0
	before := led && t.Present && t.Names(ids[0], ids[1])
	without := (led || pending(*rec)) && rec.Survivor.ID != ids[0] && rec.Survivor.ID != ids[1]
	if !before && !without {
		return false
	}
	why := RolledBack
	if rec.Survivor.ID != o.Member {
		why = Overridden
	}
	m.fence(why)
	return true
}

// Whole says whether this agent sees a pair with a leader whose token matches
// the record: the state in which nothing is left to do.
func (s *State) Whole() bool {
	return (s.Phase == Following || s.Phase == Leading) && s.Why == None
}

// Armed says whether this member could claim now if its leader went away; if not, why.
func (s *State) Armed() (bool, Reason) {
	switch s.Phase {
	case Following, Leading:
		return s.Why == None, s.Why
	}
	return false, s.Why
}

// unarmed is why this member of a pair with a leader could not claim.
func (m *machine) unarmed() Reason {
	s, o, rec := &m.s, m.s.Obs, &m.s.Rec
	if why := m.barred(); why != None {
		return why
	}
	switch {
	case o.Voters.Count != 2:
		return ThirdVoter
	case !s.TokKnown || !s.Tok.Present:
		return TokenMissing
	case s.Tok.Bad:
		return TokenBad
	case s.Tok.RecordID != rec.ID:
		return RecordElsewhere
	case s.Tok.Generation > rec.Generation:
		return RecordOld
	case s.Tok.Generation < rec.Generation:
		if rec.Drain {
			return Drained
		}
		return TokenPending
	case !s.Tok.Names(o.Voters.IDs[0], o.Voters.IDs[1]):
		return TokenMisnamed
	case s.TokStale && s.Phase == Leading: // it alone writes again
		return TokenLate
	}
	return None
}

// leading: this member leads a pair. Its agent alone creates the record, writes
// the token and the notes (P3, P14, P15).
func (m *machine) leading() {
	s, o := &m.s, m.s.Obs
	if o.Etcd != EtcdLed || o.Voters.Count == 0 {
		return // the own list was not readable just now
	}
	if m.resurrected() {
		return
	}
	s.Why = m.unarmed()
	switch s.Why {
	case RecordMissing:
		if o.TokenRead && !o.Token.Present && o.Voters.Count == 2 && o.Voters.Learners == 0 && m.e.RecordID != "" && s.RecAge == 0 {
			m.swap(ForCreate, Create(m.e.RecordID, o.Cluster, m.e.Stamp))
		}
		m.poll(s.P.RecordBusy)
	case TokenMissing, TokenBad, TokenPending, TokenMisnamed, TokenLate:
		m.writeToken()
	case None:
		m.notes()
		m.renewToken()
		m.tidy()
	default:
		s.Intent = false
	}
	if s.SwapWhy != None && (s.Why == None || s.Why == RecordMissing) {
		s.Why = s.SwapWhy
	}
	every := s.P.RecordIdle
	switch s.Why {
	case RecordUnread:
		every = 0
	case RecordOld, TokenMissing, TokenBad, TokenPending, TokenMisnamed, TokenLate:
		every = s.P.RecordBusy
	}
	m.poll(every)
}

// noteDue: the record was read just now, and the last note is about so old. The slack lets the note go with a
// read that is made anyway.
func (m *machine) noteDue() bool {
	return m.e.Kind == RecordRead && m.s.NoteAge >= m.s.P.ConfirmEach-m.s.P.ConfirmEach/4
}

// renewToken writes the token again before its entry sinks out of the log. A claim needs it
// there: only what comes after it can tell who was a voter since (P5). At rest that goes with a read
// of the record that is made anyway.
func (m *machine) renewToken() {
	s, p := &m.s, m.s.P
	more := s.Obs.Commit - min(s.TokenAt, s.Obs.Commit)
	many := p.TokenSegs > 0 && s.Obs.Segment >= s.TokenSeg+uint64(p.TokenSegs) && s.TokenAge >= p.TokenEach/6
	s.Intent = false
	switch {
	case p.TokenFew == 0 || more < uint64(p.TokenFew):
	case !many && s.TokenAge < p.TokenEach-p.TokenEach/4:
	case m.e.Kind == RecordRead:
		s.Intent = true // the generation was read just now, that is enough for the one that the data have
		m.writeToken()
	case many || s.TokenAge >= 2*p.TokenEach:
		m.do(Action{Kind: ReadRecord})
	}
}

// writeToken asks for the token, always with the generation as just read (P14).
func (m *machine) writeToken() {
	s, o := &m.s, m.s.Obs
	if !o.TokenRead || o.Voters.Learners > 0 || s.Rec.Drain || s.TokenWait > 0 || s.Site != NoAction {
		return
	}
	if m.e.Kind == RecordRead && s.Intent {
		s.Intent, s.TokenAge = false, 0
		m.do(Action{Kind: WriteToken, Generation: s.Rec.Generation, RecordID: s.Rec.ID})
		return
	}
	if m.do(Action{Kind: ReadRecord}) {
		s.Intent = true
	}
}

func (m *machine) tokenWritten() {
	s := &m.s
	switch m.e.Outcome {
	case Done:
		s.Tok, s.TokKnown, s.TokStale = m.e.Token, true, false
		s.Obs.Token, s.TokenAt, s.TokenSeg = m.e.Token, s.Obs.Commit, s.Obs.Segment
	case Conflict:
		s.TokStale = true // applied, but the term moved: write again
	case Unknown:
		s.TokStale = true // if it was applied, then perhaps in another term (P14)
		s.TokenWait = s.P.ListEvery
	default:
		s.TokenWait = s.P.ListEvery
	}
	if s.Phase == Leading {
		m.leading()
	}
}

// notes keeps the record of a whole pair: the whole note once, the commit mark
// about once a minute (P14, P15).
func (m *machine) notes() {
	s, o, rec := &m.s, m.s.Obs, &m.s.Rec
	if o.Voters.Learners > 0 || s.Arb != NoAction || s.SwapWait > 0 {
		return
	}
	a, b := o.Voters.IDs[0], o.Voters.IDs[1]
	switch {
	case rec.WholeGeneration != rec.Generation || rec.WholeMembers != [2]uint64{a, b} || rec.Confirmed.Index != 0:
		m.swap(ForWhole, NoteWhole(*rec, a, b, o.Commit, m.e.Stamp))
	case m.noteDue():
		m.swap(ForMark, Mark(*rec, o.Commit, m.e.Stamp))
	case s.NoteAge >= s.P.ConfirmEach:
		m.do(Action{Kind: ReadRecord})
	}
}

// tidy lets go of replaced WALs, once the pair is whole.
func (m *machine) tidy() {
	s := &m.s
	if s.Why == None && s.Tidied != s.Rec.Generation && s.Rec.WholeGeneration == s.Rec.Generation {
		m.do(Action{Kind: Tidy})
	}
}

// alone: this member leads by itself. Its agent confirms, and watches for a
// record that names somebody else.
func (m *machine) alone() {
	s := &m.s
	if m.knowsBetter() {
		return
	}
	switch {
	case s.RecStatus == Unread:
		m.poll(0)
	case s.RecStatus != Readable || s.Rec.Confirmed.Index == 0: // the loser waits for the confirmation
		m.poll(s.P.RecordBusy)
	default:
		m.poll(s.P.RecordAlone)
	}
	switch {
	case s.RecStatus != Readable:
		s.Why = s.RecStatus.Reason()
	case s.Why == None && s.Obs.Alarm:
		s.Why = EtcdAlarm
	case s.Why == None:
		s.Why = s.Obs.Store.Reason()
	}
}

// knowsBetter fences a member that leads alone although its agent has read that the record names somebody else, before it led:
// whether the arbiter can be read again does not matter (P16). The excuses are aloneRecord's.
func (m *machine) knowsBetter() bool {
	s, o, rec := &m.s, m.s.Obs, &m.s.Rec
	if s.RecStatus != Readable || s.old() || o.Etcd != EtcdLed || o.Voters.Count != 1 || rec.ClusterID != o.Cluster ||
		rec.Survivor.ID == 0 || rec.Survivor.ID == o.Member || !s.TokKnown || !s.Tok.Present || s.Tok.Bad ||
		s.Tok.RecordID != rec.ID || s.Tok.Generation >= rec.Generation {
		return false
	}
	m.fence(Overridden)
	return true
}

// aloneRecord judges the record as just read (P10, P16, P17).
func (m *machine) aloneRecord() {
	s, o, rec := &m.s, m.s.Obs, &m.s.Rec
	if s.RecStatus != Readable || o.Etcd != EtcdLed || o.Voters.Count != 1 {
		return
	}
	s.Why = s.SwapWhy
	known := s.TokKnown && s.Tok.Present && !s.Tok.Bad
	switch {
	case rec.ClusterID != o.Cluster:
		s.Why = RecordForeign
	case known && s.Tok.RecordID != rec.ID:
		s.Why = RecordElsewhere
	case s.old():
		// The store was rolled back: say so in the store itself (P17), if the
		// highest generation was this member's own.
		s.Why = RecordOld
		if s.Mine.RecordID == rec.ID && s.Mine.Generation >= s.Seen && s.Mine.Fork.Index != 0 {
			m.reassert()
		}
	case rec.Survivor.ID == 0 && o.Unsafe:
		s.Why = EtcdUnsafe // --force-new-cluster made it alone, not a user's removal
	case rec.Survivor.ID == 0:
		s.Why = AloneUnclaimed
	case rec.Survivor.ID != o.Member && known && s.Tok.Generation == rec.Generation &&
		(s.Mine.RecordID != rec.ID || s.Mine.Generation <= rec.Generation):
		// The own data know this very generation: no claim was made since the
		// pair was whole, somebody removed the other member through etcd (F33). That
		// member's log holds its own removal, it cannot claim.
		s.Why = AloneUnclaimed
	case rec.Survivor.ID != o.Member && !s.TokKnown && s.Retries < maxResolve:
		// The token that would excuse it is not known yet, after a start of the agent.
		s.Retries++
		s.Why = NamedOther
	case m.ordered():
		// Named by a forced claim although it leads: perhaps another history was forced in between, so it is
		// carried out all the same (P18).
		m.carryOut()
	case m.overridden() != None:
		m.fence(m.overridden())
	case (rec.Confirmed.Index == 0 || m.noteDue()) && s.SwapWait == 0:
		m.do(Action{Kind: Sample})
	}
}

func (m *machine) sampled() {
	s := &m.s
	rec := s.Rec
	if m.e.Outcome != Done || s.Phase != Alone || rec.Survivor.ID != m.self() || s.old() {
		return
	}
	if m.ordered() || m.unfinished() && m.e.Position.Term < rec.Fork.Term {
		// An order came meanwhile; or the agent ended, or something failed, between the swap and the append: it leads as it did
		// before, in a term that its history had. The claim is made anew (P18).
		m.carryOut()
		return
	}
	if m.e.Position.Index < rec.Confirmed.Index {
		// Sampled after the record was read, and only this survivor confirms: what
		// it once had applied is gone (P10).
		m.fence(RolledBack)
		return
	}
	m.swap(ForConfirm, Confirm(rec, m.e.Position, m.e.Stamp))
}

func (m *machine) reassert() {
	s := &m.s
	me := s.Rec.Survivor
	if me.ID != m.self() {
		me.ID, me.Name = m.self(), ""
	}
	next := Reassert(s.Rec, s.Mine, s.Seen, me, m.e.Stamp)
	mine := s.Mine.attempt(next.ID, next.Generation, next.ClaimNonce)
	if m.swap(ForReassert, next) {
		s.Mine = mine
	}
}

// fence stops etcd and keeps it down (P10, P16).
func (m *machine) fence(why Reason) {
	m.enter(Fenced)
	m.s.Why, m.s.Held, m.s.Fence = why, true, why
	m.do(Action{Kind: Stop})
}

// fenced: etcd is down and stays down, until this member may return as a loser
// or the record names it again.
func (m *machine) fenced() {
	s := &m.s
	if !s.Locked {
		m.do(Action{Kind: Stop})
	}
	m.poll(s.P.RecordBusy)
	if (m.ordered() || m.again()) && s.Locked && s.Site == NoAction && s.PreWait == 0 && m.barred() == None {
		// An operator's forced claim names this member after all (P18), or its own one failed.
		s.Order = m.ordered()
		m.enter(Deciding)
		s.Fresh = m.do(Action{Kind: ReadRecord})
		return
	}
	if s.Locked && s.Fence == Overridden && s.ListAge >= s.P.ListEvery && s.JoinWait == 0 {
		m.look()
	}
}

func (m *machine) fencedRecord() {
	s := &m.s
	if s.RecStatus != Readable || s.old() {
		return
	}
	switch {
	case m.ordered(), m.again(): // with the next tick
	case s.Rec.Survivor.ID != 0 && s.Rec.Survivor.ID != m.claimer():
		// Also after a clone or a rollback: somebody else leads by now.
		if s.Fence != Overridden {
			s.Why, s.Fence = Overridden, Overridden
		}
	case s.Fence == Overridden && s.Locked && s.Site == NoAction && m.overridden() == None: // named again
		s.Held, s.Fence = false, None
		m.do(Action{Kind: Release})
		m.enter(Releasing)
	}
}
