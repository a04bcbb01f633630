package failover

import "twok/arbiter"

type editRecord = func(r arbiter.Record, edit func(r *arbiter.Record)) Event

// leaderClauses are those of a member with a leader, of a lone leader and of a fenced one.
func leaderClauses(rec editRecord, none, led, follows, lone Obs, mine, theirs arbiter.Record) (cs []clause) {
	add := func(name string, p Phase, edit func(s *State), e Event) { cs = append(cs, clause{name, p, edit, e}) }
	whole := readOf(baseRecord())
	quiet := func(s *State) { s.Tidied = 3 }

	// Armed or not, and how often the record is read.
	add("following: no record read yet", Following, func(s *State) { quiet(s); s.RecStatus, s.RecAge = Unread, 0 }, tickOf(follows))
	add("following: token not known", Following, func(s *State) { quiet(s); s.TokKnown = false }, tickOf(edited(follows, func(o *Obs) { o.TokenRead = false })))
	for _, f := range tokenFaults {
		add("following: token "+f.name, Following, quiet, tickOf(edited(follows, f.edit)))
	}
	add("leading: token late, refused a short while ago", Leading, func(s *State) { quiet(s); s.TokenWait, s.TokStale = 5, true }, tickOf(led))
	for _, f := range tokenFaults {
		add("leading: token "+f.name+", refused a short while ago", Leading, func(s *State) { quiet(s); s.TokenWait = 5 }, tickOf(edited(led, f.edit)))
	}
	add("leading: the record was rolled back", Leading, func(s *State) { quiet(s); s.Seen = 9 }, tickOf(led))
	add("leading: no record read yet", Leading, func(s *State) { quiet(s); s.RecStatus, s.RecAge = Unread, 0 }, tickOf(led))
	add("leading: whole", Leading, quiet, tickOf(led))
	add("leading: no leader by now", Leading, func(s *State) { s.Obs = none }, whole)
	add("leading: no leader by now, of a pair", Leading, func(s *State) { s.Obs.Etcd = EtcdNoLeader; s.Obs.Token = Token{} }, whole)
	add("leading: own list not known", Leading, func(s *State) { s.Obs.Voters = Voters{} }, whole)
	add("leading: alone by now", Leading, func(s *State) { s.Obs.Voters = lone.Voters }, whole)

	// A new record (P3).
	fresh := func(s *State) { s.Tok, s.Obs.Token, s.RecStatus = Token{}, Token{}, Absent }
	add("create: a new pair", Leading, fresh, unread(Absent))
	add("create: own token not known now", Leading, func(s *State) { fresh(s); s.Obs.TokenRead = false }, unread(Absent))
	add("create: a token by now", Leading, func(s *State) { fresh(s); s.Obs.Token.Present = true }, unread(Absent))
	add("create: a third voter", Leading, func(s *State) { fresh(s); s.Obs.Voters.Count = 3 }, unread(Absent))
	add("create: a learner", Leading, func(s *State) { fresh(s); s.Obs.Voters.Learners = 1 }, unread(Absent))
	add("create: no ID at hand", Leading, fresh, unread(Absent))
	add("create: a swap failed a short while ago", Leading, func(s *State) { fresh(s); s.SwapWait = 1 }, unread(Absent))
	add("create: not read just now", Leading, fresh, tickOf(edited(led, func(o *Obs) { o.Token = Token{} })))

	// The token again, before it sinks (P5, P14).
	sinks := func(age uint32, at uint64) func(s *State) {
		return func(s *State) { quiet(s); s.TokenAge, s.TokenAt = age, at } // the commit index is 95
	}
	segs := func(age uint32, now, then uint64) (func(s *State), Obs) {
		o := led
		o.Segment = now
		return func(s *State) { sinks(age, 91)(s); s.TokenSeg, s.Obs.Segment = then, now }, o
	}
	segments := func(name string, age uint32, now, then uint64, read bool) {
		edit, o := segs(age, now, then)
		e := whole
		if !read {
			e = tickOf(o)
		}
		add("renew: "+name, Leading, edit, e)
	}
	add("renew: in time", Leading, sinks(45, 91), whole)
	add("renew: an entry less", Leading, sinks(60, 92), whole)
	add("renew: a tick less", Leading, sinks(44, 91), whole)
	segments("segments", 10, 5, 3, true)
	segments("a segment less", 10, 4, 3, true)
	segments("segments, a tick less", 9, 5, 3, true)
	segments("a segment less, before an ordinary one is due", 11, 4, 3, true)
	add("renew: one segment will do", Leading, func(s *State) {
		edit, _ := segs(10, 4, 3)
		edit(s)
		s.P.TokenSegs = 1
	}, whole)
	add("renew: done", Leading, func(s *State) {
		edit, _ := segs(10, 5, 3)
		edit(s)
		s.Site = WriteToken
	}, Event{Kind: TokenWritten, Outcome: Done, Token: baseData().Token})
	add("renew: segments do not count", Leading, func(s *State) {
		edit, _ := segs(10, 5, 3)
		edit(s)
		s.P.TokenSegs = 0
	}, whole)
	add("renew: written above the commit index", Leading, sinks(120, 100), whole)
	add("renew: never", Leading, func(s *State) { sinks(60, 0)(s); s.P.TokenFew = 0 }, whole)
	add("renew: at every entry", Leading, func(s *State) { sinks(60, 94)(s); s.P.TokenFew = 1 }, whole)
	add("renew: the record is not read for it", Leading, sinks(60, 91), tickOf(led))
	add("renew: at twice the time it is", Leading, sinks(119, 91), tickOf(led))
	add("renew: a tick less than that", Leading, sinks(118, 91), tickOf(led))
	segments("segments, the record is read", 10, 5, 3, false)
	missing := func(s *State) {
		quiet(s)
		s.Tok, s.Obs.Token, s.Intent, s.TokenAge = Token{}, Token{}, true, 7
	}
	add("token: missing", Leading, missing, whole)
	add("token: missing, another action is out", Leading, func(s *State) { missing(s); s.Site = Tidy }, whole)
	add("token: missing, the read was not for it", Leading, func(s *State) { missing(s); s.Intent = false }, whole)

	// The notes (P14, P15).
	note := func(edit func(r *arbiter.Record)) Event { return rec(baseRecord(), edit) }
	older := func(r *arbiter.Record) { r.WholeGeneration = 2 }
	add("whole note: missing", Leading, quiet, note(older))
	add("whole note: with other members", Leading, quiet, note(func(r *arbiter.Record) { r.WholeMembers[1] = idC }))
	add("whole note: a confirmation beside it", Leading, quiet, note(func(r *arbiter.Record) { r.Confirmed.Index = 1 }))
	add("whole note: missing, a learner is there", Leading, func(s *State) { quiet(s); s.Obs.Voters.Learners = 1 }, note(older))
	add("whole note: missing, a swap failed a short while ago", Leading, func(s *State) { quiet(s); s.SwapWait = 1 }, note(older))
	add("whole note: missing, not read just now", Leading, func(s *State) { quiet(s); s.Rec.WholeGeneration = 2 }, tickOf(led))
	add("whole note: missing, the arbiter is busy", Leading, func(s *State) { quiet(s); s.Rec.WholeGeneration, s.Arb = 2, Swap }, tickOf(led))
	mark := func(s *State) { quiet(s); s.NoteAge = 23 }
	add("mark: due", Leading, mark, whole)
	add("mark: a tick less", Leading, func(s *State) { quiet(s); s.NoteAge = 22 }, whole)
	add("mark: due, not read just now", Leading, mark, tickOf(led))
	add("mark: overdue, not read just now", Leading, func(s *State) { mark(s); s.NoteAge = 30 }, tickOf(led))
	add("mark: overdue, a swap failed a short while ago", Leading, func(s *State) { mark(s); s.NoteAge, s.SwapWait = 30, 2 }, tickOf(led))
	add("mark: due, a swap failed a short while ago", Leading, func(s *State) { mark(s); s.SwapWait = 2 }, tickOf(led))
	add("mark: due, a learner is there", Leading, mark, tickOf(edited(led, func(o *Obs) { o.Voters.Learners = 1 })))

	cs = append(cs, aloneClauses(rec, none, led, lone, mine, theirs)...)
	return append(cs, fencedClauses(rec, mine, theirs)...)
}

