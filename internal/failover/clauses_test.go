package failover

import (
	"fmt"
	"strings"
	"testing"

	"twok/arbiter"
)

// clause is one row of TestClauses: an event on a phase's representative state, with one thing changed.
type clause struct {
	name  string
	phase Phase
	edit  func(s *State)
	e     Event
}

func tickOf(o Obs) Event { return Event{Kind: Tick, Obs: o} }
func readOf(r arbiter.Record) Event {
	return Event{Kind: RecordRead, Outcome: Done, Status: Readable, Record: r, Version: arbiter.At("2"), Seen: r.Generation}
}
func unread(st RecordStatus) Event { return Event{Kind: RecordRead, Outcome: Failed, Status: st} }

func edited[T any](v T, edit func(v *T)) T {
	edit(&v)
	return v
}

// The steps' clauses, one change a row, in the manner of TestEffects: a row differs from the one above it by a
// clause of the step that it is about.
//
// Rules: P1, P2, P3, P5, P7, P10, P12, P13, P14, P15, P16, P17, P19; F6, F16, F33, F35, F36, F37.
func TestClauses(t *testing.T) {
	var b strings.Builder
	section := ""
	for _, c := range clauses() {
		if about, _, ok := strings.Cut(c.name, ": "); ok && about != section {
			section = about
			fmt.Fprintf(&b, "%s\n", about)
		}
		s := representative(c.phase)
		if c.edit != nil {
			c.edit(&s)
		}
		if s.Arb == NoAction && (c.e.Kind == RecordRead || c.e.Kind == Swapped) {
			s.Arb = map[EventKind]ActionKind{RecordRead: ReadRecord, Swapped: Swap}[c.e.Kind]
		}
		for _, k := range ActionKinds() {
			if s.Site == NoAction && k.Reply() == c.e.Kind && !k.onArbiter() {
				s.Site = k
			}
		}
		e := c.e
		e.Stamp, e.RecordID = Stamp{Nonce: "new", Now: 9}, "new-id"
		if strings.HasSuffix(c.name, "no ID at hand") {
			e.RecordID = ""
		}
		next, acts := Step(s, e)
		s = known(s, e, next)
		_, name, _ := strings.Cut(c.name, ": ")
		fmt.Fprintf(&b, "  %s: %s\n", name, effect(s, next, acts))
	}
	golden(t, "testdata/clauses.golden", b.String())
}

