package failover

import (
	"slices"
	"testing"

	"twok/arbiter"
)

// What no other table pins down, found by changing the core in one place at a time (make mutants).
// Each row holds a clause that could be dropped or moved by one without another test's notice.

// Rules: P4, P14.
func TestTokenNames(t *testing.T) {
	pair := Token{Members: [2]uint64{idA, idB}}
	if !pair.Names(idA, idB) || !pair.Names(idB, idA) || pair.Names(idA, idC) || pair.Names(idC, idB) {
		t.Error("Names is not about the two members, in any order")
	}
	if (Token{Members: [2]uint64{idA, idA}}).Names(idA, idA) {
		t.Error("one member twice is a pair")
	}
	if pair.Other(idA) != idB || pair.Other(idB) != idA || pair.Other(idC) != 0 {
		t.Error("Other")
	}
}

// Rules: P5.
func TestFoldPastExact(t *testing.T) {
	pair, gone := pairOf(idA, idB), []uint64{idC, 0xd, 0xe}
	change := func(k ConfChangeKind, id uint64) ConfChange { return ConfChange{Kind: k, ID: id} }
	add := func(id uint64) ConfChange { return change(ChangeAdd, id) }
	remove := func(id uint64) ConfChange { return change(ChangeRemove, id) }
	learner := func(id uint64) ConfChange { return change(ChangeAddLearner, id) }
	promote := func(id uint64) ConfChange { return change(ChangePromote, id) }
	unknown := func(n int) []ConfChange { return slices.Repeat([]ConfChange{change(ChangeUnknown, idB)}, n) }
	newest := func(more uint64, cs ...Change) (p Past) {
		copy(p.Newest[:], cs)
		p.More = more
		return p
	}
	for _, c := range []struct {
		name    string
		changes []ConfChange
		want    Past
	}{
		{"newest first", []ConfChange{add(idC), remove(idC)}, newest(0, Change{71, 5, idC, true}, Change{70, 5, idC, false})},
		{"no update, of a member or a stranger", []ConfChange{change(ChangeUpdate, idB), change(ChangeUpdate, 0x99)}, Past{}},
		{"not understood: nobody's", []ConfChange{change(ChangeUnknown, idB), change(ChangeUnknown, 0x99)},
			newest(0, Change{Index: 71, Term: 5}, Change{Index: 70, Term: 5})},
		{"a promoted learner's removal", []ConfChange{change(ChangeAddLearner, idC), change(ChangePromote, idC), remove(idC)},
			newest(0, Change{72, 5, idC, true}, Change{71, 5, idC, false})},
		{"as many as are kept", unknown(maxPast), func() (p Past) {
			for i := range p.Newest {
				p.Newest[i] = Change{Index: 77 - uint64(i), Term: 5}
			}
			return p
		}()},
		{"two more", unknown(maxPast + 2), func() (p Past) {
			for i := range p.Newest {
				p.Newest[i] = Change{Index: 79 - uint64(i), Term: 5}
			}
			p.More = 71
			return p
		}()},
		{"a learner's removal", []ConfChange{learner(idC), remove(idC)}, Past{}},
		{"a promotion of a voter", []ConfChange{learner(idB), promote(idB), promote(idB)}, newest(0, Change{71, 5, idB, false})},
		{"a promotion of one that is not seen to be a learner", []ConfChange{promote(idB)}, Past{}},
		{"a promotion of one that is gone", []ConfChange{learner(idC), promote(idC), remove(idC), promote(idC)},
			newest(0, Change{72, 5, idC, true}, Change{71, 5, idC, false})},
		{"a promotion of a removed learner", []ConfChange{learner(idC), remove(idC), promote(idC)}, Past{}},
		{"added twice", []ConfChange{add(idB), add(idB)}, newest(0, Change{70, 5, idB, false})},
		{"added as a learner when it is a voter, and removed", []ConfChange{add(idC), learner(idC), remove(idC)},
			newest(0, Change{72, 5, idC, true}, Change{70, 5, idC, false})},
		// Perhaps what came before was rejected, and this was not: the same URLs in the same second are the same ID.
		{"added when it is a learner", []ConfChange{learner(idB), add(idB), promote(idB)}, newest(0, Change{71, 5, idB, false})},
		{"added when it is gone", []ConfChange{remove(idC), add(idC), learner(idC), remove(idC)},
			newest(0, Change{73, 5, idC, true}, Change{71, 5, idC, false}, Change{70, 5, idC, true})},
		{"a learner again when it is gone", []ConfChange{learner(idC), remove(idC), learner(idC), promote(idC)}, newest(0, Change{73, 5, idC, false})},
		{"removed twice", []ConfChange{remove(idC), remove(idC)}, newest(0, Change{70, 5, idC, true})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := FoldPast(pair, gone, placed(70, 5, c.changes...)); got != c.want {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// Rules: P5.
func TestCrowded(t *testing.T) {
	gone := []uint64{idC, 0xd, 0x20}
	add := func(id uint64) ConfChange { return ConfChange{Kind: ChangeAdd, ID: id} }
	learner := func(id uint64) ConfChange { return ConfChange{Kind: ChangeAddLearner, ID: id} }
	promote := func(id uint64) ConfChange { return ConfChange{Kind: ChangePromote, ID: id} }
	remove := func(id uint64) ConfChange { return ConfChange{Kind: ChangeRemove, ID: id} }
	turns := []ConfChange{remove(0x20)} // one after the other, maxPast+1 in all
	for id := uint64(0x21); len(turns) <= maxPast; id++ {
		turns = append(turns, add(id), remove(id))
		gone = append(gone, id)
	}
	alone, pair := Voters{Count: 1, IDs: [2]uint64{idA}}, Voters{Count: 2, IDs: [2]uint64{idA, idB}}
	for _, c := range []struct {
		name    string
		applied Voters
		changes []PlacedChange
		want    bool
	}{
		{"a removal at the very index", pair, placed(60, 5, remove(idC)), false},
		{"a removal after it", pair, placed(61, 5, remove(idC)), true},
		{"the own promotion", pair, placed(70, 5, learner(idA), promote(idA)), false},
		{"the own removal", alone, placed(70, 5, remove(idA)), true},
		{"not understood, alone", alone, placed(70, 5, ConfChange{Kind: ChangeUnknown, ID: idB}), true},
		{"promoted twice", pair, placed(70, 5, learner(idB), promote(idB), promote(idB)), false},
		{"promoted twice, then a third voter", pair, placed(70, 5, learner(idB), promote(idB), promote(idB), add(idC), remove(idC)), true},
		{"removed twice", alone, placed(70, 5, remove(idC), remove(idC)), false},
		{"removed twice, then the other returns", pair, placed(70, 5, remove(idC), remove(idC), learner(idB), promote(idB)), false},
		{"a third voter, then the other's second promotion", pair, placed(70, 5, add(idC), remove(idC), promote(idB)), true},
		{"a third voter, then the second promotion of another one that came", pair,
			placed(58, 5, learner(idB), promote(idB), learner(idC), promote(idC), remove(idC), promote(idB)), true},
		{"a third voter that stays", Voters{Count: 3, IDs: [2]uint64{idA, idB}}, placed(70, 5, learner(idB), promote(idB), add(idC)), true},
		{"three voters, of which two are kept", Voters{Count: 3, IDs: [2]uint64{idA, idB}}, nil, false},
		{"as many changes as are kept, one after the other", alone, placed(61, 5, turns[:maxPast]...), false},
		{"one more, at the index", alone, placed(60, 5, turns...), false},
		{"one more, after it", alone, placed(61, 5, turns...), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := FoldPast(pairOf(idA, idB), gone, c.changes)
			if got := p.crowded(idA, c.applied, 60, func(Change) bool { return false }); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Which changes etcd accepts (ValidateConfigurationChange), and what of the members then changes.
//
// Rules: P5; F22.
func TestAccept(t *testing.T) {
	for _, c := range []struct {
		name   string
		change ConfChange
		want   bool
	}{
		{"a voter", ConfChange{Kind: ChangeAdd, ID: idC}, true},
		{"an ID that is there", ConfChange{Kind: ChangeAdd, ID: idB}, false},
		{"an ID that was removed", ConfChange{Kind: ChangeAdd, ID: 0xd}, false},
		{"a URL that is taken", ConfChange{Kind: ChangeAddLearner, ID: idC, PeerURLs: []string{url(idB)}}, false},
		{"promote a learner", ConfChange{Kind: ChangePromote, ID: 0xe}, true},
		{"promote a voter", ConfChange{Kind: ChangePromote, ID: idB}, false},
		{"promote nobody", ConfChange{Kind: ChangePromote, ID: idC}, false},
		{"remove", ConfChange{Kind: ChangeRemove, ID: idB}, true},
		{"remove nobody", ConfChange{Kind: ChangeRemove, ID: idC}, false},
		{"update", ConfChange{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{"x"}}, true},
		{"update to the own URL", ConfChange{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{url(idB)}}, true},
		{"update to a URL that is taken", ConfChange{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{url(idA)}}, false},
		{"update nobody", ConfChange{Kind: ChangeUpdate, ID: idC, PeerURLs: []string{"x"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 40 { // members are looked at in any order
				members, gone := map[uint64]ConfMember{}, map[uint64]bool{0xd: true}
				for _, m := range append(pairOf(idA, idB), ConfMember{ID: 0xe, Learner: true}) {
					members[m.ID] = m
				}
				if got := accept(members, gone, c.change); got != c.want {
					t.Fatalf("%v, want %v", got, c.want)
				}
			}
		})
	}
}

// Rules: P5, P8; F21, F22.
func TestFoldConfsMore(t *testing.T) {
	voter := func(id uint64, u string) ConfChange {
		return ConfChange{Kind: ChangeAdd, ID: id, PeerURLs: []string{u}}
	}
	third := [MaxRemove]uint64{idB, idC}
	got := FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeAddLearner, ID: idC, Learner: true, PeerURLs: []string{url(idC)}}})
	if got.Unknown || got.MaxOthers != 1 || got.Remove != third {
		t.Errorf("a learner that says so itself: %+v", got)
	}
	got = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeUnknown}, voter(idC, url(idC))})
	if !got.Unknown || got.MaxOthers != 2 || got.Remove != third {
		t.Errorf("what follows a change that is not understood counts: %+v", got)
	}
	got = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeRemove, ID: idC}, voter(idC, url(idC))})
	if got.MaxOthers != 2 {
		t.Errorf("a removal that etcd rejects bars no ID: %+v", got)
	}
	got = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{url(idB), "x"}}, voter(idC, "x")})
	if got.MaxOthers != 1 {
		t.Errorf("an update may keep a URL, and takes the other one: %+v", got)
	}
	learner := append(pairOf(idA, idB), ConfMember{ID: idC, Learner: true, PeerURLs: []string{url(idC)}})
	got = FoldConfs(idA, learner, nil, []ConfChange{voter(0xd, "d"), voter(0xe, "d")})
	if got.Others != 2 || got.Applied != (Voters{Count: 2, IDs: [2]uint64{idA, idB}, Learners: 1}) {
		t.Errorf("a voter beside a learner is surely there, its URL blocks: %+v", got)
	}
	got = FoldConfs(idA, pairOf(idA, 0x99), nil, []ConfChange{voter(idB, "b"), voter(0x55, "c")})
	if got.Remove != [MaxRemove]uint64{idB, 0x55, 0x99} {
		t.Errorf("removed in order, whenever they came: %x", got.Remove)
	}
	var many []ConfMember
	for i := range uint64(300) {
		many = append(many, ConfMember{ID: idA + i, Learner: false})
	}
	got = FoldConfs(idA, many, nil, nil)
	if got.Applied.Count != 255 || got.MaxOthers != 255 || got.Others != 255 || !got.Overflow {
		t.Errorf("three hundred voters: %+v", got)
	}
	for n, want := range map[uint8]uint8{0: 1, 253: 254, 254: 255, 255: 255} {
		if sat(n) != want {
			t.Errorf("sat(%d) = %d", n, sat(n))
		}
	}
}

