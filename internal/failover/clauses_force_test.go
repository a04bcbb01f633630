package failover

import "twok/arbiter"

// forceClauses are those of forced claims (P18), of pairs and survivors that were given up (P10, P16), and of empty disks (P12).
func forceClauses(none, led, lone Obs, lacks Event, mine, theirs arbiter.Record) (cs []clause) {
	add := func(name string, p Phase, edit func(s *State), e Event) { cs = append(cs, clause{name, p, edit, e}) }
	order := mine
	order.Forced, order.ClaimNonce, order.Reason = true, "order", "forced by alice"
	order.ClaimEnd, order.Fork, order.Confirmed, order.WholeGeneration = arbiter.Position{}, arbiter.Position{}, arbiter.Position{}, 0
	begun := order
	begun.Fork, begun.ClaimNonce = arbiter.Position{Index: 101, Term: 4 << 32}, "mine"
	own := Own{RecordID: "rec", Generation: 4, Nonces: [4]string{"mine"}}
	away := obsOf(EtcdAway)
	with := func(r arbiter.Record, edits ...func(s *State)) func(s *State) {
		return func(s *State) {
			s.Rec, s.Seen, s.Mine, s.StopWait = r, 4, own, 0
			for _, e := range edits {
				e(s)
			}
		}
	}
	blind := func(o *Obs) { o.TokenRead = false }
	tok := func(edit func(t *Token)) func(s *State) {
		return func(s *State) { s.TokKnown = true; edit(&s.Tok) }
	}
	newer := tok(func(t *Token) { t.Generation = 4 })

	// An order that waits.
	for _, p := range []Phase{Leaderless, Lost, CatchingUp, Promoting} {
		add("order: "+p.String()+", no leader", p, with(order), tickOf(none))
		add("order: "+p.String()+", etcd away", p, with(order), tickOf(away))
		add("order: "+p.String()+", begun", p, with(begun, func(s *State) { s.Removed = true }), tickOf(none))
	}
	add("order: the record is not readable", Leaderless, with(order, func(s *State) { s.RecStatus = Unavailable }), tickOf(none))
	add("order: an older record", Leaderless, with(order, func(s *State) { s.Seen = 9 }), tickOf(none))
	add("order: paused", Leaderless, with(order, func(s *State) { s.Rec.Pause = true }), tickOf(none))
	add("order: whole since", Leaderless, with(order, func(s *State) { s.Rec.WholeGeneration = 4 }), tickOf(none))
	add("order: another one's", Leaderless, with(order, func(s *State) { s.Rec.Survivor.ID = idC }), tickOf(none))
	add("order: own ID not known", Leaderless, with(order), tickOf(edited(none, func(o *Obs) { o.Member = 0 })))
	add("order: a learner once", Leaderless, with(order), tickOf(edited(none, func(o *Obs) { o.Learner = true })))
	add("order: refused a short while ago", Leaderless, with(order, func(s *State) { s.PreWait, s.Refused = 5, DiskFull }), tickOf(none))
	add("order: waits", Leaderless, with(order, func(s *State) { s.PreWait = 5 }), tickOf(none))
	add("order: waits, the last tick", Leaderless, with(order, func(s *State) { s.PreWait = 2 }), tickOf(none))
	add("order: the preflight failed", Leaderless, with(order, func(s *State) { s.Preflight = DiskFull }), tickOf(none))
	add("order: a learner, the record is not readable", CatchingUp, with(order, func(s *State) { s.RecStatus = Unavailable }), tickOf(none))
	add("order: a learner, an older record", CatchingUp, with(order, func(s *State) { s.Seen = 9 }), tickOf(none))
	add("order: another action is out", Leaderless, with(order, func(s *State) { s.Site = LookAtList }), tickOf(none))
	add("order: void", Leaderless, with(order, newer), tickOf(edited(none, blind)))
	add("order: void, not known", Leaderless, with(order, newer, func(s *State) { s.TokKnown = false }), tickOf(edited(none, blind)))
	add("order: a bad token of its generation", Leaderless, with(order, newer, func(s *State) { s.Tok.Bad = true }), tickOf(edited(none, blind)))
	add("order: another record's token", Leaderless, with(order, newer, func(s *State) { s.Tok.RecordID = "other" }), tickOf(edited(none, blind)))
	add("order: no token of its generation", Leaderless, with(order, newer, func(s *State) { s.Tok.Present = false }), tickOf(edited(none, blind)))

	// A claim of its own for an ID that the data do not carry yet.
	unborn := begun
	unborn.Survivor.ID = idC
	add("unborn: its own", Leaderless, with(unborn), tickOf(none))
	add("unborn: in another record", Leaderless, with(unborn, func(s *State) { s.Mine.RecordID = "other" }), tickOf(none))
	add("unborn: another one's", Leaderless, with(unborn, func(s *State) { s.Rec.ClaimNonce = "theirs" }), tickOf(none))
	add("unborn: not forced", Leaderless, with(unborn, func(s *State) { s.Rec.Forced = false }), tickOf(none))
	add("unborn: own ID not known", Leaderless, with(unborn), tickOf(edited(none, func(o *Obs) { o.Member = 0 })))
	add("unborn: it carries it", Leaderless, with(unborn, func(s *State) { s.Removed = true }), tickOf(edited(none, func(o *Obs) { o.Member = idC })))
	add("unborn: a learner by now", CatchingUp, with(unborn), tickOf(edited(led, func(o *Obs) { o.Learner = true })))

	// Named, and removed by a list: whose list?
	removed := func(s *State) { s.Removed = true }
	add("appointed: removed", Leaderless, with(begun, removed), tickOf(none))
	add("appointed: not readable", Leaderless, with(begun, removed, func(s *State) { s.RecStatus = Unavailable }), tickOf(none))
	add("appointed: older", Leaderless, with(begun, removed, func(s *State) { s.Seen = 9 }), tickOf(none))
	add("appointed: void", Leaderless, with(begun, removed, newer), tickOf(edited(none, blind)))
	add("appointed: not forced", Leaderless, with(begun, removed, func(s *State) { s.Rec.Forced = false }), tickOf(none))
	add("appointed: own ID not known, nobody named", Leaderless, with(begun, removed, func(s *State) { s.Rec.Survivor.ID = 0 }), tickOf(edited(none, func(o *Obs) { o.Member = 0 })))
	for _, r := range []struct {
		name string
		rec  arbiter.Record
	}{{"ordered", order}, {"appointed", begun}, {"another record", theirs}} {
		for _, p := range []Phase{Leaderless, Lost, Joining, CatchingUp} {
			add("not in the list: "+p.String()+", "+r.name, p, with(r.rec), lacks)
		}
		add("not in the list: joining, held, "+r.name, Joining, with(r.rec, func(s *State) { s.Held, s.Locked, s.Fence = true, true, Overridden }), lacks)
		add("learner: "+r.name, CatchingUp, with(r.rec), tickOf(edited(led, func(o *Obs) { o.Learner = true })))
	}

	// The section.
	data := func(d Data, why Reason) Event {
		return Event{Kind: DataRead, Outcome: Done, Data: d, Why: why, FreshID: 0xf1}
	}
	old := baseData()
	gone := baseData()
	gone.Confs = FoldSite(idA, []string{url(idA)}, []ConfMember{{ID: 0x99, PeerURLs: []string{url(idA)}}, {ID: idB, PeerURLs: []string{url(idB)}}}, nil, nil)
	sec := func(s *State) { s.Order = true }
	heldBy := func(s *State) { s.Held, s.Fence = true, Overridden }
	add("section: an order", Deciding, with(order, sec), data(old, None))
	add("section: an order, removed", Deciding, with(order, sec), data(gone, None))
	add("section: an order, after one that a new ID was for", Deciding, with(order, sec, func(s *State) { s.NewID = 0xf1 }), data(old, None))
	add("section: an order, disk full", Deciding, with(order, sec), data(old, DiskFull))
	add("section: an order that came meanwhile, disk full", Deciding, with(order), data(old, DiskFull))
	add("section: an order, disk full, held", Deciding, with(order, sec, heldBy), data(old, DiskFull))
	add("section: begun for an order, eligible by the token", Deciding, func(s *State) { s.Order = true }, data(old, None))
	add("section: the same, not for an order", Deciding, nil, data(old, None))
	add("section: unborn", Deciding, with(unborn, sec), data(gone, None))
	add("section: unborn, another one's", Deciding, with(unborn, sec, func(s *State) { s.Rec.ClaimNonce = "theirs" }), data(gone, None))
	renamed := func(s *State) { s.NewID, s.Data = 0xf1, gone }
	add("section: won, removed", Claiming, func(s *State) { s.Purpose = ForClaim; renamed(s) }, Event{Kind: Swapped, Outcome: Done})
	add("section: appended, removed", Appending, renamed, Event{Kind: Appended, Outcome: Done})
	add("section: not appended, removed", Appending, renamed, Event{Kind: Appended, Outcome: Failed})
	add("section: looked at again, held", Rechecking, func(s *State) { s.Removed, s.Order = true, true; heldBy(s) }, readOf(mine))
	add("section: released, removed", Releasing, func(s *State) { renamed(s); s.Obs.Voters.Count = 2 }, Event{Kind: Released, Outcome: Done})

	// Fenced, and named after all.
	fenced := func(edits ...func(s *State)) func(s *State) {
		return func(s *State) {
			s.Rec, s.RecAge = order, 1
			for _, e := range edits {
				e(s)
			}
		}
	}
	add("fenced, ordered: a tick", Fenced, fenced(), tickOf(away))
	add("fenced, ordered: not locked", Fenced, fenced(func(s *State) { s.Locked = false }), tickOf(away))
	add("fenced, ordered: another action is out", Fenced, fenced(func(s *State) { s.Site = LookAtList }), tickOf(away))
	add("fenced, ordered: refused a short while ago", Fenced, fenced(func(s *State) { s.PreWait = 5 }), tickOf(away))
	add("fenced, ordered: paused", Fenced, fenced(func(s *State) { s.Rec.Pause = true }), tickOf(away))
	add("fenced, ordered: the read is out", Fenced, fenced(func(s *State) { s.Arb = ReadRecord }), tickOf(away))
	add("fenced, ordered: the read is out, one was fresh before", Fenced, fenced(func(s *State) { s.Arb, s.Fresh = ReadRecord, true }), tickOf(away))
	add("fenced, ordered: the record was read just now", Fenced, fenced(func(s *State) { s.RecAge = 0 }), tickOf(away))
	add("fenced, ordered: the list is due", Fenced, fenced(func(s *State) { s.ListAge = 3 }), tickOf(away))
	add("fenced, ordered: read", Fenced, func(s *State) { s.Fence, s.Why = RolledBack, RolledBack }, readOf(order))
	add("fenced, ordered: read, overridden before", Fenced, nil, readOf(order))
	add("fenced, unborn: read", Fenced, func(s *State) { s.Fence, s.Why = RolledBack, RolledBack }, readOf(unborn))
	voidOrder := order
	voidOrder.WholeGeneration, voidOrder.WholeMembers = 4, [2]uint64{idA, idB}
	add("fenced, a void order: read", Fenced, nil, readOf(voidOrder))

	// Its own claim, and perhaps not appended.
	undone := func(edits ...func(s *State)) func(s *State) {
		return fenced(append([]func(s *State){func(s *State) { s.Rec, s.Mine = begun, own }}, edits...)...)
	}
	led4 := edited(begun, func(r *arbiter.Record) { r.Confirmed = arbiter.Position{Index: 102, Term: 4<<32 + 1} })
	add("fenced, begun: a tick", Fenced, undone(), tickOf(away))
	add("fenced, begun: refused a short while ago", Fenced, undone(func(s *State) { s.PreWait = 5 }), tickOf(away))
	add("fenced, begun: led since", Fenced, undone(func(s *State) { s.Rec = led4 }), tickOf(away))
	add("fenced, begun: another one's", Fenced, undone(func(s *State) { s.Mine.Nonces[0] = "other" }), tickOf(away))
	add("fenced, begun: read, overridden before", Fenced, undone(), readOf(begun))
	add("fenced, begun: read, led since", Fenced, undone(), readOf(led4))
	for _, x := range []struct {
		name string
		edit func(s *State)
	}{{"", nil}, {", held", heldBy}} {
		add("section: begun"+x.name+", disk full", Deciding, with(begun, func(s *State) {
			if x.edit != nil {
				x.edit(s)
			}
		}), data(old, DiskFull))
		add("section: not appended, an older record by now"+x.name, Appending, with(order, sec, func(s *State) {
			s.Seen = 5 // the claim's own
			if x.edit != nil {
				x.edit(s)
			}
		}), Event{Kind: Appended, Outcome: Failed})
	}
	sample := func(term uint64) Event {
		return Event{Kind: Sampled, Outcome: Done, Position: arbiter.Position{Index: 110, Term: term}}
	}
	add("sampled: in the claim's term", Alone, with(begun), sample(4<<32))
	add("sampled: below the claim's term", Alone, with(begun), sample(4<<32-1))
	add("sampled: below the claim's term, refused a short while ago", Alone, with(begun, func(s *State) { s.PreWait = 5 }), sample(4<<32-1))
	add("sampled: below the claim's term, the memory is lost", Alone, with(begun, func(s *State) { s.Mine = Own{} }), sample(4<<32-1))
	add("sampled: below the claim's term, led since", Alone, with(led4), sample(4<<32-1))
	add("sampled: below the term of a claim that was not forced", Alone, with(edited(begun, func(r *arbiter.Record) { r.Forced = false })), sample(4<<32-1))
	add("sampled: an order by now", Alone, with(order), sample(7))

	// Leading alone.
	add("alone, named: ordered", Alone, func(s *State) { s.TokKnown = true }, readOf(order))
	add("alone, named: by a void order", Alone, func(s *State) { s.NoteAge = 30 }, readOf(voidOrder))
	foreign := func(edit func(r *arbiter.Record)) Event {
		return readOf(edited(mine, func(r *arbiter.Record) { r.ClaimNonce = "forged"; edit(r) }))
	}
	add("alone, named: by a forced claim that it did not make", Alone, nil, foreign(func(r *arbiter.Record) { r.Forced = true }))
	add("alone, named: by a claim that it did not make, without a fork", Alone, nil, foreign(func(r *arbiter.Record) { r.Fork = arbiter.Position{} }))
	knows := func(edits ...func(s *State)) func(s *State) {
		return func(s *State) {
			s.Rec, s.Seen, s.RecAge = theirs, 4, 1
			for _, e := range edits {
				e(s)
			}
		}
	}
	alive := tickOf(edited(lone, blind))
	add("alone, knows better: it is named no more", Alone, knows(), alive)
	add("alone, knows better: nothing is known of etcd now", Alone, knows(), tickOf(edited(lone, func(o *Obs) { blind(o); o.Etcd = EtcdUnknown })))
	add("alone, knows better: the own list is not known", Alone, knows(), tickOf(edited(lone, func(o *Obs) { blind(o); o.Voters = Voters{} })))
	add("alone, knows better: not readable", Alone, knows(func(s *State) { s.RecStatus = Unavailable }), alive)
	add("alone, knows better: an older record", Alone, knows(func(s *State) { s.Seen = 9 }), alive)
	add("alone, knows better: nobody named", Alone, knows(func(s *State) { s.Rec.Survivor.ID = 0 }), alive)
	add("alone, knows better: another cluster's", Alone, knows(func(s *State) { s.Rec.ClusterID++ }), alive)
	add("alone, knows better: the token not known", Alone, knows(func(s *State) { s.TokKnown = false }), alive)
	add("alone, knows better: no token", Alone, knows(func(s *State) { s.Tok.Present = false }), alive)
	add("alone, knows better: a bad one", Alone, knows(func(s *State) { s.Tok.Bad = true }), alive)
	add("alone, knows better: another record's", Alone, knows(func(s *State) { s.Tok.RecordID = "other" }), alive)
	add("alone, knows better: of the record's generation", Alone, knows(func(s *State) { s.Tok.Generation = 4 }), alive)

	// An empty disk.
	blank := edited(away, func(o *Obs) { o.Blank, o.Member, o.TokenRead = true, 0, false })
	empty := func(edits ...func(s *State)) func(s *State) {
		return func(s *State) {
			s.Tok, s.TokKnown, s.RecAge = Token{}, false, 1
			for _, e := range edits {
				e(s)
			}
		}
	}
	named := func(s *State) { s.Rec, s.Seen = theirs, 4 }
	add("blank: a record, nobody named", Leaderless, empty(), tickOf(blank))
	add("blank: a record, somebody named", Leaderless, empty(named), tickOf(blank))
	add("blank: somebody was named, not readable now", Leaderless, empty(named, func(s *State) { s.RecStatus = Unavailable }), tickOf(blank))
	add("blank: no record", Leaderless, empty(func(s *State) { s.RecStatus = Absent }), tickOf(blank))
	add("blank: no record, another action is out", Leaderless, empty(func(s *State) { s.RecStatus, s.Site = Absent, LookAtList }), tickOf(blank))
	add("blank: not read yet", Starting, nil, tickOf(blank))
	add("blank: forbidden", Leaderless, empty(func(s *State) { s.RecStatus = Forbidden }), tickOf(blank))
	add("blank: a claim would be due", Leaderless, empty(func(s *State) { s.NoLeader = 20 }), tickOf(blank))
	add("blank: removed, the record is not readable now", Lost, empty(func(s *State) { s.RecStatus = Unavailable }), tickOf(blank))
	add("blank: not in the list, nobody named", Lost, empty(func(s *State) { s.Rec, s.Seen, s.Obs = baseRecord(), 3, blank }), lacks)
	add("blank: not in the list", Lost, empty(func(s *State) { s.Obs = blank }), lacks)
	add("blank: prepare fails", Preparing, func(s *State) { s.Obs, s.Site = blank, ReadData }, Event{Kind: DataRead, Outcome: Done, Data: Data{Problem: DiskBlank}, Why: DiskFull})
	return cs
}
