package member

import (
	"bytes"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"twok/internal/failover"
	"twok/walsurgery"
)

// Read is what one data directory says (P4, P5, P6). The caller holds both locks:
// lock, and the WAL's by having log from walsurgery.Open on the same directory. ask is an
// index whose term is wanted (Data.Asked). Nothing is changed.
//
// Data.Problem is set whenever something could not be read or the parts contradict
// each other, and the error then says what, for the log:
//
//	WALUnreadable       an entry could not be read again, or is no continuation of the log
//	WALOld              walsurgery.ErrTooOld
//	DatabaseUnreadable  ErrDatabase
//	DataInsane          ErrInsane
//	LockFailed          ErrLockLost: take the locks anew, nothing is known about the data
//
// Member, Cluster, Term, Commit, Last, Snap and Asked are right in the first four
// cases. An error without a Problem explains Token.Bad, Tail.Bad or Confs.Unknown: it
// is for the log too, and the core decides by the data alone.
//
// site are this member's own peer URLs, as far as they are known (failover.FoldSite).
func Read(lock *Lock, log *walsurgery.Log, ask uint64, site ...string) (failover.Data, error) {
	sum := log.Summary()
	d := failover.Data{
		Member: sum.MemberID, Cluster: sum.ClusterID, Term: sum.Term, Commit: sum.Commit,
		Snap: sum.Snapshot.Index, First: sum.First.Index, Last: position(sum.Last.Index, sum.Last.Term), Homeless: len(site) == 0,
	}
	if term, ok := log.Term(ask); ok {
		d.Asked = term
	}
	db, err := readDatabase(lock)
	// The path must name what was read: a member directory that was exchanged meanwhile
	// belongs to another log.
	if verr := lock.Verify(); verr != nil && !errors.Is(err, ErrLockLost) {
		err = fmt.Errorf("%w: %w", ErrLockLost, errors.Join(verr, err))
	}
	switch {
	case errors.Is(err, ErrLockLost):
		return failover.Data{Problem: failover.LockFailed}, err
	case err != nil:
		d.Problem = failover.DatabaseUnreadable
		return d, err
	}
	d.Applied, d.Name = db.applied, db.name(d.Member)
	if d.Problem, err = sane(sum, db); err != nil {
		return d, err
	}

	var why error
	d.Token, why = db.token.decoded()
	if d.Token.Present && !d.Token.Bad {
		if d.Token.EntryTerm, d.TokenIndex, err = tokenEntry(log, db, d.Token.Term); err != nil {
			d.Problem = failover.WALUnreadable
			return d, err
		}
	}
	t := tail{cluster: d.Cluster}
	for e := range log.From(d.Applied + 1) {
		if err := t.entry(e); err != nil {
			d.Problem = failover.WALUnreadable
			return d, fmt.Errorf("read the log after the applied index %d: %w", d.Applied, err)
		}
	}
	d.Tail = t.ops
	d.Confs = failover.FoldSite(d.Member, site, db.configuration(), db.removed, t.changes)
	changes, err := past(log, db)
	if err != nil {
		d.Problem = failover.WALUnreadable
		return d, err
	}
	d.Past = failover.FoldPast(db.configuration(), db.removed, changes)
	d.Unsure = failover.UnsureVote(d.Member, changes)
	return d, errors.Join(why, t.why, t.unknown)
}

// past collects the applied membership changes that are still in the log (P5). One
// that is not understood counts as a stranger's.
func past(log *walsurgery.Log, db database) (changes []failover.PlacedChange, err error) {
	for e := range log.Changes() {
		if e.Index > db.applied {
			break
		}
		p := failover.PlacedChange{Index: e.Index, Term: e.Term}
		if e.Kind == walsurgery.KindConfChange {
			p.ConfChange, _ = confChange(e.Change) // unknown: Kind says so
		} else if e.Err != nil && !errors.Is(e.Err, walsurgery.ErrUnexpectedFormat) {
			return nil, fmt.Errorf("read the log's membership changes: %w", e.Err)
		}
		changes = append(changes, p)
	}
	return changes, nil
}

