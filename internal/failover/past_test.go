package failover

import (
	"testing"

	"twok/arbiter"
)

// placed numbers changes from an index on.
func placed(index, term uint64, cs ...ConfChange) (ps []PlacedChange) {
	for i, c := range cs {
		ps = append(ps, PlacedChange{ConfChange: c, Index: index + uint64(i), Term: term})
	}
	return ps
}

// A third voter that came and went while the token stayed. Found by testing/sim (seed 4654, reduced to
// "promoted 200 21:apply,0,21 21:third 22:isle,0 146:third- 187:kill,1"): A is cut off with {A,B,C} at the end
// of its log; B and C remove C again; B, whose token names {A,B} as ever, claims; C, which has not
// heard that its removal is committed, is elected by A's vote. Both sides acknowledge writes.
//
// Rules: P4, P5, P14; F33.
func TestThirdVoterThatCameAndWent(t *testing.T) {
	add := func(id uint64) ConfChange {
		return ConfChange{Kind: ChangeAdd, ID: id, PeerURLs: []string{"http://" + string(rune(id))}}
	}
	learner := func(id uint64) ConfChange { return ConfChange{Kind: ChangeAddLearner, ID: id} }
	promote := func(id uint64) ConfChange { return ConfChange{Kind: ChangePromote, ID: id} }
	remove := func(id uint64) ConfChange { return ConfChange{Kind: ChangeRemove, ID: id} }
	const idD, idE = uint64(0xd), uint64(0xe)
	pair := pairOf(idA, idB)
	gone := []uint64{idC, idD, idE}
	byToken := func(_ *arbiter.Record, d *Data) { d.TokenIndex = 60 }
	byName := func(r *arbiter.Record, d *Data) {
		*r = namedRecord()
		r.ClaimEnd, r.Fork = arbiter.Position{Index: 60, Term: 4}, arbiter.Position{Index: 61, Term: 5}
	}
	var many []ConfChange // one after the other, so that only their number is in the way
	for id := uint64(0x20); len(many) <= maxPast; id++ {
		many, gone = append(many, add(id), remove(id)), append(gone, id)
	}
	for _, c := range []struct {
		name    string
		ground  func(*arbiter.Record, *Data)
		members []ConfMember
		changes []PlacedChange
		want    Reason
	}{
		{"the bootstrap, before the token", byToken, pair, placed(1, 1, add(idA), add(idB)), None},
		{"a third voter before the token", byToken, pair, placed(30, 4, add(idC), remove(idC)), None},
		{"a third voter after the token", byToken, pair, placed(70, 5, add(idC), remove(idC)), TokenOutlived},
		{"its addition left the log", byToken, pair, placed(70, 5, remove(idC)), TokenOutlived},
		{"a promoted third", byToken, pair, placed(70, 5, learner(idC), promote(idC), remove(idC)), TokenOutlived},
		{"a learner that came and went", byToken, pair, placed(70, 5, learner(idC), remove(idC)), None},
		{"an addition that etcd rejected", byToken, pair, placed(70, 5, add(0x99)), None},
		{"a change that is not understood", byToken, pair, placed(70, 5, ConfChange{Kind: ChangeUnknown, ID: idB}), TokenOutlived},
		{"the token left the log", func(_ *arbiter.Record, d *Data) { d.TokenIndex = 0 }, pair, nil, LogCompacted},
		{"and so did a third voter's removal", func(_ *arbiter.Record, d *Data) { d.TokenIndex = 0 }, pair, placed(30, 4, remove(idC)), LogCompacted},
		{"more than is kept", byName, pairOf(idA), placed(70, 7, many...), TokenOutlived},
		{"as many as are kept", byName, pairOf(idA), placed(70, 7, many[:maxPast]...), None},
		{"more than is kept, before the token", func(_ *arbiter.Record, d *Data) { d.TokenIndex = 90 }, pair, placed(70, 5, many...), None},

		{"by name: the claim's own removals", byName, pairOf(idA), placed(61, 5, remove(idC), remove(idD)), None},
		{"by name: the member that returns", byName, pair, placed(62, 7, learner(idB), promote(idB)), None},
		{"a second promotion of the other, which etcd rejected", byToken, pair, placed(70, 5, promote(idB)), None},
		{"a third voter before such a second promotion", byToken, pair, placed(70, 5, add(idC), remove(idC), promote(idB)), TokenOutlived},
		{"by name: a third beside it", byName, pair, placed(62, 7, learner(idB), promote(idB), add(idC), remove(idC)), TokenOutlived},
		{"by name: one after the other", byName, pairOf(idA), placed(62, 7, add(idC), remove(idC), add(idD), remove(idD)), None},
		{"by name: two at a time", byName, pairOf(idA), placed(62, 7, add(idC), add(idD), remove(idD), remove(idC)), TokenOutlived},
		{"by name: before the claim", byName, pairOf(idA), placed(40, 4, add(idC), add(idD), remove(idD), remove(idC)), None},
		{"by name: a removal whose addition left the log, or a drain's", byName, pairOf(idA), placed(62, 5, remove(idE)), None},
		{"by name: such a removal beside the member that returned", byName, pair, placed(62, 7, remove(idE)), TokenOutlived},
		{"by name: such a removal before the return", byName, pair, placed(62, 7, remove(idE), learner(idB), promote(idB)), None},
		{"by name: two such removals", byName, pairOf(idA), placed(62, 7, remove(idD), remove(idE)), TokenOutlived},
		{"by name: the own removal", byName, pairOf(idA), placed(62, 7, remove(idA)), TokenOutlived},
		{"by name, with this generation's token", func(r *arbiter.Record, d *Data) {
			byName(r, d)
			d.Token.Generation, d.TokenIndex = r.Generation, 70
		}, pair, placed(75, 7, add(idC), remove(idC)), TokenOutlived},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, d := baseRecord(), baseData()
			c.ground(&r, &d)
			d.Confs = FoldConfs(idA, c.members, gone, nil)
			d.Past = FoldPast(c.members, gone, c.changes)
			if _, got := Eligible(r, d, 0); got != c.want {
				t.Errorf("got %s, want %s; %+v", got, c.want, d.Past)
			}
		})
	}
}
