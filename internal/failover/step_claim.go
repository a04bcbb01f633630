package failover

import "twok/arbiter"

// leaderless: the claim clock runs; record, list and WAL are looked at beside it.
func (m *machine) leaderless() {
	s, o, p := &m.s, m.s.Obs, m.s.P
	m.poll(p.RecordBusy)
	due := s.NoLeader >= p.ClaimAfter+p.HeadStart ||
		(s.WasLeader && s.PeerLost >= p.ClaimAfter && s.NoLeader >= p.Election)
	if o.Blank {
		m.blank()
		return
	}
	s.Why = m.claimable()
	switch {
	case m.ordered():
		if m.carryOut() {
			return
		}
	case o.Etcd == EtcdAway:
		s.Why = EtcdDown
	case due && s.Why == None:
		if m.do(Action{Kind: Stop}) {
			s.StopStart, s.StopVer = o.Start, s.RecVer
			m.enter(Stopping)
			return
		}
	case s.Why == None:
		s.Why = NoLeader
	}
	if m.wake() {
		return
	}
	if s.Preflight != None && s.PreWait == 0 {
		s.Preflight = RecordUnread // what was in the way may be gone
	}
	half := 2*s.NoLeader >= p.ClaimAfter || (s.WasLeader && 2*s.PeerLost >= p.ClaimAfter)
	if s.Preflight == RecordUnread && half && o.Etcd == EtcdNoLeader {
		m.do(Action{Kind: Preflight})
	}
	// Whether the other side leads without this member (P12). A crash-looping
	// member asks as well: its etcd may be down because it was removed.
	if s.ListAge >= p.ListEvery && (o.Peer || o.Etcd == EtcdAway) {
		m.look()
	}
}

// blank: there are no data at all. Without a record this is a new pair, and etcd may start. With one etcd must
// not: it would be a member that the pair knows, without anything that this member once acknowledged. It returns as any loser,
// once the other member leads alone (P12, P13).
func (m *machine) blank() {
	s := &m.s
	s.Why = DiskBlank
	switch s.RecStatus {
	case Absent:
		if m.do(Action{Kind: Release}) {
			m.enter(Releasing)
		}
	case Readable:
	default:
		s.Why = s.RecStatus.Reason()
	}
}

// ordered says whether an operator's forced claim waits for this member (P18): one that names it, or
// its own, whose new member ID its data do not carry yet.
func (m *machine) ordered() bool {
	s := &m.s
	if s.RecStatus != Readable || s.old() || m.void() {
		return false
	}
	return Ordered(s.Rec, m.claimer()) || m.unborn(m.claimer())
}

// appointed: a forced claim names this member, and the pair was not whole since. No list of another
// history says anything against it.
func (m *machine) appointed() bool {
	s := &m.s
	return s.RecStatus == Readable && !s.old() && !m.void() && pending(s.Rec) && s.Rec.Survivor.ID == m.claimer() && m.claimer() != 0
}

// void: the own data hold the token of the record's generation, so the pair was whole under the order (forced).
func (m *machine) void() bool {
	t := m.s.Tok
	return m.s.TokKnown && t.Present && !t.Bad && t.RecordID == m.s.Rec.ID && t.Generation >= m.s.Rec.Generation
}

// unborn: the record's forced claim was made here, for an ID that these data do not carry yet.
func (m *machine) unborn(self uint64) bool {
	s := &m.s
	return pending(s.Rec) && self != 0 && s.Rec.Survivor.ID != self && s.Mine.RecordID == s.Rec.ID && s.Mine.made(s.Rec.ClaimNonce)
}

// unfinished says whether the record's forced claim of this member may have been left without its append: nobody has led by it.
func (m *machine) unfinished() bool {
	return m.appointed() && m.s.Rec.Confirmed.Index == 0
}

// again: it is surely this agent's own.
func (m *machine) again() bool { return m.unfinished() && m.s.Mine.made(m.s.Rec.ClaimNonce) }