var tokenFaults = []struct {
	name string
	edit func(o *Obs)
}{
	{"missing", func(o *Obs) { o.Token = Token{} }},
	{"bad", func(o *Obs) { o.Token.Bad = true }},
	{"pending", func(o *Obs) { o.Token.Generation = 2 }},
	{"newer", func(o *Obs) { o.Token.Generation = 4 }},
	{"misnamed", func(o *Obs) { o.Token.Members[1] = idC }},
	{"elsewhere", func(o *Obs) { o.Token.RecordID = "other" }},
}

// aloneClauses are those of a lone leader (P10, P16, P17).
func aloneClauses(rec editRecord, none, led, lone Obs, mine, theirs arbiter.Record) (cs []clause) {
	add := func(name string, edit func(s *State), e Event) { cs = append(cs, clause{name, Alone, edit, e}) }
	add("alone: the record not read yet", func(s *State) { s.RecStatus, s.RecAge = Unread, 0 }, tickOf(lone))
	add("alone: the arbiter does not answer", func(s *State) { s.RecStatus, s.RecAge = Unavailable, 1 }, tickOf(lone))
	add("alone: confirmed, the record is read again", func(s *State) { s.RecAge = 5 }, tickOf(lone))
	add("alone: confirmed, a tick less", func(s *State) { s.RecAge = 4 }, tickOf(lone))
	add("alone: not confirmed", func(s *State) { s.Rec.Confirmed.Index, s.RecAge = 0, 1 }, tickOf(lone))
	alarm := tickOf(edited(lone, func(o *Obs) { o.Alarm = true }))
	add("alone: an alarm", nil, alarm)
	add("alone: an alarm, and something else in the way", func(s *State) { s.Why = AloneUnclaimed }, alarm)
	store := func(st StoreState) Event { return tickOf(edited(lone, func(o *Obs) { o.Store = st })) }
	add("alone: a store that failed its probe", nil, store(StoreFaulty))
	add("alone: a store that was not tried", nil, store(StoreUntested))
	add("alone: a store that failed, and something else in the way", func(s *State) { s.Why = AloneUnclaimed }, store(StoreFaulty))
	add("alone: a store that failed, and an alarm", nil, edited(store(StoreFaulty), func(e *Event) { e.Obs.Alarm = true }))
	add("alone: no leader by now", func(s *State) { s.Obs = none; s.NoteAge = 30 }, readOf(mine))
	add("alone: no leader by now, alone before", func(s *State) { s.Obs.Etcd, s.NoteAge = EtcdNoLeader, 30 }, readOf(mine))
	add("alone: a pair by now", func(s *State) { s.Obs = led; s.NoteAge = 30 }, readOf(mine))
	add("alone: own claim, confirmed", nil, readOf(mine))
	add("alone: own claim, a confirmation is due", func(s *State) { s.NoteAge = 23 }, readOf(mine))
	add("alone: own claim, a tick less", func(s *State) { s.NoteAge = 22 }, readOf(mine))
	add("alone: own claim, not confirmed", nil, rec(mine, func(r *arbiter.Record) { r.Confirmed.Index = 0 }))
	add("alone: the same, a swap failed a short while ago", func(s *State) { s.SwapWait = 1 }, rec(mine, func(r *arbiter.Record) { r.Confirmed.Index = 0 }))
	add("alone: another cluster's record", nil, rec(mine, func(r *arbiter.Record) { r.ClusterID++ }))
	other := func(s *State) { s.Tok.RecordID = "other" }
	add("alone: bound to another record", other, readOf(mine))
	add("alone: the same, the token not known", func(s *State) { other(s); s.TokKnown = false }, readOf(mine))
	add("alone: the same, the token not present", func(s *State) { other(s); s.Tok.Present = false }, readOf(mine))
	add("alone: the same, the token bad", func(s *State) { other(s); s.Tok.Bad = true }, readOf(mine))
	add("alone: own claim, of an earlier generation than the last one", func(s *State) { s.Mine.Generation, s.Mine.Nonces = 5, [4]string{"later"} }, readOf(mine))

	rolled := func(s *State) { s.Seen, s.Mine.Generation = 6, 6 }
	add("rolled back: the highest was the own claim", rolled, rec(theirs, func(r *arbiter.Record) { r.Survivor.Name = "b" }))
	add("rolled back: named by name", rolled, rec(mine, func(r *arbiter.Record) { r.Survivor.Name = "a" }))
	add("rolled back: a higher one was seen", func(s *State) { rolled(s); s.Seen = 7 }, readOf(theirs))
	add("rolled back: the own claim is of another record", func(s *State) { rolled(s); s.Mine.RecordID = "other" }, readOf(theirs))
	add("rolled back: the own fork is not known", func(s *State) { rolled(s); s.Mine.Fork = arbiter.Position{} }, readOf(theirs))
	add("rolled back: the own fork is the first entry", func(s *State) { rolled(s); s.Mine.Fork.Index = 1 }, readOf(theirs))

	nobody := func(r *arbiter.Record) { r.Survivor = arbiter.Member{} }
	add("unclaimed: nobody named", nil, rec(mine, nobody))
	add("unclaimed: the ID 1 named", nil, rec(mine, func(r *arbiter.Record) { r.Survivor.ID = 1 }))
	unsafe := func(s *State) { s.Obs.Unsafe = true }
	add("unclaimed: nobody named, forced by a flag", unsafe, rec(mine, nobody))
	add("unclaimed: forced by a flag, named", unsafe, readOf(mine))
	add("unclaimed: forced by a flag, the ID 1 named", unsafe, rec(mine, func(r *arbiter.Record) { r.Survivor.ID = 1 }))
	by := func(edit func(s *State)) func(s *State) {
		return func(s *State) { s.Tok.Generation, s.Mine.RecordID = 4, "other"; edit(s) }
	}
	add("unclaimed: the other named, own token of this generation", by(func(*State) {}), readOf(theirs))
	add("unclaimed: own claim of it", by(func(s *State) { s.Mine.RecordID = "rec" }), readOf(theirs))
	add("unclaimed: own claim above it", by(func(s *State) { s.Mine.RecordID, s.Mine.Generation = "rec", 5 }), readOf(theirs))
	add("unclaimed: a claim above it, at another record", by(func(s *State) { s.Mine.Generation = 5 }), readOf(theirs))
	add("unclaimed: own token older", by(func(s *State) { s.Tok.Generation = 3 }), readOf(theirs))
	add("unclaimed: own token bad", by(func(s *State) { s.Tok.Bad = true }), readOf(theirs))
	add("unclaimed: this member named", by(func(s *State) { s.NoteAge = 30 }), readOf(mine))
	for i := range uint8(maxResolve + 1) {
		add("unclaimed: own token not known, again "+string('0'+rune(i)), func(s *State) { s.TokKnown, s.Retries = false, i }, readOf(theirs))
	}
	add("unclaimed: own token not known, this member named", func(s *State) { s.TokKnown, s.NoteAge = false, 30 }, readOf(mine))

	sample := func(i uint64) Event {
		return Event{Kind: Sampled, Outcome: Done, Position: arbiter.Position{Index: i, Term: 6}}
	}
	add("sampled: at the confirmation", nil, sample(102))
	add("sampled: below it", nil, sample(101))
	add("sampled: the other named by now", func(s *State) { s.Rec = theirs }, sample(110))
	add("sampled: the record rolled back by now", func(s *State) { s.Seen = 9 }, sample(110))
	return cs
}

