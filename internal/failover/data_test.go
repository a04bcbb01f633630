package failover

import (
	"testing"

	"twok/arbiter"
)

// Rules: P13; F23.
func TestKeepLog(t *testing.T) {
	// B lost generation 3 to A's claims 4 and 5, a run with its first fork at 97.
	rec := func() arbiter.Record {
		r := baseRecord()
		r.Generation, r.Survivor = 5, arbiter.Member{ID: idA}
		r.History[0] = arbiter.HistoryEntry{First: 2, Last: 3, Survivor: idB, Fork: arbiter.Position{Index: 10, Term: 2}}
		r.History[1] = arbiter.HistoryEntry{First: 4, Last: 5, Survivor: idA, Fork: arbiter.Position{Index: 97, Term: 6}}
		return r
	}
	loser := func() Data {
		d := baseData()
		d.Member, d.Name = idB, "b"
		d.Commit, d.Applied = 90, 96
		d.Confs = FoldConfs(idB, pairOf(idA, idB), nil, nil)
		return d
	}
	cases := []struct {
		name string
		edit func(r *arbiter.Record, d *Data)
		want Reason
	}{
		{"base", func(*arbiter.Record, *Data) {}, None},
		{"applied at the fork", func(_ *arbiter.Record, d *Data) { d.Applied = 97 }, RolledBack},
		{"commit at the fork", func(_ *arbiter.Record, d *Data) { d.Commit = 97 }, RolledBack},
		{"fork unknown", func(r *arbiter.Record, _ *Data) { r.History[1].Fork = arbiter.Position{} }, RolledBack},
		{"two forks, the first counts", func(r *arbiter.Record, d *Data) {
			r.History[1] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idA, Fork: arbiter.Position{Index: 96, Term: 6}}
			r.History[2] = arbiter.HistoryEntry{First: 5, Last: 5, Survivor: idC, Fork: arbiter.Position{Index: 200, Term: 7}}
		}, RolledBack},
		{"two forks, the second is the lower", func(r *arbiter.Record, d *Data) {
			r.History[1] = arbiter.HistoryEntry{First: 4, Last: 4, Survivor: idA, Fork: arbiter.Position{Index: 200, Term: 6}}
			r.History[2] = arbiter.HistoryEntry{First: 5, Last: 5, Survivor: idC, Fork: arbiter.Position{Index: 96, Term: 7}}
		}, RolledBack},
		{"a generation is missing at the end", func(r *arbiter.Record, _ *Data) { r.History[1].Last = 4 }, TokenGeneration},
		{"a generation is missing at the start", func(r *arbiter.Record, _ *Data) { r.History[1].First = 5 }, TokenGeneration},
		{"no history", func(r *arbiter.Record, _ *Data) { r.History = [arbiter.HistoryLen]arbiter.HistoryEntry{} }, TokenGeneration},
		{"token in the middle of a run", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 4 }, None},
		{"token of the record's generation", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 5 }, TokenGeneration},
		{"token above the record", func(_ *arbiter.Record, d *Data) { d.Token.Generation = 6 }, TokenGeneration},
		{"no token", func(_ *arbiter.Record, d *Data) { d.Token = Token{} }, TokenMissing},
		{"token bad", func(_ *arbiter.Record, d *Data) { d.Token.Bad = true }, TokenBad},
		{"token of another record", func(_ *arbiter.Record, d *Data) { d.Token.RecordID = "other" }, RecordElsewhere},
		{"alone, applied", func(_ *arbiter.Record, d *Data) { d.Confs = FoldConfs(idB, pairOf(idB), []uint64{idA}, nil) }, Overridden},
		{"alone in the tail", func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idB, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeRemove, ID: idA}})
		}, Overridden},
		{"own removal in the tail", func(_ *arbiter.Record, d *Data) {
			d.Confs = FoldConfs(idB, pairOf(idA, idB), nil, []ConfChange{{Kind: ChangeRemove, ID: idB}})
		}, Overridden},
		{"a change not understood", func(_ *arbiter.Record, d *Data) { d.Confs.Unknown = true }, UnknownConfChange},
		{"unreadable", func(_ *arbiter.Record, d *Data) { d.Problem = WALUnreadable }, WALUnreadable},
		{"applied beyond the log", func(_ *arbiter.Record, d *Data) { d.Last.Index = 95 }, DataInsane},
		{"commit beyond the log", func(_ *arbiter.Record, d *Data) { d.Commit, d.Applied, d.Last.Index = 96, 90, 95 }, DataInsane},
		{"snapshot above applied", func(_ *arbiter.Record, d *Data) { d.Snap = 97 }, DataInsane},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, d := rec(), loser()
			c.edit(&r, &d)
			if got := KeepLog(r, d); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Rules: P5, P8; F21, F22.