// sane is P6, as far as it needs no record.
func sane(sum walsurgery.Summary, db database) (failover.Reason, error) {
	insane := func(format string, args ...any) (failover.Reason, error) {
		return failover.DataInsane, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInsane)
	}
	switch {
	case !sum.HasConfState:
		return failover.WALOld, fmt.Errorf("snapshot record %s: %w", sum.Snapshot, walsurgery.ErrTooOld)
	case sum.Inconsistent != "":
		return failover.WALUnreadable, fmt.Errorf("%s: %w", sum.Inconsistent, walsurgery.ErrCorrupt)
	case db.applied > sum.Last.Index:
		return insane("the database has applied index %d, the log ends at %d", db.applied, sum.Last.Index)
	case sum.Snapshot.Index > db.applied:
		return insane("the WAL has a snapshot at index %d, the database has applied %d", sum.Snapshot.Index, db.applied)
	case sum.Commit > sum.Last.Index:
		return insane("commit index %d, the log ends at %d", sum.Commit, sum.Last.Index)
	case sum.Entries > 0 && sum.First.Index > db.applied+1:
		return insane("the log begins at index %d, the database has applied %d", sum.First.Index, db.applied)
	case db.applied == 0 && (len(db.members) > 0 || db.newest > 0):
		return insane("the database has members or keys but no consistent_index")
	case db.applied > 0 && len(db.members) == 0:
		return insane("the database has applied index %d and no member", db.applied)
	}
	return failover.None, nil
}

// tokenEntry is the place of the entry that wrote the applied token, zeros if it is no
// longer in the log. The nonce makes the value the only one of its kind. If several entries carry it
// all the same (a write that was repeated), the newest counts: an older one is of no higher term, and
// of a lower one than it names it cannot be, since whoever wrote it had seen that term committed. In
// doubt a term other than the named one is returned, so that P4 denies.
//
// Where it can be: each entry adds at most one to the main revision (etcd
// server/storage/mvcc, storeTxnWrite.End), and the newest revision in the database is no higher than the
// applied one. So the token's entry is at least as far below consistent_index as its revision
// is below the newest. The search goes back from there; usually it ends soon.
func tokenEntry(log *walsurgery.Log, db database, term uint64) (foundTerm, foundIndex uint64, err error) {
	since, first := uint64(db.newest-db.token.main), log.Summary().First.Index
	if first == 0 || since >= db.applied {
		return 0, 0, nil
	}
	end := db.applied - since + 1
	for n := uint64(64); first < end; n = min(2*n, 4096) {
		begin := max(first, end-min(n, end))
		foundTerm, foundIndex, err = tokenEntryIn(log, begin, end, db.token.value, term)
		if foundTerm != 0 || err != nil {
			return foundTerm, foundIndex, err
		}
		end = begin
	}
	return 0, 0, nil
}

// tokenEntryIn looks at the entries begin to end-1. The index is that of the first one found.
func tokenEntryIn(log *walsurgery.Log, begin, end uint64, value []byte, term uint64) (found, index uint64, err error) {
	carries := false
	w := walker{key: []byte(TokenKey),
		put:    func(p *etcdserverpb.PutRequest) { carries = carries || bytes.Equal(p.Value, value) },
		remove: func() {},
	}
	for e := range log.From(begin) {
		if e.Index >= end {
			break
		}
		if e.Err != nil && !errors.Is(e.Err, walsurgery.ErrUnexpectedFormat) {
			return 0, 0, fmt.Errorf("look for the token's entry: %w", e.Err)
		}
		// The value stands in its entry as it is: what does not hold it need not be decoded.
		if e.Kind != walsurgery.KindNormal || !bytes.Contains(e.Data, value) {
			continue
		}
		carries = false
		if err := w.data(e.Data); err != nil {
			return 0, 0, fmt.Errorf("look for the token's entry: entry %d: %w: %w", e.Index, err, walsurgery.ErrUnexpectedFormat)
		}
		if carries && index == 0 {
			index = e.Index
		}
		if carries && (found == 0 || found == term) {
			found = e.Term
		}
	}
	return found, index, nil
}
