package failover

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// etcdList is etcd's own list of the members: what ValidateConfigurationChange makes of a log.
type etcdList struct {
	members     map[uint64]ConfMember
	removed     map[uint64]bool
	maxLearners int
}

func (l *etcdList) apply(ch ConfChange) bool {
	m, there := l.members[ch.ID]
	taken, learners := false, 0
	for _, o := range l.members {
		for _, u := range ch.PeerURLs {
			taken = taken || (o.ID != ch.ID && slices.Contains(o.PeerURLs, u))
		}
		if o.Learner {
			learners++
		}
	}
	if l.removed[ch.ID] {
		return false
	}
	switch ch.Kind {
	case ChangeAdd, ChangeAddLearner:
		learner := ch.Kind == ChangeAddLearner
		if there || taken || (learner && learners >= l.maxLearners) {
			return false
		}
		m = ConfMember{ID: ch.ID, Learner: learner, PeerURLs: ch.PeerURLs}
	case ChangePromote:
		if !there || !m.Learner {
			return false
		}
		m.Learner = false
	case ChangeUpdate:
		if !there || taken {
			return false
		}
		m.PeerURLs = ch.PeerURLs
	case ChangeRemove:
		if !there {
			return false
		}
		delete(l.members, ch.ID)
		l.removed[ch.ID] = true
		return true
	}
	l.members[ch.ID] = m
	return true
}

func (l *etcdList) list() []ConfMember {
	return slices.SortedFunc(maps.Values(l.members), func(a, b ConfMember) int { return cmp.Compare(a.ID, b.ID) })
}

func (l *etcdList) otherVoters(self uint64) (ids []uint64) {
	for _, m := range l.members {
		if m.ID != self && !m.Learner {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// Whatever --max-learners is, and though a rejected addition comes again under the same ID, what FoldConfs
// and FoldPast say is on the safe side of what etcd did: no voter and no other member is missed, no configuration
// without this member, and none in which somebody was alone.
//
// Rules: P5, P8, P13, P18; F21, F22.
func TestFoldsCoverEtcd(t *testing.T) {
	const self = 1
	var unlike, crowds, exact int
	for seed := range uint64(60_000) {
		r := rand.New(rand.NewPCG(seed, 7))
		urls := func() []string { return []string{fmt.Sprint("u", r.IntN(4))} }
		l := etcdList{members: map[uint64]ConfMember{}, removed: map[uint64]bool{}, maxLearners: 1 + r.IntN(3)}
		applied := []ConfMember{{ID: self, PeerURLs: []string{"u0"}}}
		if r.IntN(4) > 0 {
			applied = append(applied, ConfMember{ID: 2, Learner: r.IntN(4) == 0, PeerURLs: []string{"u1"}})
		}
		if r.IntN(4) == 0 {
			applied = applied[1:]
		}
		for _, m := range applied {
			l.members[m.ID] = m
		}
		first := voters(l.list())
		var changes []ConfChange
		var past []PlacedChange
		in := func() bool { m, ok := l.members[self]; return ok && !m.Learner }
		alone := func() bool { return voters(l.list()).Count == 1 }
		selfEver, aloneEver, learnerEver := in(), alone(), l.members[self].Learner
		most := len(l.otherVoters(self))
		ever, others := map[uint64]bool{}, map[uint64]bool{}
		note := func() {
			for id := range l.members {
				ever[id] = ever[id] || id != self
			}
			for _, id := range l.otherVoters(self) {
				others[id] = true
			}
		}
		note()
		for range r.IntN(13) {
			kinds := []ConfChangeKind{ChangeAdd, ChangeAddLearner, ChangeAddLearner, ChangeAddLearner, ChangePromote, ChangeRemove, ChangeRemove, ChangeUpdate}
			ch := ConfChange{ID: 1 + r.Uint64N(5), Kind: kinds[r.IntN(len(kinds))]}
			if ch.Kind != ChangeRemove && ch.Kind != ChangePromote {
				ch.PeerURLs = urls()
			}
			changes = append(changes, ch)
			past = append(past, PlacedChange{ConfChange: ch, Index: 10 + uint64(len(changes)), Term: 2})
			if !l.apply(ch) {
				continue
			}
			note()
			selfEver, aloneEver, learnerEver = selfEver && in(), aloneEver || alone(), learnerEver || l.members[self].Learner
			most = max(most, len(l.otherVoters(self)))
		}
		c := FoldSite(self, []string{"u0"}, applied, nil, changes)
		var fail []string
		check := func(ok bool, what string) {
			if !ok {
				fail = append(fail, what)
			}
		}
		check(c.Applied == first, "applied voters")
		check(!c.Self || selfEver, "self is not in all")
		check(!c.Last || in(), "self is not in the last")
		check(c.Learner || !learnerEver, "self was a learner")
		check(c.AnyAlone || !aloneEver, "one was alone")
		check(int(c.MaxOthers) >= most, "more others")
		check(int(c.Others) >= len(others), "more distinct others")
		for id := range ever {
			check(!ever[id] || slices.Contains(c.Remove[:], id), fmt.Sprint("to remove: ", id))
		}
		if c.Others == 1 && len(others) == 1 {
			check(others[c.Other], "another other")
		}
		only := true
		for _, id := range l.otherVoters(self) {
			only = only && slices.Contains(c.Remove[:c.Twins], id)
		}
		check(c.Only || !only, "no voter of another site")

		v, gone := voters(l.list()), slices.Collect(maps.Keys(l.removed))
		again := slices.ContainsFunc(changes, func(c ConfChange) bool {
			return (c.Kind == ChangeAdd || c.Kind == ChangeAddLearner) && slices.ContainsFunc(applied, func(m ConfMember) bool { return m.ID == c.ID })
		})
		if selfEver && most > 1 && v.Count <= 2 && !again { // no second holds a member's addition, the log's beginning and the addition again
			crowds++
			p := FoldPast(l.list(), gone, past)
			check(p.crowded(self, v, 0, func(Change) bool { return false }), "a third voter in the past")
		}
		if len(fail) > 0 {
			t.Fatalf("seed %d, max-learners %d, applied %+v, changes\n%+v\nmissed: %q\n%+v", seed, l.maxLearners, applied, changes, fail, c)
		}
		if int(c.MaxOthers) == most && c.AnyAlone == aloneEver && c.Self == selfEver {
			exact++
		} else {
			unlike++
		}
	}
	t.Logf("%d sequences judged exactly, %d more strictly, %d with a third voter of the past", exact, unlike, crowds)
	if crowds == 0 || unlike == 0 || exact < unlike {
		t.Error("the sequences do not show what they are there for")
	}
}
