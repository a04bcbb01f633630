package failover

import "twok/arbiter"

// Force is an operator's forced claim (P18): it names me the survivor of the next generation, whatever
// the data say. It is an order only. The named member's agent carries it out by a claim of its own under
// the locks (P7: every append has its own swap), so neither log end nor fork is known yet. by says who
// ordered it; over is what is overridden, for people.
func Force(rec arbiter.Record, me arbiter.Member, by, over string, st Stamp) arbiter.Record {
	next := claim(rec, me, rec.Generation+1, over, st)
	next.ClaimEnd, next.Fork = arbiter.Position{}, arbiter.Position{}
	next.Forced, next.Drain = true, false
	next = withHistory(rec, next)
	for i := range next.History {
		if h := &next.History[i]; h.Last == next.Generation {
			h.By = by
		}
	}
	return arbiter.Fit(next)
}

// pending says whether the record holds a forced claim that does not count as
// carried out: the pair has not been whole since.
func pending(rec arbiter.Record) bool {
	return rec.Forced && rec.WholeGeneration != rec.Generation
}

// Ordered says whether the record holds a forced claim for this member that nobody has begun to carry out.
func Ordered(rec arbiter.Record, self uint64) bool {
	return self != 0 && rec.Survivor.ID == self && pending(rec) && rec.Fork.Index == 0
}

// forced says whether this member is the one that the forced claim of the record names, and its data do not hold that
// claim's append yet, or hold its entries without their commit: then a removed member's own addition is not in force. (A member that
// is removed after it led is removed: nobody ordered another claim.) One that confirmed has led by it (P10): if its data lack
// the append now, they were rolled back, and nobody ordered that. A token of this generation, applied or not, says that the pair
// was whole under the order: then it is void.
func forced(rec arbiter.Record, d Data) bool {
	return d.Member != 0 && rec.Survivor.ID == d.Member && pending(rec) &&
		(rec.Fork.Index == 0 || rec.Confirmed.Index == 0 &&
			(d.Last.Term < rec.Fork.Term || (!d.Confs.Self && d.Committed() < rec.Fork.Index))) &&
		!holdsToken(rec, d)
}

// maxForced is the highest generation whose forced term fits into 63 bits.
const maxForced = 1<<31 - 1

// forceable is what even an operator cannot override (P18): the data have to be readable
// and this record's, and the member a voter by them, or one that was removed.
func forceable(rec arbiter.Record, d Data, seen uint64) Reason {
	t := d.Token
	bound := t.Present && !t.Bad
	switch {
	case d.Problem != None:
		return d.Problem
	case d.Last.Index == 0: // it was about to begin with an empty log
		return ForcedLearner
	case insane(d):
		return DataInsane
	}
	if r := usable(rec, d, seen); r != None {
		return r
	}
	switch {
	case rec.Generation >= maxForced:
		return RecordGarbage
	case bound && t.RecordID != rec.ID:
		return RecordElsewhere
	case bound && t.Generation > rec.Generation:
		return RecordOld
	case d.Tail.Writes && !d.Tail.Bad && (d.Tail.RecordID != rec.ID || d.Tail.Generation > rec.Generation):
		return TokenTail
	case d.Confs.Unknown:
		return UnknownConfChange
	case d.Confs.Learner:
		return ForcedLearner
	case d.Confs.Overflow:
		return ThirdVoter
	case !d.Confs.Last && d.Homeless:
		return URLsUnknown
	case !d.Confs.Last && d.Confs.Only:
		return DataInsane // etcd cannot remove its last voter before another one was added at the same URL
	}
	return None
}

// ForcedClaim is the claim by which the named member's agent carries out a forced one. Its term lies above
// every term that a history of a lower generation can have, so that two of them never share one. A member
// that its own log ends without, since it was removed, becomes fresh, a member ID that never was: etcd
// takes no removed one back.
func ForcedClaim(rec arbiter.Record, d Data, fresh uint64, st Stamp) arbiter.Record {
	me := arbiter.Member{ID: d.Member, Name: d.Name}
	if !d.Confs.Last {
		me.ID = fresh
	}
	next := claim(rec, me, rec.Generation+1, rec.Reason, st)
	next.Forced = true
	next.ClaimEnd = d.Last
	next.Fork = arbiter.Position{Index: d.Last.Index + 1, Term: max(d.Term+1, next.Generation<<32)}
	return arbiter.Fit(withHistory(rec, next))
}
