package sim

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"twok/internal/failover"
)

// keys is how many keys clients write.
const keys = 3

// db is etcd's key space and membership as applied: one value, so that
// consistent_index, members and token travel in one batch (etcd: backend.BatchTx).
type db struct {
	ci      uint64 // consistent_index
	term    uint64 // of the entry at ci
	rev     uint64
	hash    uint64 // of everything written up to rev
	vals    [keys]uint64
	token   failover.Token
	tokMod  uint64 // mod revision of the token's key, zero: none
	tokSeq  uint64 // the entry payload that wrote it: what the nonce is in the real value
	members []failover.ConfMember
	removed []uint64
	pubs    []uint64 // members that have published their attributes
	line    int      // the history that this state was applied in
}

func (d *db) member(id uint64) (failover.ConfMember, bool) {
	for _, m := range d.members {
		if m.ID == id {
			return m, true
		}
	}
	return failover.ConfMember{}, false
}

func (d *db) gone(id uint64) bool { return slices.Contains(d.removed, id) }

// voters sums up the applied configuration.
func (d *db) voters() failover.Voters { return votersOf(d.members) }

func votersOf(ms []failover.ConfMember) (v failover.Voters) {
	for _, m := range ms {
		if m.Learner {
			v.Learners++
			continue
		}
		if v.Count < 2 {
			v.IDs[v.Count] = m.ID
		}
		v.Count++
	}
	return v
}

// accept is etcd's ValidateConfigurationChange and what follows if it passes. The
// slices are replaced, never changed: a db is copied by assignment.
func accept(members *[]failover.ConfMember, removed *[]uint64, c failover.ConfChange) bool {
	ms := *members
	if slices.Contains(*removed, c.ID) {
		return false
	}
	i := slices.IndexFunc(ms, func(m failover.ConfMember) bool { return m.ID == c.ID })
	switch c.Kind {
	case failover.ChangeAdd, failover.ChangeAddLearner:
		taken := slices.ContainsFunc(ms, func(m failover.ConfMember) bool {
			return slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(c.PeerURLs, u) })
		})
		if i >= 0 || taken {
			return false
		}
		ms = append(slices.Clone(ms), failover.ConfMember{ID: c.ID, Learner: c.Kind == failover.ChangeAddLearner, PeerURLs: c.PeerURLs})
		slices.SortFunc(ms, func(a, b failover.ConfMember) int { return int(int64(a.ID) - int64(b.ID)) })
	case failover.ChangePromote:
		if i < 0 || !ms[i].Learner {
			return false
		}
		ms = slices.Clone(ms)
		ms[i].Learner = false
	case failover.ChangeRemove:
		if i < 0 {
			return false
		}
		ms = slices.Delete(slices.Clone(ms), i, i+1)
		*removed = append(slices.Clone(*removed), c.ID)
	default:
		return false
	}
	*members = ms
	return true
}

type hardState struct{ term, vote, commit uint64 }

type snapRec struct {
	index, term uint64
	db          db // membership at index; of a received snapshot the whole snap.db file
	received    bool
}

// recKind is the kind of a WAL record.
type recKind uint8

const (
	recState recKind = iota
	recEntry
	recSnap
)

type record struct {
	kind recKind
	hs   hardState
	ent  *raftpb.Entry
	snap snapRec
}

// disk is a data directory. What etcd wrote and did not sync is pend: a crash keeps
// a prefix of it, since the WAL's running CRC makes everything after a gap unreadable.
type disk struct {
	id    uint64 // of the WAL's metadata
	line  int    // the history that the log is of: see world.lines; whose leader it was last sent by
	hs    hardState
	ents  []*raftpb.Entry // continuous
	snaps []snapRec       // ascending
	pend  []record
	db    db
	saved hardState // the last one written, synced or not: what Save compares with
}

func (d *disk) write(r record) { d.pend = append(d.pend, r) }