// carryOut stops etcd for an operator's forced claim. Nobody leads: there is nothing to wait
// for, and no matter whether etcd runs.
func (m *machine) carryOut() bool {
	s := &m.s
	switch why := m.barred(); {
	case why != None:
		s.Why = why
	case s.Obs.Learner:
		s.Why = ForcedLearner
	case s.PreWait > 0:
		if s.Why = s.Refused; s.Why == None {
			s.Why = RateLimited
		}
	case m.do(Action{Kind: Stop}):
		s.Order = true
		s.StopStart, s.StopVer = s.Obs.Start, s.RecVer
		m.enter(Stopping)
		return true
	}
	return false
}

// barred is what keeps any member from claiming, whatever its token says (P11): etcd's
// flags, and the record as last read.
func (m *machine) barred() Reason {
	s, o, rec := &m.s, m.s.Obs, &m.s.Rec
	switch {
	case o.Unsafe:
		return EtcdUnsafe
	case o.Store != StoreTrusted:
		return o.Store.Reason()
	case s.RecStatus == Absent && s.TokKnown && !s.Tok.Present:
		return RecordMissing
	case s.RecStatus != Readable:
		return s.RecStatus.Reason()
	case o.Cluster != 0 && rec.ClusterID != o.Cluster:
		return RecordForeign
	case s.old():
		return RecordOld
	case rec.Pause:
		return Paused
	}
	return None
}

// claimable is the plausibility check before etcd is stopped for a claim (P7). It
// grants nothing: Eligible decides, under the locks.
func (m *machine) claimable() Reason {
	s, rec := &m.s, &m.s.Rec
	o := s.Obs
	if why := m.barred(); why != None {
		return why
	}
	switch {
	case s.TokKnown && s.Tok.Present && !s.Tok.Bad && s.Tok.RecordID != rec.ID:
		return RecordElsewhere
	case rec.Survivor.ID != o.Member && s.TokKnown && !s.Tok.Present:
		return TokenMissing
	case rec.Survivor.ID != o.Member && s.TokKnown && s.Tok.Generation != rec.Generation:
		if rec.Survivor.ID != 0 {
			return NamedOther
		}
		return TokenGeneration
	case s.Preflight != None && s.Preflight != RecordUnread:
		return s.Preflight
	case s.StopWait > 0 || (s.StopVer.Exists() && s.StopStart == o.Start && s.StopVer == s.RecVer):
		if s.Refused != None {
			return s.Refused
		}
		return RateLimited
	case s.Preflight == RecordUnread:
		return NoLeader
	}
	return None
}

// wake restarts etcd when the link has healed and TCP's backoff keeps the pair
// apart. It never touches the claim clock.
func (m *machine) wake() bool {
	s, o, p := &m.s, m.s.Obs, m.s.P
	wait := p.WakeAfter
	if o.Other < o.Member {
		wait += p.WakeOther
	}
	if s.Rec.Pause || !s.PeerGone || s.Woken || s.PeerBack < wait || o.Etcd != EtcdNoLeader || o.Other == 0 || o.Member == 0 {
		return false
	}
	if !m.do(Action{Kind: Restart}) {
		return false
	}
	s.Woken = true
	return true
}

// stopped: the locks are held, or not.
func (m *machine) stopped() {
	s := &m.s
	s.Locked = m.e.Outcome == Done
	switch s.Phase {
	case Stopping:
		if !s.Locked {
			s.StopVer = arbiter.Absent // perhaps nothing was stopped: only the time counts
			m.giveUp(LockFailed)
			return
		}
		m.enter(Deciding)
		s.Fresh = m.do(Action{Kind: ReadRecord})
	case Preparing:
		if !s.Locked {
			m.returnFails(LockFailed)
			return
		}
		s.Fresh = m.do(Action{Kind: ReadRecord})
	case Fenced:
		// fenced asks again if it was not done.
	}
}

