package walsurgery

import (
	"encoding/json"
	"fmt"
)

// Position is a place in the Raft log. The zero Position is before the first entry.
type Position struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

func (p Position) String() string { return fmt.Sprintf("%d@%d", p.Index, p.Term) }

// Metadata is what the head of each segment says about its owner.
type Metadata struct {
	MemberID  uint64
	ClusterID uint64
}

func (m Metadata) String() string {
	return fmt.Sprintf("member %x of cluster %x", m.MemberID, m.ClusterID)
}

// HardState is the last hard state record. Commit may lag the truth by as many
// entries as clients were in flight.
type HardState struct {
	Term, Vote, Commit uint64
}

// EntryKind is what an entry holds.
type EntryKind int

const (
	// KindNormal: a request of etcd's key space, or empty.
	KindNormal EntryKind = iota
	// KindConfChange: a membership change as etcd writes it (V1).
	KindConfChange
	// KindOther: anything else: a V2 change, an unknown type, a change that does
	// not decode, or an entry that could not be read again (Entry.Err says why).
	// Callers must deny on it.
	KindOther
)

func (k EntryKind) String() string {
	switch k {
	case KindNormal:
		return "normal"
	case KindConfChange:
		return "conf-change"
	}
	return "other"
}

// MarshalJSON gives the name.
func (k EntryKind) MarshalJSON() ([]byte, error) { return json.Marshal(k.String()) }

// ChangeType is the kind of a membership change; the numbers are raftpb's.
type ChangeType int

// The four changes that etcd makes.
const (
	AddNode    ChangeType = 0
	RemoveNode ChangeType = 1
	UpdateNode ChangeType = 2
	AddLearner ChangeType = 3
)

func (t ChangeType) String() string {
	switch t {
	case AddNode:
		return "add-node"
	case RemoveNode:
		return "remove-node"
	case UpdateNode:
		return "update-node"
	case AddLearner:
		return "add-learner"
	}
	return fmt.Sprintf("change-%d", int(t))
}

// Change is a membership change. Context is etcd's JSON, as it is in the log:
// a member, with "isPromote" for a promotion; nil for a removal.
type Change struct {
	Type    ChangeType
	NodeID  uint64
	Context []byte
}

// Entry is one entry of the Raft log. Data is the entry's payload for
// KindNormal (an etcdserverpb.InternalRaftRequest, or empty), and the raw data
// for KindOther. The slices belong to the caller.
type Entry struct {
	Index, Term uint64
	Kind        EntryKind
	Data        []byte
	Change      Change // KindConfChange only
	Err         error  // KindOther only: why it is not one of the others
}

// Summary describes a log.
type Summary struct {
	Metadata
	HardState

	// Snapshot is the newest valid snapshot record, zero if there is none: the
	// last one in the log whose index is not above HardState.Commit (etcd
	// wal.ValidSnapshotEntries). It is where etcd starts to read.
	Snapshot Position
	// HasConfState is false if that record carries no configuration although its
	// index is above 0 (written before etcd 3.5).
	HasConfState bool
	// Voters and Learners are the configuration in that record, in its order.
	Voters, Learners []uint64
	// Snapshots are all valid snapshot records, oldest first.
	Snapshots []Position

	// First is the oldest entry from which the log reads without a gap to Last;
	// zero if there is no entry. It may lie far before Snapshot.
	First Position
	// Last is the end of the log: its last entry, or Snapshot if no entry follows it.
	Last Position
	// Entries, ConfChanges and Unsupported count the entries First..Last, those of
	// KindConfChange and those of KindOther.
	Entries, ConfChanges, Unsupported int
	// Inconsistent says why the entries after Snapshot cannot be its continuation
	// (a term decreases, they are left over from before a received snapshot, or
	// there is a snapshot record that is neither committed nor in the log); "" if
	// nothing speaks against it. Plan refuses such a log.
	Inconsistent string

	// Torn: the last frames are an incomplete write that etcd (and Open) would cut
	// off; TornAt says where and why.
	Torn   bool
	TornAt string
	// Segments counts the files, Bytes is the sum of their sizes, preallocated
	// space included; LogBytes is what is really written.
	Segments        int
	Bytes, LogBytes int64
}

// String gives the essentials in one line.
func (s Summary) String() string {
	out := fmt.Sprintf("%s, term %d, vote %x, commit %d, snapshot %s, log %s to %s in %d segments",
		s.Metadata, s.HardState.Term, s.Vote, s.Commit, s.Snapshot, s.First, s.Last, s.Segments)
	if s.Torn {
		out += ", torn: " + s.TornAt
	}
	if s.Inconsistent != "" {
		out += ", inconsistent: " + s.Inconsistent
	}
	return out
}
