package failover

import "twok/arbiter"

// Stamp is what a swap needs from outside: a fresh nonce, and the writer's clock
// in Unix milliseconds, for people only (P20).
type Stamp struct {
	Nonce string
	Now   int64
}

// Create is the first content of a record: it names nobody (P3).
func Create(recordID string, cluster uint64, st Stamp) arbiter.Record {
	return arbiter.Record{
		ID: recordID, ClusterID: cluster, Generation: 1,
		Nonce: st.Nonce, CreatedAt: st.Now, WrittenAt: st.Now,
	}
}

// Claim names me the survivor of the next generation (P2). It records the end of
// the claimer's log and, with it, where its own history will begin: the entry
// after that end, in the next term (P7, P8). Confirmation and mark belong to the
// generation that ends here and are dropped (P10, P15).
func Claim(rec arbiter.Record, d Data, reason string, st Stamp) arbiter.Record {
	next := claim(rec, arbiter.Member{ID: d.Member, Name: d.Name}, rec.Generation+1, reason, st)
	next.ClaimEnd = d.Last
	next.Fork = arbiter.Position{Index: d.Last.Index + 1, Term: d.Term + 1}
	return arbiter.Fit(withHistory(rec, next))
}

// Reassert is the claim of a lone survivor that found the record rolled back: one
// above the highest generation that it has seen, nothing is appended (P17). Its
// history begins where own says that it began.
func Reassert(rec arbiter.Record, own Own, seen uint64, me arbiter.Member, st Stamp) arbiter.Record {
	next := claim(rec, me, max(seen, own.Generation, rec.Generation)+1, "reassert: the record was rolled back", st)
	next.ClaimEnd = own.End
	next.Fork = own.Fork
	// The history between the rolled-back record and now is not known to the
	// store any more; this survivor's own run covers it from its own fork on.
	rec.WholeGeneration = 0
	next = withHistory(rec, next)
	return next
}

// Rebound is a fresh record for a survivor that leads alone and is bound to another one (P3): it names
// it at this generation, as of the end of its log. Nobody's token is of a generation in this
// record's history but the survivor's own, so its fork is where the log ends.
func Rebound(rec arbiter.Record, generation uint64, me arbiter.Member, end arbiter.Position, st Stamp) arbiter.Record {
	next := claim(rec, me, generation, "rebound to this record", st)
	next.ClaimEnd = end
	next.Fork = arbiter.Position{Index: end.Index + 1, Term: end.Term}
	return withHistory(rec, next)
}

func claim(rec arbiter.Record, me arbiter.Member, generation uint64, reason string, st Stamp) arbiter.Record {
	next := stamped(rec, st)
	next.Generation = generation
	next.Survivor = me
	next.ClaimNonce = st.Nonce
	next.Reason = reason
	next.ClaimedAt = st.Now
	next.Forced = false
	next.Confirmed, next.ConfirmedAt = arbiter.Position{}, 0
	next.MarkGeneration, next.MarkIndex = 0, 0
	next.WholeGeneration, next.WholeMembers, next.WholeAt = 0, [2]uint64{}, 0
	return next
}

// withHistory adds next's claim to the history of rec. A run of claims by one
// survivor, with no whole pair in between, stays one entry with its first fork (P13); a forced
// claim begins a new one, since what it leaves behind may be anything (P18).
func withHistory(rec, next arbiter.Record) arbiter.Record {
	n := 0
	for n < arbiter.HistoryLen && rec.History[n].First != 0 {
		n++
	}
	if n > 0 {
		last := &next.History[n-1]
		if last.Survivor == next.Survivor.ID && last.Last == rec.Generation && rec.WholeGeneration != rec.Generation && (last.Forced || !next.Forced) {
			last.Last = next.Generation
			if last.Forced && last.Fork.Index == 0 {
				last.Fork = next.Fork // the order did not know it
			}
			last.At = next.ClaimedAt
			return next
		}
	}
	if n == arbiter.HistoryLen {
		copy(next.History[:], next.History[1:])
		n--
	}
	next.History[n] = arbiter.HistoryEntry{
		First: rec.Generation + 1, Last: next.Generation,
		Survivor: next.Survivor.ID, Fork: next.Fork, Forced: next.Forced, At: next.ClaimedAt,
	}
	return next
}

// Confirm notes that the survivor leads and has applied this index (P10).
func Confirm(rec arbiter.Record, applied arbiter.Position, st Stamp) arbiter.Record {
	next := stamped(rec, st)
	next.Confirmed, next.ConfirmedAt = applied, st.Now
	return next
}

// NoteWhole notes a whole pair with its token at the record's generation, drops
// the confirmation and sets the commit mark (P14, P10, P15).
func NoteWhole(rec arbiter.Record, a, b, commit uint64, st Stamp) arbiter.Record {
	next := Mark(rec, commit, st)
	next.WholeGeneration, next.WholeAt = rec.Generation, st.Now
	next.WholeMembers = [2]uint64{min(a, b), max(a, b)}
	next.Confirmed, next.ConfirmedAt = arbiter.Position{}, 0
	return next
}

// Mark sets the commit mark, downwards too (P15).
func Mark(rec arbiter.Record, commit uint64, st Stamp) arbiter.Record {
	next := stamped(rec, st)
	next.MarkGeneration, next.MarkIndex = rec.Generation, commit
	return next
}

func stamped(rec arbiter.Record, st Stamp) arbiter.Record {
	rec.Nonce, rec.WrittenAt = st.Nonce, st.Now
	return rec
}
