package failover

import (
	"testing"

	"twok/arbiter"
)

// The pair of every table: members 0xa and 0xb of cluster 7, record "rec".
const (
	idA, idB, idC = uint64(0xa), uint64(0xb), uint64(0xc)
	clusterID     = uint64(7)
)

// baseRecord is at generation 3, whole, with a mark, naming nobody of the case.
func baseRecord() arbiter.Record {
	return arbiter.Record{
		ID: "rec", ClusterID: clusterID, Generation: 3, Nonce: "n",
		WholeGeneration: 3, WholeMembers: [2]uint64{idA, idB},
		MarkGeneration: 3, MarkIndex: 90,
	}
}

// baseData is member A's, eligible by its token.
func baseData() Data {
	return Data{
		Member: idA, Cluster: clusterID, Name: "a", Term: 5, Commit: 95, Applied: 95, Snap: 50, First: 40, TokenIndex: 60,
		Last:  arbiter.Position{Index: 100, Term: 5},
		Token: Token{Present: true, RecordID: "rec", Generation: 3, Cluster: clusterID, Members: [2]uint64{idA, idB}, Term: 5, EntryTerm: 5},
		Confs: FoldConfs(idA, pairOf(idA, idB), nil, nil),
	}
}

func pairOf(ids ...uint64) []ConfMember {
	var ms []ConfMember
	for _, id := range ids {
		ms = append(ms, ConfMember{ID: id, PeerURLs: []string{url(id)}})
	}
	return ms
}

func url(id uint64) string { return "http://" + string(rune('a'+id-idA)) }

// namedRecord names A at generation 4, claimed at the end of A's log; A's token is of 3.
func namedRecord() arbiter.Record {
	r := baseRecord()
	r.Generation, r.Survivor = 4, arbiter.Member{ID: idA, Name: "a"}
	r.ClaimEnd, r.Fork = arbiter.Position{Index: 98, Term: 5}, arbiter.Position{Index: 99, Term: 6}
	r.WholeGeneration, r.WholeMembers, r.MarkGeneration, r.MarkIndex = 0, [2]uint64{}, 0, 0
	return r
}

type claimCase struct {
	name string
	edit func(r *arbiter.Record, d *Data)
	seen uint64
	want Reason
}

