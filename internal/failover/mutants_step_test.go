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
	// A survivor's new record (P3).
	fresh := arbiter.Record{ID: "rec2", ClusterID: clusterID, Nonce: "o", CreatedAt: 3}
	bound := Rebound(fresh, 7, arbiter.Member{ID: idA, Name: "a"}, arbiter.Position{Index: 100, Term: 5}, Stamp{"n", 9})
	want := arbiter.Record{
		ID: "rec2", ClusterID: clusterID, Generation: 7, Survivor: arbiter.Member{ID: idA, Name: "a"}, Nonce: "n", ClaimNonce: "n",
		Reason: "rebound to this record", CreatedAt: 3, ClaimedAt: 9, WrittenAt: 9, ClaimEnd: arbiter.Position{Index: 100, Term: 5}, Fork: arbiter.Position{Index: 101, Term: 5},
	}
	want.History[0] = arbiter.HistoryEntry{First: 1, Last: 7, Survivor: idA, Fork: want.Fork, At: 9}
	if bound != want {
		t.Errorf("rebound\n got %+v\nwant %+v", bound, want)
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

// Only a pair with a leader and nothing in the way is whole, and armed; all else says what is in the way.
//
// Rules: P11.
func TestWholeAndArmed(t *testing.T) {
	for _, p := range Phases() {
		for _, why := range []Reason{None, RecordUnread, TokenMissing} {
			s := State{Phase: p, Why: why}
			want := why == None && (p == Following || p == Leading)
			armed, said := s.Armed()
			if s.Whole() != want || armed != want || said != why {
				t.Errorf("%s/%s: whole %v, armed %v because of %q", p, why, s.Whole(), armed, said)
			}
		}
	}
}

// How long the next stop waits after one that came to nothing (P7): doubling, with a random part of at most a half of
// the first, never above the most.
//
// Rules: P7; F8.
func TestStopWait(t *testing.T) {
	for _, c := range []struct {
		min, most uint32
		level     uint8
		random    uint32
		want      uint32
		next      uint8
	}{
		{12, 100, 0, 0, 12, 1},
		{12, 100, 0, 6, 18, 1},
		{12, 100, 0, 7, 12, 1},
		{12, 100, 1, 13, 30, 2},
		{12, 100, 3, 3, 99, 4},
		{12, 100, 3, 6, 100, 4},
		{12, 100, 4, 0, 100, 5},
		{1, 1 << 30, 15, 9, 1 << 15, 16},
		{1, 1 << 30, 16, 9, 1 << 16, 16},
		{1 << 16, 1 << 20, 16, 0, 1 << 20, 16}, // too much for the type
		{0x1ffff, 1 << 31, 15, 0xffff, 1 << 31, 16},
		{1, 9, 0, 0, 1, 1},
		{0, 9, 0, 5, 9, 1},
	} {
		s := representative(Deciding)
		s.P.MinRun, s.P.MaxRun, s.StopLevel, s.Arb = c.min, c.most, c.level, ReadRecord
		s, _ = Step(s, Event{Kind: RecordRead, Status: Unavailable, Random: c.random})
		if s.Phase != Releasing || s.StopWait != c.want || s.StopLevel != c.next || s.Refused != RecordUnavailable {
			t.Errorf("%+v: %s, wait %d, level %d, %s", c, s.Phase, s.StopWait, s.StopLevel, s.Refused)
		}
	}
}

// How long a promotion is held down (F35).
//
// Rules: P12; F35.
func TestHoldDown(t *testing.T) {
	for _, c := range []struct {
		first, most uint32
		level       uint8
		want        uint32
	}{
		{5, 20, 0, 0}, {5, 20, 1, 5}, {5, 20, 2, 10}, {5, 20, 3, 20}, {5, 20, 4, 20}, {5, 20, 32, 20}, {0, 20, 3, 0},
		{1, math.MaxUint32, 32, 1 << 31}, {2, math.MaxUint32, 32, math.MaxUint32}, {3, math.MaxUint32, 31, 3 << 30},
	} {
		s := representative(Joining)
		s.P.HoldFirst, s.P.HoldMax, s.HoldLevel, s.Site = c.first, c.most, c.level, AddLearner
		if s, _ = Step(s, Event{Kind: MemberChanged, Outcome: Done, ID: idC}); s.Phase != Preparing || s.Hold != c.want {
			t.Errorf("%+v: %s, %d", c, s.Phase, s.Hold)
		}
	}
}
