package failover

import (
	"math"
	"testing"

	"twok/arbiter"
)

// What no other test of the steps pins down, found by changing the core in one place at a time (make mutants).

// Rules: P2, P13, P16, P17.
func TestRecordMore(t *testing.T) {
	own := Own{RecordID: "rec", Generation: 6, End: arbiter.Position{Index: 100, Term: 5}, Fork: arbiter.Position{Index: 101, Term: 6}}
	rec := namedRecord()
	rec.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idA, Fork: arbiter.Position{Index: 50, Term: 3}, At: 1}
	rec.WholeGeneration, rec.WholeMembers = 4, [2]uint64{idA, idB}
	got := Reassert(rec, own, 6, arbiter.Member{ID: idA}, Stamp{"n", 9})
	// The store lost claims of this survivor, so the run keeps the lowest fork that is known.
	if want := (arbiter.HistoryEntry{First: 4, Last: 7, Survivor: idA, Fork: arbiter.Position{Index: 50, Term: 3}, At: 9}); got.History[0] != want || got.History[1] != (arbiter.HistoryEntry{}) {
		t.Errorf("reasserted: %+v", got.History[:2])
	}
	if got.Reason != "reassert: the record was rolled back" {
		t.Errorf("reason %q", got.Reason)
	}
	// A gap in the history stays one.
	rec.Generation, rec.WholeGeneration = 5, 0
	if h := Claim(rec, baseData(), "", Stamp{"n", 9}).History; h[0].Last != 4 || h[1].First != 6 || h[1].Last != 6 {
		t.Errorf("claimed after a gap: %+v", h[:2])
	}
	// A malformed entry covers nothing (P11); the first generation can be covered.
	loser := baseData()
	rec.History[0] = arbiter.HistoryEntry{First: 0, Last: 9, Survivor: idA, Fork: arbiter.Position{Index: 200, Term: 6}}
	if why := KeepLog(rec, loser); why != TokenGeneration {
		t.Errorf("history without a first generation: %q", why)
	}
	rec.History[0].First = 1
	if why := KeepLog(rec, loser); why != None {
		t.Errorf("history from the first generation on: %q", why)
	}
	loser.Snap = loser.Applied
	if why := KeepLog(rec, loser); why != None {
		t.Errorf("a snapshot of all that is applied: %q", why)
	}
	if (Own{}).made("") {
		t.Error("no claim was made, and yet the one without a nonce")
	}
	if Readable.Reason() != None || Unread.Reason() != RecordUnread || RecordStatus(99).Reason() != RecordUnread {
		t.Error("a record's status and its reason")
	}
	s := New(testParams, own)
	if want := (State{P: testParams, Mine: own, LossAge: 200, RecAge: 20, ListAge: 3, NoteAge: 30, Preflight: RecordUnread}); s != want {
		t.Errorf("a new agent's state: %+v", s)
	}
}

// Counters stop at their limits, whatever the number of ticks, and at zero; a tick without a number is one.
//
// Rules: P20.
func TestCounters(t *testing.T) {
	up := func(s *State) []*uint32 {
		return []*uint32{&s.NoLeader, &s.PeerLost, &s.RecAge, &s.ListAge, &s.NoteAge, &s.TokenAge, &s.LossAge}
	}
	limits := []uint32{14, 10, 20, 3, 30, 120, 200}
	down := func(s *State) []*uint32 {
		return []*uint32{&s.Hold, &s.JoinWait, &s.TokenWait, &s.PreWait, &s.SwapWait, &s.StopWait}
	}
	for _, c := range []struct{ n, by uint32 }{{0, 1}, {1, 1}, {2, 2}, {math.MaxUint32, math.MaxUint32}} {
		for from := range uint32(4) {
			s := representative(Deciding)
			s.Site = ReadData
			for _, x := range append(up(&s), down(&s)...) {
				*x = from
			}
			o := obsOf(EtcdNoLeader)
			s, acts := Step(s, Event{Kind: Tick, Obs: o, Ticks: c.n})
			if len(acts) > 0 {
				t.Errorf("%v", acts)
			}
			for i, x := range up(&s) {
				if want := uint32(min(uint64(from)+uint64(c.by), uint64(limits[i]))); *x != want {
					t.Errorf("%d ticks from %d: counter %d is %d, want %d", c.n, from, i, *x, want)
				}
			}
			for i, x := range down(&s) {
				if want := from - min(from, c.by); *x != want {
					t.Errorf("%d ticks from %d: countdown %d is %d, want %d", c.n, from, i, *x, want)
				}
			}
		}
	}
	// etcd that does not run gains no time until its next stop, and is none without a leader.
	s := representative(Leaderless)
	s.StopWait, s.NoLeader = 3, 2
	if s, _ = Step(s, Event{Kind: Tick, Obs: obsOf(EtcdAway)}); s.StopWait != 3 || s.NoLeader != 2 {
		t.Errorf("etcd away: wait %d, no leader %d", s.StopWait, s.NoLeader)
	}
	if s, _ = Step(s, Event{Kind: Tick, Obs: obsOf(EtcdLed)}); s.StopWait != 2 || s.NoLeader != 0 {
		t.Errorf("etcd led: wait %d, no leader %d", s.StopWait, s.NoLeader)
	}
}