// Rules: P3, P4, P5, P6, P10, P11, P15, P17; F3, F22, F38.
func TestEligibleByToken(t *testing.T) {
	conf := func(changes ...ConfChange) func(*arbiter.Record, *Data) {
		return func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idA, pairOf(idA, idB), nil, changes)
		}
	}
	add := ConfChange{Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idC)}}
	learner := ConfChange{Kind: ChangeAddLearner, ID: idC, PeerURLs: []string{url(idC)}}
	remove := func(id uint64) ConfChange { return ConfChange{Kind: ChangeRemove, ID: id} }
	cases := []claimCase{
		{"base", func(*arbiter.Record, *Data) {}, 3, None},
		{"P4a record names the other, whole since", func(r *arbiter.Record, _ *Data) { r.Survivor.ID = idB }, 0, None},

		// P11: the record.
		{"P11 no record ID", func(r *arbiter.Record, _ *Data) { r.ID = "" }, 0, RecordGarbage},
		{"P11 no generation", func(r *arbiter.Record, _ *Data) { r.Generation, r.MarkGeneration = 0, 0 }, 0, RecordGarbage},
		{"F38 another cluster", func(r *arbiter.Record, _ *Data) { r.ClusterID++ }, 0, RecordForeign},
		{"P17 older than one seen", func(*arbiter.Record, *Data) {}, 4, RecordOld},
		{"P11 paused", func(r *arbiter.Record, _ *Data) { r.Pause = true }, 0, Paused},

		// P6.
		{"P6 WAL unreadable", func(_ *arbiter.Record, d *Data) { d.Problem = WALUnreadable }, 0, WALUnreadable},
		{"P6 database unreadable", func(_ *arbiter.Record, d *Data) { d.Problem = DatabaseUnreadable }, 0, DatabaseUnreadable},
		{"P6 no member ID", func(_ *arbiter.Record, d *Data) { d.Member = 0 }, 0, DataInsane},
		{"P6 no cluster ID", func(_ *arbiter.Record, d *Data) { d.Cluster = 0 }, 0, DataInsane},
		{"P6 empty log", func(_ *arbiter.Record, d *Data) { d.Last = arbiter.Position{} }, 0, DataInsane},
		{"P6 consistent_index at the end of the log", func(_ *arbiter.Record, d *Data) { d.Applied = 100 }, 0, None},
		{"P6 consistent_index beyond the log", func(_ *arbiter.Record, d *Data) { d.Applied = 101 }, 0, DataInsane},
		{"P6 commit at the end of the log", func(_ *arbiter.Record, d *Data) { d.Commit = 100 }, 0, None},
		{"P6 commit beyond the log", func(_ *arbiter.Record, d *Data) { d.Commit = 101 }, 0, DataInsane},
		{"P6 snapshot at consistent_index", func(_ *arbiter.Record, d *Data) { d.Snap = 95 }, 0, None},
		{"P6 snapshot above consistent_index", func(_ *arbiter.Record, d *Data) { d.Snap = 96 }, 0, DataInsane},
		{"P6 entry of a term above the hard state's", func(_ *arbiter.Record, d *Data) { d.Last.Term = 6 }, 0, DataInsane},

		// P15: only a mark of the record's own generation counts.
		{"P15 log ends at the mark", func(r *arbiter.Record, _ *Data) { r.MarkIndex = 100 }, 0, None},
		{"P15 log ends below the mark", func(r *arbiter.Record, _ *Data) { r.MarkIndex = 101 }, 0, RolledBack},
		{"P15 mark of an older generation", func(r *arbiter.Record, _ *Data) { r.MarkIndex, r.MarkGeneration = 101, 2 }, 0, None},

		// P10.
		{"P10 log ends at the confirmation", func(r *arbiter.Record, _ *Data) { r.Confirmed = arbiter.Position{Index: 100, Term: 5} }, 0, None},
		{"P10 log ends below the confirmation", func(r *arbiter.Record, _ *Data) { r.Confirmed = arbiter.Position{Index: 101, Term: 5} }, 0, RolledBack},
		{"P10 a loser's log ends below the confirmation", func(r *arbiter.Record, d *Data) {
			r.Confirmed, r.Survivor.ID, d.Token.Generation = arbiter.Position{Index: 101, Term: 5}, idB, 2
		}, 0, NamedOther},
		{"P10 confirmed with another term", func(r *arbiter.Record, d *Data) { r.Confirmed, d.Asked = arbiter.Position{Index: 80, Term: 4}, 5 }, 0, RolledBack},
		{"P10 confirmed with this term", func(r *arbiter.Record, d *Data) { r.Confirmed, d.Asked = arbiter.Position{Index: 80, Term: 5}, 5 }, 0, None},
		{"P10 confirmed index compacted away", func(r *arbiter.Record, d *Data) { r.Confirmed, d.Asked = arbiter.Position{Index: 40, Term: 4}, 0 }, 0, None},

		// P4: every operation on the token's key.
		{"P4 key holds something else", func(_ *arbiter.Record, d *Data) { d.Token.Bad = true }, 0, TokenBad},
		{"P3 token of another record", func(_ *arbiter.Record, d *Data) { d.Token.RecordID = "other" }, 0, RecordElsewhere},
		{"P17 token above the record", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 4 }, 0, RecordOld},
		{"P4 tail writes the same", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "rec", Generation: 3} }, 0, None},
		{"P4 tail deletes", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Bad: true} }, 0, TokenTail},
		{"P4 tail deletes and writes", func(_ *arbiter.Record, d *Data) {
			d.Tail = Tail{Bad: true, Writes: true, RecordID: "rec", Generation: 3}
		}, 0, TokenTail},
		{"P4 tail writes another record's", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "other", Generation: 3} }, 0, TokenTail},
		{"P4 tail writes a higher generation", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "rec", Generation: 4} }, 0, TokenTail},

		// P4 (a).
		{"P4a no token", func(_ *arbiter.Record, d *Data) { d.Token = Token{} }, 0, TokenMissing},
		{"P4a token only in the tail", func(_ *arbiter.Record, d *Data) {
			d.Token, d.Tail = Token{}, Tail{Writes: true, RecordID: "rec", Generation: 3}
		}, 0, TokenMissing},
		{"P4a older token, nobody named", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 2 }, 0, TokenGeneration},
		{"P4a older token, the newer one in the tail", func(_ *arbiter.Record, d *Data) {
			d.Token.Generation, d.Tail = 2, Tail{Writes: true, RecordID: "rec", Generation: 3}
		}, 0, TokenGeneration},
		{"P4a older token, another named", func(r *arbiter.Record, d *Data) { d.Token.Generation, r.Survivor.ID = 2, idB }, 0, NamedOther},
		{"P4a token of another cluster", func(_ *arbiter.Record, d *Data) { d.Token.Cluster++ }, 0, TokenBad},
		{"P4a self not named", func(_ *arbiter.Record, d *Data) { d.Token.Members = [2]uint64{idB, idC} }, 0, TokenMisnamed},
		{"P4a the other voter not named", func(_ *arbiter.Record, d *Data) { d.Token.Members = [2]uint64{idA, idC} }, 0, TokenMisnamed},
		{"P4a applied configuration is alone", func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idA, pairOf(idA), nil, nil)
		}, 0, TokenMisnamed},
		{"P4a the token's entry is of another term", func(_ *arbiter.Record, d *Data) { d.Token.EntryTerm = 4 }, 0, TokenLate},
		{"P5 the token's entry left the log", func(_ *arbiter.Record, d *Data) { d.TokenIndex, d.Token.EntryTerm = 0, 0 }, 0, LogCompacted},
		{"P5 the log begins with the token's entry", func(_ *arbiter.Record, d *Data) { d.First = 60 }, 0, None},

		// P5: every configuration, not only the first or the last.
		{"P5 third voter applied", func(_ *arbiter.Record, d *Data) { d.Confs = FoldConfs(idA, pairOf(idA, idB, idC), nil, nil) }, 0, ThirdVoter},
		{"P5 third voter in the tail", conf(add), 0, ThirdVoter},
		{"P5 third voter in the middle", conf(add, remove(idC)), 0, ThirdVoter},
		{"P5 learner in the tail", conf(learner), 0, None},
		{"P5 learner promoted in the tail", conf(learner, ConfChange{Kind: ChangePromote, ID: idC}), 0, ThirdVoter},
		{"P5 the other one exchanged", conf(remove(idB), add), 0, ThirdVoter},
		{"P5 the other one removed", conf(remove(idB)), 0, None},
		{"F3 own removal in the tail", conf(remove(idA)), 0, OwnRemoval},
		{"P5 own removal applied", func(_ *arbiter.Record, d *Data) { d.Confs = FoldConfs(idA, pairOf(idB), []uint64{idA}, nil) }, 0, OwnRemoval},
		{"P5 only a learner", func(_ *arbiter.Record, d *Data) {
			ms := pairOf(idA, idB)
			ms[0].Learner = true
			d.Confs = FoldConfs(idA, ms, nil, nil)
		}, 0, OwnRemoval},
		{"P5 a learner first, promoted in the tail", func(_ *arbiter.Record, d *Data) {
			ms := pairOf(idA, idB)
			ms[0].Learner = true
			d.Confs = FoldConfs(idA, ms, nil, []ConfChange{{Kind: ChangePromote, ID: idA}})
		}, 0, OwnRemoval},
		{"P5 not understood", conf(ConfChange{}), 0, UnknownConfChange},
		{"F22 rejected by etcd: URL taken", conf(ConfChange{Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idB)}}), 0, None},
		{"P5 more members than one surgery removes", func(_ *arbiter.Record, d *Data) {
			ms := pairOf(idA, idB)
			for i := range uint64(MaxRemove) {
				ms = append(ms, ConfMember{ID: 100 + i, Learner: true})
			}
			d.Confs = FoldConfs(idA, ms, nil, nil)
		}, 0, ThirdVoter},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, d := baseRecord(), baseData()
			c.edit(&r, &d)
			g, got := Eligible(r, d, c.seen)
			if got != c.want {
				t.Errorf("refusal %q, want %q", got, c.want)
			}
			if want := map[bool]Ground{true: ByToken, false: NoGround}[c.want == None]; g != want {
				t.Errorf("ground %d, want %d", g, want)
			}
		})
	}
}