// Rules: P3, P4, P5, P6, P10, P11; F3.
func TestEligibleMore(t *testing.T) {
	outlived := func(r *arbiter.Record, d *Data) { // named; a third voter came and went after the claim
		*r = namedRecord()
		r.ClaimEnd, r.Fork = arbiter.Position{Index: 60, Term: 4}, arbiter.Position{Index: 61, Term: 5}
		d.Past = Past{Newest: [maxPast]Change{{76, 7, idC, true}, {75, 7, idC, false}}}
	}
	loser := func(r *arbiter.Record, d *Data) { // its log ends below the other's confirmation
		r.Confirmed, r.Survivor.ID, d.Token.Generation = arbiter.Position{Index: 101, Term: 5}, idB, 2
	}
	own := func(cs ...Change) func(*arbiter.Record, *Data) {
		return func(r *arbiter.Record, d *Data) {
			outlived(r, d)
			d.Confs, d.Past = FoldConfs(idA, pairOf(idA), []uint64{idB}, nil), Past{}
			slices.Reverse(cs)
			copy(d.Past.Newest[:], cs)
		}
	}
	for _, c := range []struct {
		name string
		edit func(r *arbiter.Record, d *Data)
		want Reason
	}{
		{"P10 a loser, named with the ID 1", func(r *arbiter.Record, d *Data) { loser(r, d); r.Survivor.ID = 1 }, NamedOther},
		{"P10 a loser without a token", func(r *arbiter.Record, d *Data) { loser(r, d); d.Token.Present = false }, RolledBack},
		{"P10 a loser of another record", func(r *arbiter.Record, d *Data) { loser(r, d); d.Token.RecordID = "other" }, RolledBack},
		{"P10 with the record's token no loser", func(r *arbiter.Record, d *Data) { loser(r, d); d.Token.Generation = 3 }, RolledBack},
		{"P10 nobody named", func(r *arbiter.Record, d *Data) { loser(r, d); r.Survivor.ID = 0 }, RolledBack},
		{"P6 a loser's data that contradict each other", func(r *arbiter.Record, d *Data) { loser(r, d); d.Commit = 101 }, DataInsane},
		{"P6 an empty log and nothing else", func(r *arbiter.Record, d *Data) {
			r.MarkGeneration, d.Last, d.Commit, d.Applied, d.Snap = 0, arbiter.Position{}, 0, 0, 0
		}, DataInsane},
		{"P6 a log of one entry", func(r *arbiter.Record, d *Data) {
			r.MarkGeneration, d.Last.Index, d.Commit, d.Applied, d.Snap, d.First, d.TokenIndex = 0, 1, 1, 1, 0, 1, 1
		}, None},
		{"P10 no confirmation to compare with", func(_ *arbiter.Record, d *Data) { d.Asked = 5 }, None},
		{"P10 the first index with another term", func(r *arbiter.Record, d *Data) { r.Confirmed, d.Asked = arbiter.Position{Index: 1, Term: 4}, 5 }, RolledBack},
		{"P4 what is no token has no generation", func(_ *arbiter.Record, d *Data) { d.Token = Token{RecordID: "rec", Generation: 9} }, TokenMissing},
		{"P4a no token, another named", func(r *arbiter.Record, d *Data) { d.Token, r.Survivor.ID = Token{}, idB }, TokenMissing},
		{"P4a no token, its entry's index all the same", func(r *arbiter.Record, d *Data) { outlived(r, d); d.Token.Generation, d.TokenIndex = 3, 90 }, TokenOutlived},
		{"P5 an addition in the claim's term is not the claim's", own(Change{62, 5, idC, false}, Change{63, 5, 0xd, false}, Change{64, 5, 0xd, true}), TokenOutlived},
		{"P5 the claim's removal is the first entry after its end", own(Change{61, 5, idC, true}, Change{62, 7, 0xd, true}), None},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, d := baseRecord(), baseData()
			c.edit(&r, &d)
			if _, got := Eligible(r, d, 0); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	// Contradictions that FoldConfs does not make: each clause refuses by itself.
	for _, c := range []struct {
		name string
		edit func(d *Data)
		want Reason
	}{
		{"base", func(*Data) {}, None},
		{"three voters, of which the token names two", func(d *Data) { d.Confs.Applied.Count = 3 }, TokenMisnamed},
		{"a pair that this member is none of", func(d *Data) { d.Member = idC }, TokenMisnamed},
		{"another voter than the token's", func(d *Data) { d.Confs.Other = idC }, ThirdVoter},
		{"two others", func(d *Data) { d.Confs.Others = 2 }, ThirdVoter},
		{"no other", func(d *Data) { d.Confs.Others, d.Confs.Other = 0, 0 }, ThirdVoter},
	} {
		d := baseData()
		c.edit(&d)
		if got := tokenGround(baseRecord(), d); got != c.want {
			t.Errorf("P4a %s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name string
		edit func(r *arbiter.Record, d *Data)
		want Reason
	}{
		{"a token of this generation", func(_ *arbiter.Record, d *Data) { d.Token.Generation, d.TokenIndex = 4, 90 }, None},
		{"whose place is not known", func(_ *arbiter.Record, d *Data) { d.Token.Generation, d.TokenIndex, d.Past = 4, 0, Past{} }, None},
		{"no token", func(_ *arbiter.Record, d *Data) { d.Token.Generation, d.Token.Present, d.TokenIndex = 4, false, 90 }, TokenOutlived},
		{"another record's", func(_ *arbiter.Record, d *Data) { d.Token.Generation, d.Token.RecordID, d.TokenIndex = 4, "other", 90 }, TokenOutlived},
		{"an older one", func(_ *arbiter.Record, d *Data) { d.Token.Generation, d.TokenIndex = 3, 90 }, TokenOutlived},
		{"removals in the claim's term before its entries", func(r *arbiter.Record, d *Data) {
			r.Fork.Index, d.Past = 70, Past{Newest: [maxPast]Change{{65, 5, 0xd, true}, {64, 5, idC, true}}}
		}, TokenOutlived},
	} {
		r, d := baseRecord(), baseData()
		outlived(&r, &d)
		c.edit(&r, &d)
		if got := nameGround(r, d); got != c.want {
			t.Errorf("P4b %s: %q, want %q", c.name, got, c.want)
		}
	}
	for _, d := range []Data{
		{Token: Token{Generation: 3}}, {Token: Token{Present: true, Generation: 2}},
		{Tail: Tail{Generation: 3}}, {Tail: Tail{Writes: true, Generation: 2}},
	} {
		if holdsToken(baseRecord(), d) {
			t.Errorf("no token of the generation: %+v", d)
		}
	}
}

// Rules: none (names in status and traces).
func TestNamesOfNothing(t *testing.T) {
	for _, s := range []string{ActionKind(numActions).String(), ActionKind(255).String(), EventKind(numEvents).String(), EventKind(255).String(),
		Phase(numPhases).String(), Phase(255).String(), Reason(numReasons).String(), Reason(255).String()} {
		if s != "unknown" {
			t.Errorf("a number without a meaning is called %q", s)
		}
	}
	if Reason(numReasons).Remedy() != "" {
		t.Error("a number without a meaning has a remedy")
	}
	if ks := EventKinds(); len(ks) != int(numEvents)-1 || ks[0] != Tick {
		t.Errorf("events %v", ks)
	}
	if NoAction.Reply() != NoEvent || numActions.Reply() != NoEvent {
		t.Error("what is no action is answered")
	}
	for want, v := range map[string]interface{ MarshalText() ([]byte, error) }{"stop": Stop, "tick": Tick, "fenced": Fenced, "clone": Clone} {
		if b, err := v.MarshalText(); err != nil || string(b) != want {
			t.Errorf("%q %v, want %q", b, err, want)
		}
	}
	var p, k, e, r = Starting, NoAction, NoEvent, None
	for _, c := range []struct {
		v          interface{ UnmarshalText([]byte) error }
		name, kind string
	}{{&p, "fenced", "phase"}, {&k, "stop", "action"}, {&e, "tick", "event"}, {&r, "clone", "reason"}} {
		if err := c.v.UnmarshalText([]byte(c.name)); err != nil {
			t.Error(err)
		}
		if err := c.v.UnmarshalText([]byte("nonsense")); err == nil || err.Error() != "no "+c.kind+` "nonsense"` {
			t.Errorf("%s: %v", c.kind, err)
		}
	}
	if p != Fenced || k != Stop || e != Tick || r != Clone {
		t.Errorf("read as %s, %s, %s, %s", p, k, e, r)
	}
}