func (m *machine) decideRecord() {
	s := &m.s
	switch {
	case s.Site != NoAction:
		return // the data are being read already
	case !s.Fresh:
		s.Fresh = m.do(Action{Kind: ReadRecord})
	case s.RecStatus != Readable:
		m.giveUp(s.RecStatus.Reason())
	default:
		m.do(Action{Kind: ReadData, Index: s.Rec.Confirmed.Index})
	}
}

func (m *machine) dataRead() {
	s, e := &m.s, m.e
	if e.Outcome == Done {
		s.Data = e.Data
		if e.Data.Problem == None {
			s.Tok, s.TokKnown = e.Data.Token, true
		}
	} else {
		s.Data = Data{Problem: LockFailed}
	}
	switch s.Phase {
	case Deciding:
		m.decide()
	case Preparing:
		m.prepareData()
	}
}

// decide claims, or gives up with the reason (P4 to P7).
func (m *machine) decide() {
	s := &m.s
	rec := s.Rec
	if m.unborn(s.Data.Member) {
		rec.Survivor.ID = s.Data.Member
	}
	ground, r := Eligible(rec, s.Data, s.Seen)
	if r == None && s.Order && ground != ByForce {
		r = NoLeader // the order is void by now
	}
	if r != None {
		m.giveUp(r)
		return
	}
	if r := s.Obs.Store.Reason(); r != None {
		m.giveUp(r)
		return
	}
	if m.e.Why != None { // the disk's space, looked at with the data
		m.giveUp(m.e.Why)
		return
	}
	why := "no leader"
	if s.PeerLost >= s.P.ClaimAfter {
		why = "no leader, the other member is out of reach"
	}
	next := Claim(s.Rec, s.Data, why, m.e.Stamp)
	s.NewID = 0
	if ground == ByForce {
		if next = ForcedClaim(s.Rec, s.Data, m.e.FreshID, m.e.Stamp); next.Survivor.ID != s.Data.Member {
			s.NewID = next.Survivor.ID
		}
		s.Data.Term = next.Fork.Term - 1 // the append skips what is between
	}
	s.Mine = s.Mine.attempt(next.ID, next.Generation, next.ClaimNonce)
	s.Mine.End, s.Mine.Fork = next.ClaimEnd, next.Fork
	if !m.swap(ForClaim, next) {
		m.giveUp(SwapUnknown)
		return
	}
	s.Retries = 0
	m.enter(Claiming)
}

func (o Own) attempt(recordID string, generation uint64, nonce string) Own {
	if o.RecordID != recordID {
		o.Nonces = [4]string{}
	}
	o.RecordID, o.Generation = recordID, generation
	copy(o.Nonces[1:], o.Nonces[:])
	o.Nonces[0] = nonce
	return o
}

func (m *machine) claimSwapped() {
	if m.s.Phase != Claiming {
		return
	}
	switch m.e.Outcome {
	case Done:
		m.won()
	case Failed:
		why := m.e.Why
		if why == None {
			why = RecordUnavailable
		}
		m.giveUp(why)
	default:
		// Lost or unknown: the own nonce decides, even on a conflict, since
		// something below may have repeated the swap (P1, F29).
		m.do(Action{Kind: ReadRecord})
	}
}

// maxResolve is how often the record is read, under the locks, for the outcome
// of a claim. After that etcd runs again and the reading goes on beside it.
const maxResolve = 3

func (m *machine) resolve() {
	s := &m.s
	switch {
	case s.RecStatus == Readable && s.Rec.ID == s.Mine.RecordID && s.Rec.ClaimNonce == s.Mine.Nonces[0]:
		m.won()
	case s.RecStatus == Readable:
		m.giveUp(SwapLost)
	case s.Retries+1 < maxResolve:
		s.Retries++
		m.do(Action{Kind: ReadRecord})
	default:
		m.giveUp(SwapUnknown)
	}
}