// Rules: P4, P5, P6, P7, P10; F3, F21.
func TestEligibleByName(t *testing.T) {
	cases := []claimCase{
		{"base", func(*arbiter.Record, *Data) {}, 4, None},
		{"P4b without any token", func(_ *arbiter.Record, d *Data) { d.Token = Token{} }, 0, None},
		{"P4b token of these two, misnamed by now", func(_ *arbiter.Record, d *Data) { d.Token.Members = [2]uint64{idB, idC} }, 0, None},
		{"P4b the other is named", func(r *arbiter.Record, _ *Data) { r.Survivor.ID = idB }, 0, NamedOther},
		{"P4b same name, other ID", func(r *arbiter.Record, _ *Data) { r.Survivor = arbiter.Member{ID: idC, Name: "a"} }, 0, NamedOther},
		{"P7 the log ends at the claim's end", func(r *arbiter.Record, _ *Data) { r.ClaimEnd.Index = 100 }, 0, None},
		{"P7 the log ends below the claim's end", func(r *arbiter.Record, _ *Data) { r.ClaimEnd.Index = 101 }, 0, ClaimEnd},
		{"P7 the log ends in an older term than the claim's end", func(r *arbiter.Record, _ *Data) { r.ClaimEnd.Term = 6 }, 0, ClaimEnd},
		{"P5 the log begins after the claim's end", func(_ *arbiter.Record, d *Data) { d.First = 99 }, 0, None},
		{"P5 the log no longer reaches back to the claim's end", func(_ *arbiter.Record, d *Data) { d.First = 100 }, 0, LogCompacted},
		{"P5 no entry, the claim's end is the end", func(r *arbiter.Record, d *Data) { r.ClaimEnd.Index, d.First = 100, 0 }, 0, None},
		{"P5 no entry, the claim's end lies before", func(_ *arbiter.Record, d *Data) { d.First = 0 }, 0, LogCompacted},
		{"P5 but to this generation's token", func(_ *arbiter.Record, d *Data) { d.First, d.Token.Generation, d.TokenIndex = 100, 4, 99 }, 0, None},
		{"P4b whole note, no token of it", func(r *arbiter.Record, _ *Data) { r.WholeGeneration = 4 }, 0, WholeUnknown},
		{"P4b whole note, token in the tail", func(r *arbiter.Record, d *Data) {
			r.WholeGeneration, d.Tail = 4, Tail{Writes: true, RecordID: "rec", Generation: 4}
		}, 0, None},
		{"P4b whole note, token applied", func(r *arbiter.Record, d *Data) { r.WholeGeneration, d.Token.Generation = 4, 4 }, 0, None},
		{"P4b whole note of an older generation", func(r *arbiter.Record, _ *Data) { r.WholeGeneration = 3 }, 0, None},
		{"P4 token of a later generation", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 5 }, 0, RecordOld},
		{"P4 key holds something else", func(_ *arbiter.Record, d *Data) { d.Token.Bad = true }, 0, TokenBad},
		{"P3 token of another record", func(_ *arbiter.Record, d *Data) { d.Token.RecordID = "other" }, 0, RecordElsewhere},
		{"P4 delete in the tail", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Bad: true} }, 0, TokenTail},
		{"P4 later generation in the tail", func(_ *arbiter.Record, d *Data) { d.Tail = Tail{Writes: true, RecordID: "rec", Generation: 5} }, 0, TokenTail},
		{"P17 older than one seen", func(*arbiter.Record, *Data) {}, 5, RecordOld},
		{"P10 below the confirmation", func(r *arbiter.Record, _ *Data) { r.Confirmed = arbiter.Position{Index: 101, Term: 5} }, 0, RolledBack},
		{"P10 other term at the confirmation", func(r *arbiter.Record, d *Data) { r.Confirmed, d.Asked = arbiter.Position{Index: 99, Term: 6}, 5 }, 0, RolledBack},
		{"P5 alone", func(_ *arbiter.Record, d *Data) { d.Confs = FoldConfs(idA, pairOf(idA), []uint64{idB}, nil) }, 0, None},
		{"F21 alone with a learner", func(_ *arbiter.Record, d *Data) {
			ms := pairOf(idA, idC)
			ms[1].Learner = true
			d.Confs = FoldConfs(idA, ms, []uint64{idB}, nil)
		}, 0, None},
		{"P5 the loser's new ID in the tail, its old one applied", func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{
				{Kind: ChangeRemove, ID: idB}, {Kind: ChangeAddLearner, ID: idC, PeerURLs: []string{url(idC)}}, {Kind: ChangePromote, ID: idC}})
		}, 0, None},
		{"P5 third voter in the tail", func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idC)}}})
		}, 0, ThirdVoter},
		{"F3 own removal", func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeRemove, ID: idA}})
		}, 0, OwnRemoval},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, d := namedRecord(), baseData()
			c.edit(&r, &d)
			g, got := Eligible(r, d, c.seen)
			if got != c.want {
				t.Errorf("refusal %q, want %q", got, c.want)
			}
			if want := map[bool]Ground{true: ByName, false: NoGround}[c.want == None]; g != want {
				t.Errorf("ground %d, want %d", g, want)
			}
		})
	}
}

