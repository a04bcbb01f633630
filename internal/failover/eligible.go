package failover

import "twok/arbiter"

// Ground says which half of P4 allowed a claim.
type Ground uint8

// The grounds.
const (
	NoGround Ground = iota
	ByToken         // P4 (a): the applied token is of the record's generation and names the pair
	ByName          // P4 (b): the record names this member
	ByForce         // P18: an operator's forced claim names this member
)

// Eligible decides whether the member with these data may claim the record's
// next generation (P4, P5, P6; P18). seen is the highest generation ever read here for
// this record ID (P17). Anything missing or contradictory is a refusal (P11).
func Eligible(rec arbiter.Record, d Data, seen uint64) (Ground, Reason) {
	if forced(rec, d) {
		if r := forceable(rec, d, seen); r != None {
			return NoGround, r
		}
		return ByForce, None
	}
	if r := sane(rec, d); r != None {
		if r == RolledBack && d.Token.Present && d.Token.RecordID == rec.ID && d.Token.Generation < rec.Generation &&
			rec.Survivor.ID != 0 && rec.Survivor.ID != d.Member {
			r = NamedOther // a loser's log may well end before what the survivor confirmed
		}
		return NoGround, r
	}
	if r := usable(rec, d, seen); r != None {
		return NoGround, r
	}
	if r := tokenOperations(rec, d); r != None {
		return NoGround, r
	}
	// P5, for both grounds.
	switch {
	case d.Confs.Unknown:
		return NoGround, UnknownConfChange
	case !d.Confs.Self:
		return NoGround, OwnRemoval
	case d.Unsure:
		return NoGround, VoteUnsure
	case d.Confs.MaxOthers > 1 || d.Confs.Overflow:
		return NoGround, ThirdVoter
	}
	named := rec.Survivor.ID == d.Member && d.Member != 0
	byName := ClaimEnd
	if named {
		if byName = nameGround(rec, d); byName == None {
			return ByName, None
		}
	}
	byToken := tokenGround(rec, d)
	switch {
	case byToken == None:
		return ByToken, None
	case named:
		return NoGround, byName
	case byToken == TokenGeneration && rec.Survivor.ID != 0: // a higher one was refused above
		return NoGround, NamedOther
	}
	return NoGround, byToken
}

// usable is what every claim asks of the record.
func usable(rec arbiter.Record, d Data, seen uint64) Reason {
	switch {
	case rec.ID == "" || rec.Generation == 0:
		return RecordGarbage
	case rec.ClusterID != d.Cluster:
		return RecordForeign
	case rec.Generation < seen:
		return RecordOld
	case rec.Pause:
		return Paused
	}
	return None
}

// insane: the parts of the data contradict each other.
func insane(d Data) bool {
	return d.Member == 0 || d.Cluster == 0 || d.Last.Index == 0 ||
		d.Applied > d.Last.Index || d.Commit > d.Last.Index || d.Snap > d.Applied || d.Last.Term > d.Term
}

// sane is P6: the data are readable, consistent, and not rolled back.
func sane(rec arbiter.Record, d Data) Reason {
	switch {
	case d.Problem != None:
		return d.Problem
	case insane(d):
		return DataInsane
	case rec.MarkGeneration == rec.Generation && d.Last.Index < rec.MarkIndex:
		return RolledBack // P15
	}
	if rolledBack(rec, d) {
		return RolledBack
	}
	return None
}

// rolledBack is P10's test: the log ends below the confirmed index, or holds it
// with another term. A compacted index proves nothing.
func rolledBack(rec arbiter.Record, d Data) bool {
	c := rec.Confirmed
	return d.Last.Index < c.Index || (c.Index != 0 && d.Asked != 0 && d.Asked != c.Term)
}

// tokenOperations is the last sentence of P4: whatever happened to the token's
// key, in the database and after it, speaks for this record and no later generation.
func tokenOperations(rec arbiter.Record, d Data) Reason {
	t := d.Token
	switch {
	case t.Bad:
		return TokenBad
	case t.Present && t.RecordID != rec.ID:
		return RecordElsewhere
	case t.Present && t.Generation > rec.Generation:
		return RecordOld
	}
	if !d.Tail.Writes && !d.Tail.Bad {
		return None
	}
	if d.Tail.Bad || d.Tail.RecordID != rec.ID || d.Tail.Generation > rec.Generation {
		return TokenTail
	}
	return None
}

