package failover

import (
	"testing"

	"twok/arbiter"
)

// orderedRecord is a forced claim for A that nobody carried out: B survived, and A's data are of an older generation.
func orderedRecord() arbiter.Record {
	r := baseRecord()
	r.Generation, r.Survivor = 4, arbiter.Member{ID: idB, Name: "b"}
	r.ClaimEnd, r.Fork = arbiter.Position{Index: 100, Term: 5}, arbiter.Position{Index: 101, Term: 6}
	r.WholeGeneration, r.WholeMembers, r.MarkGeneration, r.MarkIndex = 0, [2]uint64{}, 0, 0
	r.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idB, Fork: r.Fork}
	r.Confirmed, r.ConfirmedAt = arbiter.Position{Index: 130, Term: 6}, 7
	r.Drain = true
	return Force(r, arbiter.Member{ID: idA, Name: "a"}, "alice", "b burned", Stamp{Nonce: "order", Now: 8})
}

// An order names, and nothing else: what it overrides stays in the history.
//
// Rules: P2, P13, P18.
func TestForce(t *testing.T) {
	got := orderedRecord()
	want := baseRecord()
	want.Generation, want.Survivor, want.Forced = 5, arbiter.Member{ID: idA, Name: "a"}, true
	want.Nonce, want.ClaimNonce, want.Reason, want.ClaimedAt, want.WrittenAt = "order", "order", "b burned", 8, 8
	want.WholeGeneration, want.WholeMembers, want.MarkGeneration, want.MarkIndex = 0, [2]uint64{}, 0, 0
	want.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idB, Fork: arbiter.Position{Index: 101, Term: 6}}
	want.History[1] = arbiter.HistoryEntry{First: 5, Last: 5, Survivor: idA, Forced: true, By: "alice", At: 8}
	if got != want {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	if _, err := arbiter.Encode(got); err != nil {
		t.Error(err)
	}
	// Twice for one member is one entry; after a run of its own claims a forced one begins another.
	again := Force(got, got.Survivor, "bob", "", Stamp{Nonce: "n2", Now: 9})
	if h := again.History[1]; h != (arbiter.HistoryEntry{First: 5, Last: 6, Survivor: idA, Forced: true, By: "bob", At: 9}) || again.History[2].First != 0 {
		t.Errorf("twice: %+v", again.History[:3])
	}
	own := namedRecord()
	own.History[0] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idA, Fork: own.Fork, At: 1}
	if h := Force(own, own.Survivor, "bob", "", Stamp{Now: 9}).History; h[0] != own.History[0] || h[1].First != 5 || !h[1].Forced {
		t.Errorf("over an own claim: %+v", h[:2])
	}
}