func TestFoldConfs(t *testing.T) {
	add := ConfChange{Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idC)}}
	addL := ConfChange{Kind: ChangeAddLearner, ID: idC, PeerURLs: []string{url(idC)}}
	remove := func(id uint64) ConfChange { return ConfChange{Kind: ChangeRemove, ID: id} }
	applied := Voters{Count: 2, IDs: [2]uint64{idA, idB}}
	base := Confs{Applied: applied, Self: true, MaxOthers: 1, Other: idB, Others: 1, Remove: [MaxRemove]uint64{idB}}
	with := func(edit func(c *Confs)) Confs {
		c := base
		edit(&c)
		return c
	}
	third := with(func(c *Confs) { c.MaxOthers, c.Other, c.Others, c.Remove = 2, idC, 2, [MaxRemove]uint64{idB, idC} })
	cases := []struct {
		name    string
		removed []uint64
		changes []ConfChange
		want    Confs
	}{
		{"nothing", nil, nil, base},
		{"add a voter", nil, []ConfChange{add}, third},
		{"a voter that came and went", nil, []ConfChange{add, remove(idC)}, third},
		{"add a learner", nil, []ConfChange{addL}, with(func(c *Confs) { c.Remove[1] = idC })},
		{"a learner that came and went", nil, []ConfChange{addL, remove(idC)}, with(func(c *Confs) { c.Remove[1] = idC })},
		{"promote", nil, []ConfChange{addL, {Kind: ChangePromote, ID: idC}}, third},
		{"remove the other", nil, []ConfChange{remove(idB)}, with(func(c *Confs) { c.AnyAlone = true })},
		{"remove self", nil, []ConfChange{remove(idA)}, with(func(c *Confs) { c.Self, c.AnyAlone = false, true })},
		{"exchange the other", nil, []ConfChange{remove(idB), add}, with(func(c *Confs) {
			c.AnyAlone, c.Other, c.Others, c.Remove = true, idC, 2, [MaxRemove]uint64{idB, idC}
		})},
		{"not understood", nil, []ConfChange{{ID: idC}}, with(func(c *Confs) { c.Unknown = true })},

		// What etcd rejects changes nothing (ValidateConfigurationChange).
		{"rejected: add an existing ID", nil, []ConfChange{{Kind: ChangeAdd, ID: idB}}, base},
		{"rejected: a voter becomes a learner", nil, []ConfChange{{Kind: ChangeAddLearner, ID: idB}}, base},
		{"rejected: a URL that is taken", nil, []ConfChange{{Kind: ChangeAdd, ID: idC, PeerURLs: []string{"x", url(idA)}}}, base},
		{"rejected: a removed ID", []uint64{idC}, []ConfChange{add}, base},
		{"rejected: an ID removed in the tail", nil, []ConfChange{addL, remove(idC), add}, with(func(c *Confs) { c.Remove[1] = idC })},
		{"rejected: promote an unknown ID", nil, []ConfChange{{Kind: ChangePromote, ID: idC}}, base},
		{"rejected: promote a voter", nil, []ConfChange{{Kind: ChangePromote, ID: idB}}, base},
		{"rejected: remove an unknown ID", nil, []ConfChange{remove(idC)}, base},
		{"rejected: remove twice", nil, []ConfChange{remove(idC), remove(idC)}, base},
		{"rejected: update an unknown ID", nil, []ConfChange{{Kind: ChangeUpdate, ID: idC, PeerURLs: []string{"x"}}}, base},
		{"rejected: update to a URL that is taken, then the URL is still taken", nil, []ConfChange{
			{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{url(idA)}}, {Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idB)}}}, base},
		{"an update frees a URL", nil, []ConfChange{
			{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{"x"}}, {Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idB)}}}, third},
		{"a removal frees a URL", nil, []ConfChange{
			remove(idB), {Kind: ChangeAdd, ID: idC, PeerURLs: []string{url(idB)}}},
			with(func(c *Confs) { c.AnyAlone, c.Other, c.Others, c.Remove = true, idC, 2, [MaxRemove]uint64{idB, idC} })},
		// etcd makes no such entry: Raft would count a voter, the membership a learner.
		{"an add that disagrees with itself", nil, []ConfChange{{Kind: ChangeAdd, ID: idC, Learner: true, PeerURLs: []string{url(idC)}}},
			with(func(c *Confs) { c.Unknown = true })},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.want.Last = c.want.Self // in each of these it stays, or goes for good
			if got := FoldConfs(idA, pairOf(idA, idB), c.removed, c.changes); got != c.want {
				t.Errorf("\n got %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// A learner beside another one is perhaps refused by --max-learners, which no data
// directory shows. Taken as accepted, its peer URL must not hide a voter that etcd then takes in.
//
// Rules: P5.
func TestFoldConfsMaxLearners(t *testing.T) {
	const idD, idE = 0xd, 0xe
	applied := append(pairOf(idA, idB), ConfMember{ID: idC, Learner: true, PeerURLs: []string{url(idC)}})
	got := FoldConfs(idA, applied, nil, []ConfChange{
		{Kind: ChangeAddLearner, ID: idD, PeerURLs: []string{url(idD)}},
		{Kind: ChangeAdd, ID: idE, PeerURLs: []string{url(idD)}},
	})
	if got.MaxOthers != 2 || got.Remove != [MaxRemove]uint64{idB, idC, idD, idE} {
		t.Errorf("the third voter is missed: %+v", got)
	}
	// Twice perhaps refused is no voter.
	twice := ConfChange{Kind: ChangeAddLearner, ID: idD, PeerURLs: []string{url(idD)}}
	if got := FoldConfs(idA, applied, nil, []ConfChange{twice, twice}); got.MaxOthers != 1 {
		t.Errorf("a learner counts as a voter: %+v", got)
	}
	// An update that is perhaps refused leaves the URL open until the next one.
	got = FoldConfs(idA, applied, nil, []ConfChange{
		twice,
		{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{url(idD)}},
		{Kind: ChangeRemove, ID: idD},
		{Kind: ChangeUpdate, ID: idB, PeerURLs: []string{"x"}},
		{Kind: ChangeAdd, ID: idE, PeerURLs: []string{"x"}},
	})
	if got.MaxOthers != 1 {
		t.Errorf("an addition that etcd rejects counts: %+v", got)
	}
	// A single learner is never refused: its URL does block.
	got = FoldConfs(idA, pairOf(idA, idB), nil, []ConfChange{
		{Kind: ChangeAddLearner, ID: idD, PeerURLs: []string{url(idD)}},
		{Kind: ChangeAdd, ID: idE, PeerURLs: []string{url(idD)}},
	})
	if got.MaxOthers != 1 {
		t.Errorf("an addition that etcd rejects counts: %+v", got)
	}
}

// Surgery removes every other member wherever it shows up, in a fixed order, and
// says when it cannot.
//
// Rules: P5, P8; F21.
func TestFoldConfsRemoveOrder(t *testing.T) {
	var ms []ConfMember
	for _, id := range []uint64{9, 3, 8, 5, 2, 7, 6, 4, idA} {
		ms = append(ms, ConfMember{ID: id, Learner: id != idA})
	}
	c := FoldConfs(idA, ms, nil, nil)
	if c.Remove != [MaxRemove]uint64{2, 3, 4, 5, 6, 7, 8, 9} || c.Overflow {
		t.Errorf("%v, overflow %v", c.Remove, c.Overflow)
	}
	c = FoldConfs(idA, ms, nil, []ConfChange{{Kind: ChangeAddLearner, ID: 77}})
	if !c.Overflow {
		t.Error("the ninth member was dropped in silence")
	}
}