// The zero values are eligible for nothing, alone and together.
//
// Rules: P11.
func TestEligibleZero(t *testing.T) {
	for _, r := range []arbiter.Record{{}, baseRecord(), namedRecord()} {
		if _, why := Eligible(r, Data{}, 0); why != DataInsane {
			t.Errorf("empty data: %q", why)
		}
	}
	if _, why := Eligible(arbiter.Record{}, baseData(), 0); why != RecordGarbage {
		t.Errorf("empty record: %q", why)
	}
}

// Rules: P11.
func TestReasonsHaveNamesAndRemedies(t *testing.T) {
	names := map[string]Reason{None.String(): None}
	if None.String() == "" || None.Remedy() != "" {
		t.Error("None has no name, or a remedy")
	}
	for _, r := range Reasons() {
		if r.String() == "" || r.String() == "unknown" || r.Remedy() == "" {
			t.Errorf("reason %d: name %q, remedy %q", r, r, r.Remedy())
		}
		if old, ok := names[r.String()]; ok {
			t.Errorf("reasons %d and %d share the name %q", old, r, r)
		}
		names[r.String()] = r
	}
	if len(names) != int(numReasons) {
		t.Errorf("%d names for %d reasons", len(names), numReasons)
	}
	if r := Reason(255); r.String() != "unknown" || r.Remedy() != "" {
		t.Error("a number that is no reason has a name")
	}
}

// Every phase, action and event has a name of its own, and every action an answer.
//
// Rules: none (names in status and traces).
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	check := func(n string) {
		if n == "" || n == "unknown" || seen[n] {
			t.Errorf("name %q", n)
		}
		seen[n] = true
	}
	for _, p := range Phases() {
		check(p.String())
	}
	clear(seen)
	for _, k := range ActionKinds() {
		check(k.String())
		if k.Reply() == NoEvent || k.Reply() == Tick {
			t.Errorf("%s has no answer", k)
		}
	}
	clear(seen)
	for _, k := range EventKinds() {
		check(k.String())
	}
}
