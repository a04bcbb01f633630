package failover

import "twok/arbiter"

// returnClauses are those of the way back (P12, P13).
func returnClauses(rec editRecord, list func(func(l *List)) Event, none Obs, mine, theirs arbiter.Record) (cs []clause) {
	add := func(name string, p Phase, edit func(s *State), e Event) { cs = append(cs, clause{name, p, edit, e}) }
	voter := list(func(l *List) { l.Self, l.Voters = ListedVoter, Voters{Count: 2, IDs: [2]uint64{idA, idB}} })
	learner := list(func(l *List) { l.Self = ListedLearner })
	lacks := list(nil)
	notOK := edited(lacks, func(e *Event) { e.List.OK = false })
	failed := edited(lacks, func(e *Event) { e.Outcome = Failed })

	add("lost: the list is due", Lost, func(s *State) { s.ListAge = 3 }, tickOf(none))
	add("lost: a return failed a short while ago", Lost, func(s *State) { s.ListAge, s.JoinWait = 3, 2 }, tickOf(none))
	for _, p := range []Phase{Lost, Joining, CatchingUp, Promoting} {
		add("list not read: "+p.String()+", no leader there", p, nil, notOK)
		add("list not read: "+p.String()+", failed", p, nil, failed)
	}
	add("list not read: joining, held", Joining, func(s *State) { s.Held, s.Locked, s.Fence = true, true, Overridden }, failed)
	for _, p := range []Phase{Leaderless, Lost, Joining, CatchingUp, Promoting, Fenced} {
		add("listed as a voter: "+p.String(), p, func(s *State) { s.NewID, s.LossAge = idC, 50 }, voter)
		add("listed as a learner: "+p.String(), p, nil, learner)
		add("not listed: "+p.String(), p, func(s *State) { s.LossAge, s.HoldLevel = 5, 1 }, lacks)
		add("not listed: "+p.String()+", paused", p, func(s *State) { s.Rec = theirs; s.Rec.Pause, s.LossAge, s.HoldLevel = true, 5, 1 }, lacks)
		add("not listed: "+p.String()+", a return failed a short while ago", p, func(s *State) { s.JoinWait, s.LossAge, s.HoldLevel = 1, 5, 1 }, lacks)
	}
	held := func(s *State) { s.Held, s.Locked, s.Fence = true, true, Overridden }
	add("not listed: leaderless, named another", Leaderless, func(s *State) { s.Rec, s.Seen, s.LossAge, s.HoldLevel = theirs, 4, 5, 1 }, lacks)
	add("listed as a voter: joining, held", Joining, held, voter)
	add("listed as a voter: lost, with a reason to be fenced", Lost, func(s *State) { s.Fence = Overridden }, voter)
	add("listed as a learner: fenced, not locked", Fenced, func(s *State) { s.Locked = false }, learner)
	add("not listed: fenced, not locked", Fenced, func(s *State) { s.Locked = false }, lacks)
	add("not listed: fenced, a clone", Fenced, func(s *State) { s.Fence, s.Why = Clone, Clone }, lacks)
	add("not listed: fenced, not locked, a clone", Fenced, func(s *State) { s.Locked, s.Fence, s.Why = false, Clone, Clone }, lacks)
	add("not listed: a leftover", Lost, nil, list(func(l *List) { l.Leftover = idC }))
	add("not listed: another survivor", Lost, nil, list(func(l *List) { l.Voters.IDs[0] = idC }))
	add("not listed: not confirmed", Lost, func(s *State) { s.Rec.Confirmed.Index = 0 }, lacks)
	add("not listed: own cluster not known", Lost, func(s *State) { s.Obs.Cluster = 0 }, lacks)
	noted := func(g uint64, a, b uint64) func(s *State) {
		return func(s *State) { s.TokKnown, s.Rec.WholeGeneration, s.Rec.WholeMembers = false, g, [2]uint64{a, b} }
	}
	add("removed by hand: whole with it", Lost, noted(4, idA, idB), lacks)
	add("removed by hand: as the higher member", Lost, noted(4, 9, idA), lacks)
	add("removed by hand: whole before the claim", Lost, noted(3, idA, idB), lacks)
	token := func(edit func(s *State)) func(s *State) { return func(s *State) { s.Tok.Generation = 4; edit(s) } }
	add("removed by hand: own token of this generation", Lost, token(func(*State) {}), lacks)
	add("removed by hand: not known", Lost, token(func(s *State) { s.TokKnown = false }), lacks)
	add("removed by hand: no token", Lost, token(func(s *State) { s.Tok.Present = false }), lacks)
	add("removed by hand: another record's", Lost, token(func(s *State) { s.Tok.RecordID = "other" }), lacks)

	changed := func(o Outcome, id uint64) Event { return Event{Kind: MemberChanged, Outcome: o, ID: id} }
	with := func(k ActionKind) func(s *State) { return func(s *State) { s.Site = k } }
	add("added: with its ID", Joining, with(AddLearner), changed(Done, idC))
	add("added: with the ID 1", Joining, with(AddLearner), changed(Done, 1))
	add("added: without an ID", Joining, with(AddLearner), changed(Done, 0))
	add("added: perhaps, with an ID", Joining, with(AddLearner), changed(Unknown, idC))
	add("added: a learner again by now", CatchingUp, with(AddLearner), changed(Done, idC))
	add("added: a removal, with an ID", Joining, with(RemoveLearner), changed(Done, idC))
	add("added: nothing, no time between two", Joining, func(s *State) { s.Site, s.P.ListEvery = AddLearner, 0 }, changed(Failed, 0))
	add("added: perhaps, no time between two", Joining, func(s *State) { s.Site, s.P.ListEvery = AddLearner, 0 }, changed(Unknown, 0))
	add("added: nothing, no time that etcd has to run", Joining, func(s *State) { s.Site, s.P.MinRun = AddLearner, 3 }, changed(Failed, 0))
	add("promoted: refused", Promoting, with(Promote), changed(Failed, 0))
	add("promoted: perhaps", Promoting, with(Promote), changed(Unknown, 0))

	// Under the locks (P13).
	add("prepare: the locks are being taken", Preparing, func(s *State) { s.Locked, s.Site, s.Fresh = false, Stop, false }, readOf(theirs))
	add("prepare: not locked", Preparing, func(s *State) { s.Locked = false }, readOf(theirs))
	add("prepare: the data are being read", Preparing, func(s *State) { s.Site, s.Fresh = ReadData, false }, readOf(theirs))
	add("prepare: a read from before the locks", Preparing, func(s *State) { s.Fresh = false }, readOf(theirs))
	add("prepare: a fresh one", Preparing, nil, readOf(theirs))
	paused := func(r *arbiter.Record) { r.Pause = true }
	add("prepare: not readable, paused before", Preparing, func(s *State) { s.Rec.Pause = true }, unread(Unavailable))
	add("prepare: drained", Preparing, nil, rec(theirs, func(r *arbiter.Record) { r.Drain = true }))
	add("prepare: another cluster's", Preparing, nil, rec(theirs, func(r *arbiter.Record) { r.ClusterID++ }))
	add("prepare: an older one", Preparing, func(s *State) { s.Seen = 9 }, readOf(theirs))
	add("prepare: another survivor", Preparing, nil, readOf(mine))
	add("prepare: nobody named", Preparing, nil, rec(theirs, func(r *arbiter.Record) { r.Survivor.ID = 0 }))
	add("prepare: nobody named, nobody listed", Preparing, func(s *State) { s.List.Voters = Voters{} }, rec(theirs, func(r *arbiter.Record) { r.Survivor.ID = 0 }))
	add("prepare: the ID 1 named and listed", Preparing, func(s *State) { s.List.Voters.IDs[0] = 1 }, rec(theirs, func(r *arbiter.Record) { r.Survivor.ID = 1 }))
	for _, h := range []struct {
		name string
		edit func(s *State)
	}{{"", func(*State) {}}, {", held", held}, {", held, not locked", func(s *State) { held(s); s.Locked = false }}} {
		add("prepare fails: no locks"+h.name, Preparing, func(s *State) { h.edit(s); s.Site = Stop }, Event{Kind: Stopped, Outcome: Failed})
		add("prepare fails: locks lost"+h.name, Preparing, func(s *State) { h.edit(s); s.Site = ReadData }, Event{Kind: DataRead, Outcome: Failed})
		add("prepare fails: disk full"+h.name, Preparing, func(s *State) { h.edit(s); s.Site = ReadData }, Event{Kind: DataRead, Outcome: Done, Data: baseData(), Why: DiskFull})
		add("prepare fails: not rewritten"+h.name, Preparing, func(s *State) { h.edit(s); s.Site = Rewrite }, Event{Kind: Rewritten, Outcome: Failed})
		add("prepare fails: paused"+h.name, Preparing, h.edit, rec(theirs, paused))
	}
	kept := func(s *State) { s.Data, s.Tok, s.TokKnown = baseData(), baseData().Token, false }
	add("rewritten: the log was kept", Preparing, kept, Event{Kind: Rewritten, Outcome: Done})
	add("rewritten: it was set aside", Preparing, func(s *State) { kept(s); s.Data.Confs.AnyAlone = true }, Event{Kind: Rewritten, Outcome: Done})
	add("rewritten: held", Preparing, func(s *State) { kept(s); held(s) }, Event{Kind: Rewritten, Outcome: Done})
	add("rewritten: started", Preparing, func(s *State) { s.Site, s.Obs.Voters.Count, s.Obs.TokenRead = Release, 2, true }, Event{Kind: Released, Outcome: Done})

	// Catching up (P12, F35).
	equal := func(hold uint32) func(s *State) { return func(s *State) { s.Equal, s.Hold = true, hold } }
	watched := tickOf(representative(CatchingUp).Obs)
	add("held down: a while yet", CatchingUp, equal(3), watched)
	add("held down: one tick yet", CatchingUp, equal(2), watched)
	add("held down: the list is due", CatchingUp, func(s *State) { equal(3)(s); s.ListAge = 2 }, watched)
	add("held down: a tick less", CatchingUp, func(s *State) { equal(3)(s); s.ListAge = 1 }, watched)
	add("held down: over", CatchingUp, equal(1), watched)
	compared := Event{Kind: Compared, Outcome: Done, Equal: true}
	add("compared: equal", CatchingUp, nil, compared)
	add("compared: equal, held down for a tick", CatchingUp, func(s *State) { s.Hold = 1 }, compared)
	add("compared: equal, paused", CatchingUp, func(s *State) { s.Rec.Pause = true }, compared)
	add("compared: equal, drained", CatchingUp, func(s *State) { s.Rec.Drain = true }, compared)
	add("compared: equal, asked before", CatchingUp, func(s *State) { s.Asked = true }, compared)
	add("compared: different", CatchingUp, nil, Event{Kind: Compared, Outcome: Done})
	add("compared: failed", CatchingUp, nil, Event{Kind: Compared, Outcome: Failed, Equal: true})
	return cs
}