// won: the swap is applied, now and only now the WAL is written (P7, P8).
func (m *machine) won() {
	s := &m.s
	if !m.do(Action{Kind: Append, Remove: s.Data.Confs.Remove, Twins: s.Data.Confs.Twins, Term: s.Data.Term + 1, ID: s.NewID}) {
		m.giveUp(AppendFailed)
		return
	}
	s.Seen = max(s.Seen, s.Mine.Generation) // the record has been there (P17)
	m.enter(Appending)
}

func (m *machine) appended() {
	if m.s.Phase != Appending {
		return
	}
	if m.e.Outcome != Done {
		m.giveUp(AppendFailed)
		return
	}
	if m.s.NewID != 0 {
		m.s.Data.Member = m.s.NewID // the WAL carries it by now
	}
	m.enter(Rechecking)
	m.do(Action{Kind: ReadRecord})
}

// rechecked: whoever the record names by now decides whether etcd may start (P7, P16).
func (m *machine) rechecked() {
	s := &m.s
	if s.RecStatus == Readable && !s.old() { // a store rolled back is P17's, which comes before P16
		if r := m.overridden(); r != None {
			m.enter(Fenced)
			s.Why, s.Held, s.Fence = r, true, r
			return
		}
	}
	s.NoLeader, s.StopLevel, s.Refused, s.WasLeader = 0, 0, None, false
	s.Removed, s.Held, s.Fence, s.Order = false, false, None, false
	m.do(Action{Kind: Release})
	m.enter(Releasing)
}

// overridden compares the record with the claim kept beside the data (P16).
func (m *machine) overridden() Reason {
	s := &m.s
	switch {
	case s.Rec.Survivor.ID != m.claimer():
		return Overridden
	case s.Rec.Forced && s.Rec.Fork.Index == 0: // an order's nonce is the operator's, and nobody's data can hold it
		return None
	case s.Mine.RecordID == s.Rec.ID && s.Rec.Generation >= s.Mine.Generation && !s.Mine.made(s.Rec.ClaimNonce):
		return Clone
	}
	return None
}

// claimer is this member's ID, from the data where they were read under the locks.
func (m *machine) claimer() uint64 {
	if m.s.Locked && m.s.Data.Member != 0 {
		return m.s.Data.Member
	}
	return m.self()
}

// giveUp ends a section without an append: etcd runs again at once, and is not
// stopped again for a while (P7).
func (m *machine) giveUp(why Reason) {
	s := &m.s
	wait := s.P.MinRun << s.StopLevel // at most 16
	if wait == 0 || wait > s.P.MaxRun {
		wait = s.P.MaxRun
	}
	wait += m.e.Random % (s.P.MinRun/2 + 1)
	s.StopWait = min(wait, s.P.MaxRun)
	s.StopLevel, s.Refused = min(s.StopLevel+1, 16), why
	s.NewID = 0
	if s.Order || s.Held || m.ordered() {
		s.PreWait = s.StopWait // it counts while etcd is down, too
	}
	s.Order = false
	if s.Held { // etcd was down before, and stays so (P16)
		m.enter(Fenced)
		s.Why = why
		return
	}
	m.do(Action{Kind: Release})
	m.enter(Releasing)
	s.Why = why
}

func (m *machine) released() {
	s := &m.s
	if m.e.Outcome != Done {
		// The locks must not stay: ask again.
		m.do(Action{Kind: Release})
		return
	}
	s.Locked, s.Data = false, Data{}
	why := s.Why
	switch s.Phase {
	case Releasing:
		if s.NewID != 0 { // by a forced claim
			s.Obs.Member, s.Obs.Etcd, s.Obs.Voters, s.Obs.TokenRead = s.NewID, EtcdAway, Voters{}, false
			s.NewID = 0
		}
		m.enter(Leaderless)
		s.Why = why
	case Preparing:
		m.afterPrepare()
	}
}