// tokenGround is P4 (a), with P5's condition on who the other voter is.
func tokenGround(rec arbiter.Record, d Data) Reason {
	t := d.Token
	switch {
	case !t.Present:
		return TokenMissing
	case t.Generation != rec.Generation:
		return TokenGeneration
	case t.Cluster != d.Cluster:
		return TokenBad
	case d.Confs.Applied.Count != 2 || t.Other(d.Member) == 0 || !t.Names(d.Confs.Applied.IDs[0], d.Confs.Applied.IDs[1]):
		return TokenMisnamed
	case d.TokenIndex == 0:
		return LogCompacted // who was a voter since the token was written, nobody can tell
	case t.EntryTerm != t.Term:
		return TokenLate
	case d.Confs.Others != 1 || d.Confs.Other != t.Other(d.Member):
		return ThirdVoter
	case d.Past.crowded(d.Member, d.Confs.Applied, d.TokenIndex, func(Change) bool { return false }):
		return TokenOutlived
	}
	return None
}

// nameGround is P4 (b), after the name itself was found to match.
func nameGround(rec arbiter.Record, d Data) Reason {
	switch {
	case rec.Fork.Index == 0: // a forced claim that was not carried out (P18), and is void by now
		return ClaimEnd
	case d.Last.Index < rec.ClaimEnd.Index || d.Last.Term < rec.ClaimEnd.Term:
		return ClaimEnd
	case rec.WholeGeneration == rec.Generation && !holdsToken(rec, d):
		return WholeUnknown
	}
	// Since the claim, or this generation's token if it is younger. The claim's own
	// append removed everybody at once.
	since := rec.ClaimEnd.Index
	if t := d.Token; t.Present && t.RecordID == rec.ID && t.Generation == rec.Generation {
		since = max(since, d.TokenIndex)
	}
	if !d.reaches(since) {
		return LogCompacted
	}
	own := func(c Change) bool { return c.Gone && c.Term == rec.Fork.Term && c.Index >= rec.Fork.Index }
	if d.Past.crowded(d.Member, d.Confs.Applied, since, own) {
		return TokenOutlived
	}
	return None
}

func holdsToken(rec arbiter.Record, d Data) bool {
	return (d.Token.Present && d.Token.Generation == rec.Generation) ||
		(d.Tail.Writes && d.Tail.Generation == rec.Generation)
}

// KeepLog decides whether a loser may return with its log (P13). None: it may.
// Otherwise the reason why it starts from an empty prepared log.
func KeepLog(rec arbiter.Record, d Data) Reason {
	switch {
	case d.Problem != None:
		return d.Problem
	case d.Applied > d.Last.Index || d.Commit > d.Last.Index || d.Snap > d.Applied:
		return DataInsane
	case d.Confs.Unknown:
		return UnknownConfChange
	case d.Confs.AnyAlone:
		return Overridden
	case !d.Token.Present:
		return TokenMissing
	case d.Token.Bad:
		return TokenBad
	case d.Token.RecordID != rec.ID:
		return RecordElsewhere
	case d.Token.Generation >= rec.Generation:
		return TokenGeneration
	}
	// The history must cover (token, record], and every fork of it lie above what
	// is committed here.
	for g := d.Token.Generation + 1; g <= rec.Generation; {
		h, ok := covering(rec, g)
		switch {
		case !ok:
			return TokenGeneration
		case h.Forced: // the other history ends nowhere in particular (P18)
			return Overridden
		case d.Committed() >= h.Fork.Index: // at zero too: a fork that is not known
			return RolledBack
		}
		g = h.Last + 1
	}
	return None
}

func covering(rec arbiter.Record, g uint64) (arbiter.HistoryEntry, bool) {
	for _, h := range rec.History {
		if h.First != 0 && h.First <= g && g <= h.Last {
			return h, true
		}
	}
	return arbiter.HistoryEntry{}, false
}