// sync makes the first n pending records durable.
func (d *disk) sync(n int) {
	for _, r := range d.pend[:n] {
		switch r.kind {
		case recState:
			d.hs = r.hs
		case recSnap:
			d.snaps = append(d.snaps, r.snap)
			if len(d.snaps) > 4 {
				d.snaps = slices.Delete(d.snaps, 0, 1)
			}
		case recEntry:
			d.entry(r.ent)
		}
	}
	d.pend = d.pend[n:]
	if len(d.pend) == 0 {
		d.pend = nil
	}
}

// entry is what wal.ReadAll does with one: it replaces what it contradicts.
func (d *disk) entry(e *raftpb.Entry) {
	if n := len(d.ents); n > 0 {
		first := d.ents[0].GetIndex()
		switch at := e.GetIndex(); {
		case at < first:
			d.ents = nil
		case at-first < uint64(n):
			d.ents = d.ents[: at-first : at-first]
		case at-first > uint64(n):
			// A received snapshot lies between: the segments before it are not read any more.
			d.ents = nil
		}
	}
	d.ents = append(d.ents, e)
}

// crash keeps n of the pending records and forgets the rest.
func (d *disk) crash(n int) {
	d.sync(min(n, len(d.pend)))
	d.pend = nil
	d.saved = d.hs
}

// snapshot is the newest valid snapshot record (wal.ValidSnapshotEntries).
func (d *disk) snapshot() snapRec {
	for _, s := range slices.Backward(d.snaps) {
		if s.index <= d.hs.commit {
			return s
		}
	}
	return snapRec{}
}

// after returns the entries after index, as ReadAll does; false if there is a gap.
func (d *disk) after(index uint64) ([]*raftpb.Entry, bool) {
	if len(d.ents) == 0 {
		return nil, true
	}
	first := d.ents[0].GetIndex()
	switch {
	case first > index+1:
		return nil, false
	case index+1-first >= uint64(len(d.ents)):
		return nil, true
	}
	return d.ents[index+1-first:], true
}

// last is the end of the log.
func (d *disk) last() (index, term uint64) {
	s := d.snapshot()
	if n := len(d.ents); n > 0 && d.ents[n-1].GetIndex() > s.index {
		return d.ents[n-1].GetIndex(), d.ents[n-1].GetTerm()
	}
	return s.index, s.term
}

func (d *disk) term(index uint64) uint64 {
	if n := len(d.ents); n > 0 {
		first := d.ents[0].GetIndex()
		if index >= first && index-first < uint64(n) {
			return d.ents[index-first].GetTerm()
		}
	}
	if s := d.snapshot(); s.index == index {
		return s.term
	}
	return 0
}

// kept is the log without what a received snapshot has replaced: those records stay in
// the WAL (walsurgery, dropReplaced).
func (d *disk) kept() []*raftpb.Entry {
	ents := d.ents
	for _, s := range d.snaps {
		n := uint64(len(ents))
		if n == 0 || !s.received || s.index > d.hs.commit {
			continue
		}
		switch first := ents[0].GetIndex(); {
		case s.index >= first+n:
			ents = nil
		case s.index >= first && ents[s.index-first].GetTerm() != s.term:
			ents = ents[s.index-first+1:]
		}
	}
	return ents
}

// purge lets go of segments that lie before the oldest snapshot that is kept.
func (d *disk) purge() {
	if len(d.snaps) < 3 || len(d.ents) == 0 {
		return
	}
	keep := d.snaps[len(d.snaps)-3].index
	first := d.ents[0].GetIndex()
	if keep > first && keep-first < uint64(len(d.ents)) {
		d.ents = slices.Clone(d.ents[keep-first:])
	}
}

// recover is what etcd finds when it starts: the database of a received
// snapshot replaces an older one (serverstorage.RecoverSnapshotBackend).
func (d *disk) recover() {
	s := d.snapshot()
	if s.received && d.db.ci < s.index {
		d.db = s.db
	}
}