// What is remembered of the peer while there is no leader, and forgotten with one.
//
// Rules: P20; F37.
func TestPeerMemory(t *testing.T) {
	with := func(e EtcdState, peer, contact bool) Obs {
		o := obsOf(e)
		o.Peer, o.Contact = peer, contact
		return o
	}
	type memory struct {
		gone, woken    bool
		back, lost     uint32
		was, stale     bool
		preflightKnown bool
	}
	for _, c := range []struct {
		name string
		o    Obs
		n    uint32
		want memory
	}{
		{"led, the peer is there", with(EtcdLed, true, true), 1, memory{was: true}},
		{"led, the peer is silent", with(EtcdLed, false, false), 1, memory{lost: 6, was: true}},
		{"no leader, the peer is there", with(EtcdNoLeader, true, true), 1, memory{gone: true, woken: true, back: 6, preflightKnown: true}},
		{"no leader, for long", with(EtcdNoLeader, true, false), 90, memory{gone: true, woken: true, back: 15, lost: 10, preflightKnown: true}},
		{"no leader, the peer is silent", with(EtcdNoLeader, false, false), 1, memory{gone: true, lost: 6, preflightKnown: true}},
		{"etcd away, the peer is there", with(EtcdAway, true, true), 1, memory{gone: true, woken: true, back: 6, preflightKnown: true}},
	} {
		s := representative(Leaderless)
		s.PeerGone, s.Woken, s.PeerBack, s.PeerLost, s.Preflight = true, true, 5, 5, None
		s.Arb, s.Site = ReadRecord, LookAtList // nothing is to be done now
		s, _ = Step(s, Event{Kind: Tick, Obs: c.o, Ticks: c.n})
		got := memory{s.PeerGone, s.Woken, s.PeerBack, s.PeerLost, s.WasLeader, s.TokStale, s.Preflight == None}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	// The peer's first silence without a leader.
	s := representative(Leaderless)
	if s, _ = Step(s, Event{Kind: Tick, Obs: with(EtcdNoLeader, false, false)}); !s.PeerGone {
		t.Error("the peer's silence is not noticed")
	}
	s = representative(Leading)
	if s, _ = Step(s, Event{Kind: Tick, Obs: with(EtcdLed, false, false)}); s.PeerGone {
		t.Error("a silent peer under a leader counts")
	}
}

// An event that answers nothing that is out changes nothing, whatever else is out.
//
// Rules: P1, P7.
func TestUnaskedWhileBusy(t *testing.T) {
	for _, p := range Phases() {
		for _, out := range append(ActionKinds(), NoAction) {
			for _, k := range append(EventKinds(), NoEvent) {
				s := representative(p)
				if out.onArbiter() {
					s.Arb = out
				} else {
					s.Site = out
				}
				if k == Tick || (k != NoEvent && k == out.Reply()) {
					continue
				}
				next, acts := Step(s, Event{Kind: k, Outcome: Done, Status: Readable, Record: baseRecord(), Data: baseData(), List: joinable()})
				if next != s || len(acts) > 0 {
					t.Fatalf("%s, %s out: %s changes the state to %s, %v", p, out, k, next.Phase, acts)
				}
			}
		}
	}
}

// A section that lost its read asks again, and only then.
//
// Rules: P7, P12.
func TestSectionIsNudged(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(s *State)
		want bool
	}{
		{"nothing is out", func(s *State) {}, true},
		{"the data are being read", func(s *State) { s.Site = ReadData }, false},
		{"the record is being read", func(s *State) { s.Arb = ReadRecord }, false},
		{"a swap is out", func(s *State) { s.Arb = Swap }, false},
	} {
		for _, p := range []Phase{Deciding, Preparing} {
			s := representative(p)
			s.Fresh = false
			c.edit(&s)
			next, acts := Step(s, Event{Kind: Tick, Obs: s.Obs})
			if asked := len(acts) == 1 && acts[0].Kind == ReadRecord; asked != c.want || next.Fresh != c.want || len(acts) > 1 {
				t.Errorf("%s, %s: %v, fresh %v", p, c.name, acts, next.Fresh)
			}
		}
	}
	for _, p := range []Phase{Stopping, Claiming, Appending, Rechecking, Releasing, Joining} {
		s := representative(p)
		if next, acts := Step(s, Event{Kind: Tick, Obs: s.Obs}); len(acts) > 0 || next.Phase != p {
			t.Errorf("%s: %v", p, acts)
		}
	}
	s := representative(Preparing)
	s.Locked = false
	if _, acts := Step(s, Event{Kind: Tick, Obs: s.Obs}); len(acts) > 0 {
		t.Errorf("preparing without the locks: %v", acts)
	}
}