// fencedClauses are those of a member whose etcd stays down (P10, P16).
func fencedClauses(rec editRecord, mine, theirs arbiter.Record) (cs []clause) {
	add := func(name string, edit func(s *State), e Event) { cs = append(cs, clause{name, Fenced, edit, e}) }
	away := tickOf(obsOf(EtcdAway))
	due := func(s *State) { s.ListAge = 3 }
	add("fenced: the survivor's list is due", due, away)
	add("fenced: a return failed a short while ago", func(s *State) { due(s); s.JoinWait = 2 }, away)
	add("fenced: a clone", func(s *State) { due(s); s.Fence, s.Why = Clone, Clone }, away)
	add("fenced: not locked", func(s *State) { due(s); s.Locked = false }, away)
	add("fenced: not locked, the stop is out", func(s *State) { due(s); s.Locked, s.Site = false, Stop }, away)
	again := mine
	add("fenced: named again", nil, readOf(again))
	add("fenced: named again, own ID from the data", func(s *State) { s.Obs.Member, s.Data.Member = 0, idA }, readOf(again))
	add("fenced: named again, the data are an earlier section's", func(s *State) { s.Locked, s.Data.Member = false, idC }, readOf(again))
	add("fenced: named again, not locked", func(s *State) { s.Locked = false }, readOf(again))
	add("fenced: named again, another action is out", func(s *State) { s.Site = LookAtList }, readOf(again))
	add("fenced: named again, a claim that it did not make", nil, readOf(recordOf(idA, "forged")))
	add("fenced: named again, a clone", func(s *State) { s.Fence, s.Why = Clone, Clone }, readOf(again))
	add("fenced: not readable, named again before", func(s *State) { s.Rec = again }, unread(Unavailable))
	add("fenced: named again by an older record", func(s *State) { s.Seen = 9 }, readOf(again))
	rolled := func(s *State) { s.Fence, s.Why = RolledBack, RolledBack }
	add("fenced: rolled back, another named", rolled, readOf(theirs))
	add("fenced: rolled back, the ID 1 named", rolled, rec(theirs, func(r *arbiter.Record) { r.Survivor.ID = 1 }))
	add("fenced: rolled back, nobody named", rolled, rec(theirs, func(r *arbiter.Record) { r.Survivor.ID = 0 }))
	add("fenced: rolled back, this member named", rolled, readOf(again))
	add("fenced: rolled back, another named by an older record", func(s *State) { rolled(s); s.Seen = 9 }, readOf(theirs))
	add("fenced: rolled back, not readable, another named before", func(s *State) { rolled(s); s.Rec = theirs }, unread(Unavailable))
	return cs
}