// Rules: P18.
func TestOrdered(t *testing.T) {
	r := orderedRecord()
	for _, c := range []struct {
		name string
		self uint64
		edit func(*arbiter.Record)
		want bool
	}{
		{"it", idA, func(*arbiter.Record) {}, true},
		{"somebody else", idB, func(*arbiter.Record) {}, false},
		{"nobody", 0, func(r *arbiter.Record) { r.Survivor.ID = 0 }, false},
		{"begun", idA, func(r *arbiter.Record) { r.Fork = arbiter.Position{Index: 101, Term: 6 << 32} }, false},
		{"an ordinary claim", idA, func(r *arbiter.Record) { r.Forced = false }, false},
		{"whole since", idA, func(r *arbiter.Record) { r.WholeGeneration = r.Generation }, false},
		{"whole at an older generation", idA, func(r *arbiter.Record) { r.WholeGeneration = r.Generation - 1 }, true},
	} {
		rec := r
		c.edit(&rec)
		if got := Ordered(rec, c.self); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// What a forced claim overrides, and what nobody can.
//
// Rules: P4, P5, P6, P10, P11, P15, P17, P18; F3.
func TestForced(t *testing.T) {
	conf := func(self uint64, members []ConfMember, gone []uint64, changes ...ConfChange) func(*arbiter.Record, *Data) {
		return func(_ *arbiter.Record, d *Data) {
			d.Confs, d.Homeless = FoldSite(self, []string{url(idA)}, members, gone, changes), false
		}
	}
	const was = uint64(0x99) // what this site's member was called before
	twin := []ConfMember{{ID: was, PeerURLs: []string{url(idA)}}, {ID: idB, PeerURLs: []string{url(idB)}}}
	learner := []ConfMember{{ID: idA, Learner: true, PeerURLs: []string{url(idA)}}, {ID: idB, PeerURLs: []string{url(idB)}}}
	for _, c := range []claimCase{
		{"an older generation", nil, 0, None},
		{"nobody's data, nobody named", func(r *arbiter.Record, d *Data) { r.Survivor.ID, d.Member = 0, 0 }, 0, DataInsane},
		{"the fork's index is 1, its term not there", func(r *arbiter.Record, _ *Data) { r.Fork = arbiter.Position{Index: 1, Term: 6 << 32} }, 0, None},
		{"the fork's index is 1, its term there", func(r *arbiter.Record, d *Data) {
			r.Fork, r.ClaimEnd = arbiter.Position{Index: 1, Term: 2}, arbiter.Position{Index: 101, Term: 5}
		}, 0, ClaimEnd},
		{"the ID 1", func(r *arbiter.Record, d *Data) {
			r.Survivor.ID, d.Member, d.Confs = 1, 1, FoldConfs(1, pairOf(1, idB), nil, nil)
		}, 0, None},
		{"another record's token of this generation", func(_ *arbiter.Record, d *Data) { d.Token.RecordID, d.Token.Generation = "x", 5 }, 0, RecordElsewhere},
		{"a bad token of a newer generation", func(_ *arbiter.Record, d *Data) { d.Token.Bad, d.Token.Generation = true, 6 }, 0, None},
		{"the log ends at index 1", func(_ *arbiter.Record, d *Data) { d.Last.Index, d.Applied, d.Commit, d.Snap = 1, 1, 1, 0 }, 0, None},
		{"an empty log of nobody", func(r *arbiter.Record, d *Data) { r.Survivor.ID, d.Member, d.Last.Index = 0, 0, 0 }, 0, DataInsane},
		{"a voter whose peer URLs are not known", func(_ *arbiter.Record, d *Data) { d.Homeless = true }, 0, None},
		{"no token", func(_ *arbiter.Record, d *Data) { d.Token = Token{} }, 0, None},
		{"a bad token, of whatever record", func(_ *arbiter.Record, d *Data) { d.Token = Token{Present: true, Bad: true, RecordID: "x"} }, 0, None},
		{"a deletion in the tail", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, Bad: true, RecordID: "x"} }, 0, None},
		{"the token in the tail, older", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "rec", Generation: 4} }, 0, None},
		{"a token of an older generation's name", func(_ *arbiter.Record, d *Data) { d.Token.Members = [2]uint64{1, 2} }, 0, None},
		{"a third voter in the tail", conf(idA, pairOf(idA, idB), nil, ConfChange{Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idC)}}), 0, None},
		{"rolled back behind a confirmation", func(r *arbiter.Record, d *Data) { r.Confirmed = arbiter.Position{Index: 200, Term: 6} }, 0, None},
		{"rolled back behind a mark", func(r *arbiter.Record, d *Data) { r.MarkGeneration, r.MarkIndex = r.Generation, 200 }, 0, None},
		{"a compacted log", func(_ *arbiter.Record, d *Data) { d.First, d.TokenIndex = 99, 0 }, 0, None},
		{"begun, and not appended", func(r *arbiter.Record, _ *Data) { r.Fork = arbiter.Position{Index: 101, Term: 6 << 32} }, 0, None},
		{"own removal, applied", conf(idA, pairOf(idB), []uint64{idA}), 0, None},
		{"own removal in the tail", conf(idA, pairOf(idA, idB), nil, ConfChange{Kind: ChangeRemove, ID: idA}), 0, None},
		{"renamed on the way back", conf(idA, twin, nil), 0, None},
		{"its own addition is in the log, and not committed", func(r *arbiter.Record, d *Data) {
			r.Fork = arbiter.Position{Index: 99, Term: 6 << 32}
			conf(idA, pairOf(idB), []uint64{0x99}, ConfChange{Kind: ChangeAdd, ID: idA, PeerURLs: []string{url(idA)}}, ConfChange{Kind: ChangeRemove, ID: idB})(r, d)
			d.Term, d.Last.Term = 6<<32, 6<<32
		}, 0, None},
		{"removed by hand after it led", func(r *arbiter.Record, d *Data) {
			r.Fork, r.ClaimEnd = arbiter.Position{Index: 90, Term: 6 << 32}, arbiter.Position{Index: 89, Term: 5}
			conf(idA, pairOf(idB), []uint64{idA})(r, d)
			d.Term, d.Last.Term = 6<<32, 6<<32
		}, 0, OwnRemoval},
		{"the same, the fork is the last committed entry", func(r *arbiter.Record, d *Data) {
			r.Fork, r.ClaimEnd = arbiter.Position{Index: 95, Term: 6 << 32}, arbiter.Position{Index: 94, Term: 5}
			conf(idA, pairOf(idB), []uint64{idA})(r, d)
			d.Term, d.Last.Term = 6<<32, 6<<32
		}, 0, OwnRemoval},

		{"the data cannot be read", func(_ *arbiter.Record, d *Data) { d.Problem = WALUnreadable }, 0, WALUnreadable},
		{"contradictory data", func(_ *arbiter.Record, d *Data) { d.Applied = 101 }, 0, DataInsane},
		{"an empty log", func(_ *arbiter.Record, d *Data) { d.Last, d.Applied, d.Commit, d.Snap = arbiter.Position{}, 0, 0, 0 }, 0, ForcedLearner},
		{"no identity", func(_ *arbiter.Record, d *Data) { d.Cluster = 0 }, 0, DataInsane},
		{"another cluster", func(_ *arbiter.Record, d *Data) { d.Cluster = 8 }, 0, RecordForeign},
		{"a newer record was seen", nil, 6, RecordOld},
		{"paused", func(r *arbiter.Record, _ *Data) { r.Pause = true }, 0, Paused},
		{"bound to another record", func(_ *arbiter.Record, d *Data) { d.Token.RecordID = "x" }, 0, RecordElsewhere},
		{"about to be bound to another record", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "x", Generation: 1} }, 0, TokenTail},
		{"a newer token", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 6 }, 0, RecordOld},
		{"a newer token in the tail", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "rec", Generation: 6} }, 0, TokenTail},
		{"a change that is not understood", conf(idA, pairOf(idA, idB), nil, ConfChange{Kind: ChangeUnknown}), 0, UnknownConfChange},
		{"a learner", conf(idA, learner, nil), 0, ForcedLearner},
		{"a learner beside another one", conf(idA, append(learner[:2:2], ConfMember{ID: idC, Learner: true, PeerURLs: []string{url(idC)}}), nil), 0, ForcedLearner},
		{"a learner whose promotion is in the tail", conf(idA, learner, nil, ConfChange{Kind: ChangePromote, ID: idA}), 0, ForcedLearner},
		{"more members than can be removed", func(_ *arbiter.Record, d *Data) { d.Confs.Overflow = true }, 0, ThirdVoter},
		{"removed, and its peer URLs are not known", func(_ *arbiter.Record, d *Data) {
			d.Confs, d.Homeless = FoldConfs(idA, pairOf(idB), []uint64{idA}, nil), true
		}, 0, URLsUnknown},
		{"no voter would be left for a moment", conf(idA, twin[:1], []uint64{idB}), 0, DataInsane},
		{"no generation is left", func(r *arbiter.Record, d *Data) { r.Generation = maxForced }, 0, RecordGarbage},
		{"the last generation", func(r *arbiter.Record, d *Data) { r.Generation = maxForced - 1 }, 0, None},

		// Carried out, the member led by it (P10), and its disk was rolled back since: nobody ordered that.
		{"led, and rolled back behind the append", func(r *arbiter.Record, _ *Data) {
			r.Fork, r.ClaimEnd = arbiter.Position{Index: 101, Term: 6 << 32}, arbiter.Position{Index: 100, Term: 5}
			r.Confirmed = arbiter.Position{Index: 200, Term: 6<<32 + 1}
		}, 0, RolledBack},

		// Not this member's order: the rules as ever.
		{"for somebody else", func(r *arbiter.Record, _ *Data) { r.Survivor.ID = idB }, 0, NamedOther},
		{"appended", func(r *arbiter.Record, d *Data) {
			r.Fork, r.ClaimEnd = arbiter.Position{Index: 101, Term: 6 << 32}, d.Last
			d.Term, d.Last.Term, d.First = 6<<32, 6<<32, 1
		}, 0, None},
		{"void: the token of its generation is there", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 5; d.TokenIndex = 0 }, 0, ClaimEnd},
		{"void: it is in the tail", func(_ *arbiter.Record, d *Data) {
			d.Tail = Tail{Writes: true, RecordID: "rec", Generation: 5}
		}, 0, ClaimEnd},
		{"void: it is in the tail, and none applied", func(_ *arbiter.Record, d *Data) {
			d.Token, d.Tail = Token{}, Tail{Writes: true, RecordID: "rec", Generation: 5}
		}, 0, ClaimEnd},
		{"void: it is in the tail, above a bad one", func(_ *arbiter.Record, d *Data) {
			d.Token, d.Tail = Token{Present: true, Bad: true}, Tail{Writes: true, RecordID: "rec", Generation: 5}
		}, 0, TokenBad},
		{"void: it was in the tail, and deleted", func(_ *arbiter.Record, d *Data) {
			d.Token, d.Tail = Token{}, Tail{Writes: true, Bad: true, RecordID: "rec", Generation: 5}
		}, 0, TokenTail},
		{"void: the pair was whole", func(r *arbiter.Record, _ *Data) { r.WholeGeneration, r.WholeMembers = 5, [2]uint64{idA, idB} }, 0, ClaimEnd},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, d := orderedRecord(), baseData()
			if c.edit != nil {
				c.edit(&r, &d)
			}
			ground, got := Eligible(r, d, c.seen)
			if got != c.want {
				t.Fatalf("%s, want %s", got, c.want)
			}
			if want := map[bool]Ground{true: ByForce, false: NoGround}[got == None]; ground != want && c.name != "appended" {
				t.Errorf("ground %d, want %d", ground, want)
			}
			if c.name == "appended" && ground != ByName {
				t.Errorf("appended: ground %d", ground)
			}
		})
	}
}