func clauses() (cs []clause) {
	add := func(name string, p Phase, edit func(s *State), e Event) { cs = append(cs, clause{name, p, edit, e}) }
	none := obsOf(EtcdNoLeader)
	led := obsOf(EtcdLed)
	follows := edited(led, func(o *Obs) { o.Leader = idB })
	lone := alone()
	mine, theirs := recordOf(idA, "mine"), recordOf(idB, "theirs")
	list := func(edit func(l *List)) Event {
		l := joinable()
		if edit != nil {
			edit(&l)
		}
		return Event{Kind: Listed, Outcome: Done, List: l}
	}
	rec := func(r arbiter.Record, edit func(r *arbiter.Record)) Event {
		edit(&r)
		return readOf(r)
	}

	// A returned voter (P12, P14).
	token := Token{Present: true, RecordID: "rec", Generation: 4, Cluster: clusterID, Members: [2]uint64{idB, idC}, Term: 6}
	returned := func(edit func(o *Obs)) Event {
		o := edited(none, func(o *Obs) { o.Member, o.Token = idC, token })
		if edit != nil {
			edit(&o)
		}
		return tickOf(o)
	}
	add("returned, no leader: the token names it", CatchingUp, nil, returned(nil))
	add("returned, no leader: of a later generation", CatchingUp, nil, returned(func(o *Obs) { o.Token.Generation = 5 }))
	add("returned, no leader: with the ID 1", CatchingUp, nil, returned(func(o *Obs) { o.Token.Members[0] = 1 }))
	add("returned, no leader: of an earlier generation", CatchingUp, nil, returned(func(o *Obs) { o.Token.Generation = 3 }))
	add("returned, no leader: names others", CatchingUp, nil, returned(func(o *Obs) { o.Token.Members = [2]uint64{idA, idB} }))
	add("returned, no leader: bad", CatchingUp, nil, returned(func(o *Obs) { o.Token.Bad = true }))
	add("returned, no leader: none", CatchingUp, nil, returned(func(o *Obs) { o.Token.Present = false }))
	add("returned, no leader: not known", CatchingUp, func(s *State) { s.Tok, s.TokKnown = token, false }, returned(func(o *Obs) { o.TokenRead = false }))

	// The phase (classify).
	add("phase: etcd not known", Following, nil, tickOf(Obs{}))
	add("phase: a leader, the list not known", Leaderless, nil, tickOf(edited(led, func(o *Obs) { o.Voters = Voters{} })))
	add("phase: no leader, a learner once", Leaderless, nil, tickOf(edited(none, func(o *Obs) { o.Learner = true })))
	add("phase: no leader, led alone once", Leaderless, nil, tickOf(edited(none, func(o *Obs) { o.Leader, o.Voters = idA, lone.Voters })))
	add("phase: no leader, led a pair once", Leaderless, nil, tickOf(edited(none, func(o *Obs) { o.Leader, o.Voters = idA, led.Voters })))
	add("phase: another one leads alone", Leaderless, nil, tickOf(edited(follows, func(o *Obs) { o.Voters = lone.Voters })))
	add("phase: a leader ends a return", Leaderless, func(s *State) { s.NewID, s.Removed, s.List = idC, true, joinable() }, tickOf(follows))
	add("phase: a leader, and the token's age begins", Leaderless, func(s *State) { s.TokenAge, s.TokenAt, s.TokenSeg = 7, 8, 9 }, tickOf(follows))
	loser := func(s *State) { s.Rec, s.Seen = theirs, 4 }
	add("loser: the record names the other", Leaderless, loser, tickOf(none))
	add("loser: with the ID 1", Leaderless, loser, tickOf(edited(none, func(o *Obs) { o.Member = 1 })))
	add("loser: no record was read", Leaderless, func(s *State) { loser(s); s.RecKnown = false }, tickOf(none))
	add("loser: own ID not known", Leaderless, loser, tickOf(edited(none, func(o *Obs) { o.Member = 0 })))
	add("loser: own token not known", Leaderless, func(s *State) { loser(s); s.TokKnown = false }, tickOf(edited(none, func(o *Obs) { o.TokenRead = false })))
	add("loser: own token of the record's generation", Leaderless, func(s *State) { loser(s); s.Rec.Generation = 3 }, tickOf(none))
	add("loss: within the window", Leaderless, func(s *State) { loser(s); s.HoldLevel, s.LossAge = 1, 5 }, tickOf(none))
	add("loss: the window ends", Leaderless, func(s *State) { loser(s); s.HoldLevel, s.LossAge = 1, 199 }, tickOf(none))
	add("loss: as many as count", Leaderless, func(s *State) { loser(s); s.HoldLevel, s.LossAge = 32, 5 }, tickOf(none))
	add("loss: one less", Leaderless, func(s *State) { loser(s); s.HoldLevel, s.LossAge = 31, 5 }, tickOf(none))
	add("loss: a return that failed is none", Preparing, func(s *State) { s.NewID, s.HoldLevel, s.LossAge, s.Why = 0, 1, 5, Paused; s.Site = Release }, Event{Kind: Released, Outcome: Done})
	add("counters: the record is read more often when it is whole", Leaderless, func(s *State) { s.P.RecordBusy, s.RecAge, s.Arb = 30, 25, Swap }, tickOf(none))

	// The record as read.
	add("read: the highest generation seen is another one's", Leaderless, nil, edited(readOf(baseRecord()), func(e *Event) { e.Seen = 7 }))
	add("read: a higher generation", Leaderless, nil, edited(readOf(mine), func(e *Event) { e.Seen = 0 }))
	add("read: another record", Leaderless, func(s *State) { s.Seen = 9 }, rec(baseRecord(), func(r *arbiter.Record) { r.ID, r.Generation = "other", 2 }))
	add("read: not readable", Leaderless, nil, edited(unread(Garbage), func(e *Event) { e.Record, e.Version, e.Seen = mine, arbiter.At("2"), 4 }))

	// Swaps.
	add("swapped: no time between two", Leading, func(s *State) { s.P.RecordBusy, s.Purpose = 0, ForMark }, Event{Kind: Swapped, Outcome: Failed, Why: RecordForbidden})
	add("swapped: created", Leading, func(s *State) { s.Purpose, s.NoteAge = ForCreate, 7 }, Event{Kind: Swapped, Outcome: Done})
	add("swapped: a claim of an earlier section", Lost, func(s *State) { s.Purpose = ForClaim }, Event{Kind: Swapped, Outcome: Done})
	add("preflight: no time between two", Leaderless, func(s *State) { s.P.MinRun = 0 }, Event{Kind: Preflighted, Outcome: Failed, Why: DiskFull})

	// The claim clock (P7).
	due := func(s *State) { s.NoLeader = 20 }
	add("claim: due", Leaderless, due, tickOf(none))
	add("claim: due, another action is out", Leaderless, func(s *State) { due(s); s.Site = LookAtList }, tickOf(none))
	former := func(s *State) { s.WasLeader, s.PeerLost, s.NoLeader = true, 10, 1 }
	add("claim: due for the former leader", Leaderless, former, tickOf(none))
	add("claim: one tick of an election less", Leaderless, func(s *State) { former(s); s.NoLeader = 0 }, tickOf(none))
	add("claim: the peer lost one tick less", Leaderless, func(s *State) { former(s); s.PeerLost = 8 }, tickOf(none))
	pre := func(s *State) { s.Preflight = RecordUnread }
	add("preflight: half of the time", Leaderless, func(s *State) { pre(s); s.NoLeader = 4 }, tickOf(none))
	add("preflight: one tick less", Leaderless, func(s *State) { pre(s); s.NoLeader = 3 }, tickOf(none))
	add("preflight: the former leader, half of the peer's time", Leaderless, func(s *State) { pre(s); s.WasLeader, s.PeerLost = true, 4 }, tickOf(none))
	add("preflight: one tick less of it", Leaderless, func(s *State) { pre(s); s.WasLeader, s.PeerLost = true, 3 }, tickOf(none))
	add("preflight: the peer's time, not the former leader", Leaderless, func(s *State) { pre(s); s.PeerLost = 9 }, tickOf(none))
	add("preflight: etcd away", Leaderless, func(s *State) { pre(s); s.NoLeader = 9 }, tickOf(obsOf(EtcdAway)))
	look := func(s *State) { s.ListAge = 3 }
	peer := edited(none, func(o *Obs) { o.Peer = true })
	add("look: the peer answers", Leaderless, look, tickOf(peer))
	add("look: it is silent", Leaderless, look, tickOf(none))
	add("look: a tick less", Leaderless, func(s *State) { s.ListAge = 1 }, tickOf(peer))
	add("look: etcd away", Leaderless, look, tickOf(obsOf(EtcdAway)))
	tok := func(edit func(t *Token)) Event {
		return tickOf(edited(none, func(o *Obs) { edit(&o.Token) }))
	}
	unknown := func(o *Obs) { o.TokenRead = false }
	add("claimable: no record, own token not known", Leaderless, func(s *State) { s.RecStatus, s.TokKnown, s.Tok = Absent, false, Token{} }, tickOf(edited(none, unknown)))
	add("claimable: another record's token, not known", Leaderless, func(s *State) { due(s); s.TokKnown, s.Tok.RecordID = false, "other" }, tickOf(edited(none, unknown)))
	add("claimable: another record's token, bad", Leaderless, due, tok(func(t *Token) { t.RecordID, t.Bad = "other", true }))
	add("claimable: no token, not known", Leaderless, func(s *State) { due(s); s.TokKnown, s.Tok = false, Token{} }, tickOf(edited(none, unknown)))
	add("claimable: no token, named", Leaderless, func(s *State) { due(s); s.Rec = mine; s.Seen = 4 }, tok(func(t *Token) { *t = Token{} }))
	add("claimable: older token, named", Leaderless, func(s *State) { due(s); s.Rec = mine; s.Seen = 4 }, tickOf(none))
	add("claimable: newer token, another named", Leaderless, func(s *State) { due(s); s.Rec = theirs; s.Seen = 4 }, tok(func(t *Token) { t.Generation = 5 }))
	add("claimable: newer token, nobody named", Leaderless, due, tok(func(t *Token) { t.Generation = 5 }))

	// The wake (F37).
	back := func(s *State) { s.PeerGone, s.PeerBack, s.Preflight, s.PreWait = true, 14, DiskFull, 0 }
	add("wake: the other member's turn", Leaderless, back, tickOf(edited(peer, func(o *Obs) { o.Other = 9 })))
	add("wake: a tick less", Leaderless, func(s *State) { back(s); s.PeerBack = 13 }, tickOf(edited(peer, func(o *Obs) { o.Other = 9 })))
	add("wake: the lower member's turn", Leaderless, func(s *State) { back(s); s.PeerBack = 2 }, tickOf(peer))
	add("wake: a tick less for it", Leaderless, func(s *State) { back(s); s.PeerBack = 1 }, tickOf(peer))
	add("wake: the peer was never gone", Leaderless, func(s *State) { back(s); s.PeerGone = false }, tickOf(peer))
	add("wake: woken", Leaderless, func(s *State) { back(s); s.Woken = true }, tickOf(peer))
	add("wake: paused", Leaderless, func(s *State) { back(s); s.Rec.Pause = true }, tickOf(peer))
	add("wake: the other's ID not known", Leaderless, back, tickOf(edited(peer, func(o *Obs) { o.Other = 0 })))
	add("wake: the other's ID is 1", Leaderless, back, tickOf(edited(peer, func(o *Obs) { o.Other = 1 })))
	add("wake: the own ID not known", Leaderless, back, tickOf(edited(peer, func(o *Obs) { o.Member = 0 })))
	add("wake: the own ID is 1", Leaderless, back, tickOf(edited(peer, func(o *Obs) { o.Member = 1 })))
	add("wake: another action is out", Leaderless, func(s *State) { back(s); s.Site = LookAtList }, tickOf(peer))

	// The section (P1, P7).
	add("stopped: for a return", Preparing, func(s *State) { s.Locked, s.Fresh = false, false }, Event{Kind: Stopped, Outcome: Done})
	add("deciding: the data are being read", Deciding, func(s *State) { s.Site, s.Fresh = ReadData, false }, readOf(baseRecord()))
	add("deciding: the same, the record not readable", Deciding, func(s *State) { s.Site = ReadData }, unread(Unavailable))
	data := func(d Data) Event { return Event{Kind: DataRead, Outcome: Done, Data: d} }
	add("deciding: the peer is lost", Deciding, func(s *State) { s.PeerLost = 10 }, data(baseData()))
	add("deciding: a tick less", Deciding, func(s *State) { s.PeerLost = 9 }, data(baseData()))
	add("deciding: the arbiter is busy", Deciding, func(s *State) { s.Arb = ReadRecord }, data(baseData()))
	add("claiming: refused by the store", Claiming, func(s *State) { s.Purpose = ForClaim }, Event{Kind: Swapped, Outcome: Failed, Why: RecordForbidden})
	add("claiming: failed without a reason", Claiming, func(s *State) { s.Purpose = ForClaim }, Event{Kind: Swapped, Outcome: Failed})
	add("claiming: another action is out", Claiming, func(s *State) { s.Purpose, s.Site = ForClaim, LookAtList }, Event{Kind: Swapped, Outcome: Done})
	add("claiming: a higher generation was seen", Claiming, func(s *State) { s.Purpose, s.Seen = ForClaim, 9 }, Event{Kind: Swapped, Outcome: Done})
	add("claiming: not readable, read as won before", Claiming, func(s *State) { s.Rec = mine }, unread(Unavailable))
	add("claiming: not readable a second time", Claiming, func(s *State) { s.Retries = 1 }, unread(Unavailable))
	add("claiming: not readable a third time", Claiming, func(s *State) { s.Retries = 2 }, unread(Unavailable))
	add("claiming: another record with this claim's nonce", Claiming, nil, rec(mine, func(r *arbiter.Record) { r.ID = "other" }))
	add("rechecking: not readable, named another before", Rechecking, func(s *State) { s.Rec = theirs }, unread(Unavailable))
	add("claiming: the data of an earlier section count no more", Alone, func(s *State) { s.Data.Member, s.NoteAge = idC, 30 }, readOf(mine))
	add("releasing: the data are forgotten", Releasing, func(s *State) { s.Data = baseData() }, Event{Kind: Released, Outcome: Done})

	cs = append(cs, leaderClauses(rec, none, led, follows, lone, mine, theirs)...)
	cs = append(cs, returnClauses(rec, list, none, mine, theirs)...)
	return append(cs, forceClauses(none, led, lone, list(nil), mine, theirs)...)
}