// The claim that carries an order out: the end of the log, a term above all others, and a fresh ID for a removed member.
//
// Rules: P7, P8, P18.
func TestForcedClaim(t *testing.T) {
	r, d := orderedRecord(), baseData()
	got := ForcedClaim(r, d, 0xf1, Stamp{Nonce: "claim", Now: 9})
	want := r
	want.Generation, want.Nonce, want.ClaimNonce, want.ClaimedAt, want.WrittenAt = 6, "claim", "claim", 9, 9
	want.ClaimEnd, want.Fork = d.Last, arbiter.Position{Index: 101, Term: 6 << 32}
	want.History[1].Last, want.History[1].Fork, want.History[1].At = 6, want.Fork, 9
	if got != want {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	d.Term = 7 << 32
	if got := ForcedClaim(r, d, 0xf1, Stamp{}); got.Fork.Term != 7<<32+1 {
		t.Errorf("above its own term: %x", got.Fork.Term)
	}
	d.Confs = FoldSite(idA, []string{url(idA)}, pairOf(idB), []uint64{0x99}, []ConfChange{{Kind: ChangeAdd, ID: idA, PeerURLs: []string{url(idA)}}})
	if got := ForcedClaim(r, d, 0xf1, Stamp{}); got.Survivor.ID != idA {
		t.Errorf("added by its own log: %x", got.Survivor.ID)
	}
	d.Confs = FoldSite(idA, []string{url(idA)}, pairOf(idB), []uint64{idA}, nil)
	got = ForcedClaim(r, d, 0xf1, Stamp{Nonce: "c2", Now: 9})
	if got.Survivor != (arbiter.Member{ID: 0xf1, Name: "a"}) || got.History[1].Survivor != idA || got.History[2].Survivor != 0xf1 || !got.History[2].Forced {
		t.Errorf("removed: %+v %+v", got.Survivor, got.History[:3])
	}
	if _, err := arbiter.Encode(got); err != nil {
		t.Error(err)
	}
	// The same member goes on by the rules: one entry, which stays a forced one with its first fork.
	got = Claim(want, baseData(), "no leader", Stamp{Now: 10})
	if h := got.History[1]; got.Forced || h.Last != 7 || h.Fork != want.Fork || !h.Forced || got.History[2].First != 0 {
		t.Errorf("and again: %+v", got.History[:3])
	}
}

// A log that was committed to another history is never kept across a forced claim.
//
// Rules: P13, P18.
func TestKeepLogAcrossForce(t *testing.T) {
	r := orderedRecord()
	r.History[1].Fork = arbiter.Position{Index: 500, Term: 6 << 32} // far above what B holds
	d := baseData()
	d.Member, d.Confs = idB, FoldConfs(idB, pairOf(idA, idB), nil, nil)
	if got := KeepLog(r, d); got != Overridden {
		t.Errorf("%s", got)
	}
	r.History[1].Forced = false
	if got := KeepLog(r, d); got != None {
		t.Errorf("an ordinary claim: %s", got)
	}
}

// What this site's member was called before is removed first: etcd takes no second member with its peer URLs.
//
// Rules: P8, P12, P18; F21.
func TestFoldSite(t *testing.T) {
	site := []string{url(idA)}
	m := func(id uint64, learner bool, urls ...string) ConfMember {
		return ConfMember{ID: id, Learner: learner, PeerURLs: urls}
	}
	for _, c := range []struct {
		name    string
		members []ConfMember
		changes []ConfChange
		remove  [MaxRemove]uint64
		twins   uint8
		only    bool
	}{
		{"a pair", pairOf(idA, idB), nil, [MaxRemove]uint64{idB}, 0, false},
		{"alone", pairOf(idA), nil, [MaxRemove]uint64{}, 0, true},
		{"an old self that sorts last", []ConfMember{m(idB, false, url(idB)), m(0x99, false, url(idA))}, nil, [MaxRemove]uint64{0x99, idB}, 1, false},
		{"two of them, one with further URLs", []ConfMember{m(idB, false, url(idB)), m(0x98, true, "x", url(idA)), m(0x99, false, url(idA))}, nil, [MaxRemove]uint64{0x98, 0x99, idB}, 2, false},
		{"nothing but an old self", []ConfMember{m(0x99, false, url(idA))}, nil, [MaxRemove]uint64{0x99}, 1, true},
		{"an old self beside a learner", []ConfMember{m(0x99, false, url(idA)), m(idB, true, url(idB))}, nil, [MaxRemove]uint64{0x99, idB}, 1, true},
		{"an old self that comes in the tail", pairOf(idB), []ConfChange{{Kind: ChangeAdd, ID: 0x99, PeerURLs: site}}, [MaxRemove]uint64{0x99, idB}, 1, false},
		{"one that moves in the tail, if etcd takes it", []ConfMember{m(idB, false, url(idB)), m(0x99, false, url(idA))}, []ConfChange{{Kind: ChangeUpdate, ID: 0x99, PeerURLs: []string{"x"}}}, [MaxRemove]uint64{0x99, idB}, 1, false},
		{"one that goes in the tail", []ConfMember{m(idB, false, url(idB)), m(0x99, false, url(idA))}, []ConfChange{{Kind: ChangeRemove, ID: idB}}, [MaxRemove]uint64{0x99, idB}, 1, true},
	} {
		got := FoldSite(idA, site, c.members, nil, c.changes)
		if got.Remove != c.remove || got.Twins != c.twins || got.Only != c.only {
			t.Errorf("%s: remove %x, %d of this site, only %v", c.name, got.Remove, got.Twins, got.Only)
		}
		plain := FoldConfs(idA, c.members, nil, c.changes)
		if plain.Twins != 0 || plain.Only {
			t.Errorf("%s: without URLs %+v", c.name, plain)
		}
	}
}

// A pair that was given up stops: the condition, clause by clause.
//
// Rules: P10, P16; A2.
func TestResurrected(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*State)
		why  Reason // None: it goes on
	}{
		{"the loser's", func(*State) {}, Overridden},
		{"the survivor's", func(s *State) { s.Rec.Survivor.ID = idA }, RolledBack},
		{"the survivor did not confirm: nothing shows that it led", func(s *State) { s.Rec.Confirmed = arbiter.Position{} }, None},
		{"the record is not known", func(s *State) { s.RecStatus = Unavailable }, None},
		{"a newer one was seen", func(s *State) { s.Seen = 9 }, None},
		{"no leader", func(s *State) { s.Obs.Etcd = EtcdNoLeader }, None},
		{"nothing is known of etcd now", func(s *State) { s.Obs.Etcd = EtcdUnknown }, None},
		{"the survivor's, the loser came back under a new ID", func(s *State) { s.Rec.Survivor.ID, s.Obs.Voters.IDs[1] = idA, idC }, None},
		{"a pair without the survivor", func(s *State) { s.Obs.Voters.IDs[1] = idC }, Overridden},
		{"the same, without a token", func(s *State) { s.Obs.Voters.IDs[1], s.Obs.Token = idC, Token{} }, Overridden},
		{"the same, with the survivor's order instead of its confirmation", func(s *State) {
			s.Obs.Voters.IDs[1], s.Rec.Confirmed, s.Rec.Forced, s.Rec.WholeGeneration = idC, arbiter.Position{}, true, 0
		}, Overridden},
		{"the same, neither ordered nor confirmed", func(s *State) { s.Obs.Voters.IDs[1], s.Rec.Confirmed = idC, arbiter.Position{} }, None},
		{"an order for one of the pair", func(s *State) {
			s.Rec.Confirmed, s.Rec.Forced, s.Rec.WholeGeneration = arbiter.Position{}, true, 0
		}, None},
		{"nobody is named", func(s *State) { s.Rec.Survivor.ID = 0 }, None},
		{"the other one did", func(s *State) { s.Obs.Voters.IDs[0] = idC }, None},
		{"three voters", func(s *State) { s.Obs.Voters.Count = 3 }, None},
		{"the token was written since", func(s *State) { s.Obs.Token.Generation = 4 }, None},
		{"a token of another record", func(s *State) { s.Obs.Token.RecordID = "x" }, None},
		{"a bad token", func(s *State) { s.Obs.Token.Bad = true }, None},
		{"no token", func(s *State) { s.Obs.Token.Present = false }, None},
		{"the token is not known", func(s *State) { s.Obs.TokenRead = false }, None},
	} {
		for _, p := range []Phase{Leading, Following} {
			s := New(testParams, Own{})
			s.Phase, s.RecStatus, s.RecKnown, s.Rec, s.Seen = p, Readable, true, namedRecord(), 4
			s.Rec.Survivor.ID, s.Rec.Confirmed = idB, arbiter.Position{Index: 120, Term: 6}
			leader := idA
			if p == Following {
				leader = idB
			}
			s.Obs = Obs{Etcd: EtcdLed, Member: idA, Leader: leader, Cluster: clusterID, TokenRead: true, Token: baseData().Token,
				Voters: Voters{Count: 2, IDs: [2]uint64{idA, idB}}, Version: v36, Other: idB}
			c.edit(&s)
			got, acts := Step(s, Event{Kind: Tick, Ticks: 1, Obs: s.Obs})
			if fenced := got.Phase == Fenced; fenced != (c.why != None) || (fenced && (got.Fence != c.why || !got.Held || len(acts) != 1 || acts[0].Kind != Stop)) {
				t.Errorf("%s, %s: %s/%s %v", p, c.name, got.Phase, got.Fence, acts)
			}
		}
	}
}
