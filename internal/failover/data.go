package failover

import (
	"cmp"
	"maps"
	"slices"

	"twok/arbiter"
)

// Data is what one data directory says, read offline under the locks. It holds
// whatever the rules ask of it and nothing else. The zero value is eligible for nothing.
type Data struct {
	Problem Reason // set if the data could not be read; then nothing else counts

	Member  uint64 // member ID in the WAL's metadata
	Cluster uint64
	Name    string // this member's name, for people

	Term    uint64           // HardState.Term
	Commit  uint64           // HardState.Commit
	Applied uint64           // consistent_index of the database
	Snap    uint64           // index of the WAL's newest snapshot record
	Last    arbiter.Position // end of the log, uncommitted entries included

	// Asked is the term of the entry at the index that ReadData asked for, zero
	// if that entry is not in the log (compacted away, or beyond the end).
	Asked uint64

	Token Token // as applied in the database
	Tail  Tail  // operations on its key after that
	Confs Confs // every end-of-log configuration (P5)

	// First is the oldest entry from which the log reads without a gap to Last; zero if
	// there is no entry. It may lie before Snap.
	First uint64
	// TokenIndex is the index of the entry that wrote Token; zero if it is no longer
	// in the log or was not looked for.
	TokenIndex uint64
	Past       Past // what the log says of applied changes (P5)
	Homeless   bool // the own peer URLs are not known
	Unsure     bool // another member's etcd perhaps does not count this member's vote; see UnsureVote
}

// reaches says whether the log shows everything that came after the index since.
func (d Data) reaches(since uint64) bool {
	return d.Last.Index <= since || (d.First != 0 && d.First <= since+1)
}

// Committed is the highest index that this member knows to be committed:
// consistent_index can be ahead of the hard state, and behind (A0, etcd-facts).
func (d Data) Committed() uint64 { return max(d.Commit, d.Applied) }

// Token is the pair token, the key /twok/pair (P14).
type Token struct {
	Present    bool
	Bad        bool // the key holds something else, or is bound to a lease
	RecordID   string
	Generation uint64
	Cluster    uint64
	Members    [2]uint64 // ascending
	Term       uint64    // the Raft term of the list that it was written under
	// EntryTerm is the term of the log entry that wrote it, zero when that entry
	// is no longer in the log or was not looked for. P4 takes it with Data.TokenIndex only.
	EntryTerm uint64
}

// Names says whether the token names exactly these two members.
func (t Token) Names(a, b uint64) bool {
	return a != b && t.Members == [2]uint64{min(a, b), max(a, b)}
}

// Other is the member besides self that the token names; zero if self is not named.
func (t Token) Other(self uint64) uint64 {
	switch self {
	case t.Members[0]:
		return t.Members[1]
	case t.Members[1]:
		return t.Members[0]
	}
	return 0
}

// Tail sums up the operations on the token's key in the entries after the
// applied index, committed or not (P4).
type Tail struct {
	Writes     bool
	Bad        bool   // a delete, a lease, an unreadable value, or two record IDs
	RecordID   string // of all writes
	Generation uint64 // the highest written
}

// Change is an applied change that made ID a voter or, with Gone, removed a member that
// is not known to have been a learner.
type Change struct {
	Index, Term, ID uint64
	Gone            bool
}

// maxPast is how many such changes are kept one by one.
const maxPast = 8

// Past sums up the applied changes that are still in the log (P5). A third voter
// that came and went leaves the names of the pair as they were, and yet it may still elect a
// leader together with a member that knows nothing of its removal.
type Past struct {
	Newest [maxPast]Change // newest first
	More   uint64          // index of the newest that has no place there
}

// PlacedChange is a change with its place in the log.
type PlacedChange struct {
	ConfChange
	Index, Term uint64
}

// standing is what the log has said of one ID so far.
type standing uint8

const (
	unheard standing = iota
	learning
	voting
	left
)

// FoldPast takes the changes of the log up to the applied index, oldest first. One that
// etcd rejected is in the log too, and changed nothing: an addition's ID is then neither in
// the applied configuration nor among the removed; a promotion was of no learner (two promotions
// can be on their way at once), a removal of nobody. One that was rejected and came again under the same ID (see accept)
// is not told apart: who may have become a voter has.
func FoldPast(applied []ConfMember, removed []uint64, changes []PlacedChange) Past {
	var p Past
	is := map[uint64]standing{}
	for _, c := range changes {
		known := slices.Contains(removed, c.ID) || slices.ContainsFunc(applied, func(m ConfMember) bool { return m.ID == c.ID })
		was := is[c.ID]
		switch {
		case c.Kind == ChangeUnknown:
			c.ID = 0 // nobody's
		case !known:
			continue
		case c.Kind == ChangeAddLearner && was != voting:
			is[c.ID] = learning
			continue
		case c.Kind == ChangeAdd && was != voting, c.Kind == ChangePromote && was == learning:
			is[c.ID] = voting
		case c.Kind == ChangeRemove && was != left:
			is[c.ID] = left
			if was == learning {
				continue
			}
		default:
			continue // an update, or rejected
		}
		p.More = p.Newest[maxPast-1].Index
		copy(p.Newest[1:], p.Newest[:])
		p.Newest[0] = Change{Index: c.Index, Term: c.Term, ID: c.ID, Gone: c.Kind == ChangeRemove}
	}
	return p
}

// crowded says whether self had more than one other voter beside it at any time after
// the index since, or the log does not tell. applied is where the changes led to: who is there without having
// come, or goes without having come, was there from the start.
func (p Past) crowded(self uint64, applied Voters, since uint64, own func(Change) bool) bool {
	if p.More > since {
		return true
	}
	var others []uint64
	var changes []Change
	come := map[uint64]bool{}
	for _, c := range slices.Backward(p.Newest[:]) {
		switch {
		case c.Index <= since || own(c) || (c.ID == self && !c.Gone):
			continue
		case c.ID == 0 || c.ID == self:
			return true // not understood, or this member's own removal
		case c.Gone && !come[c.ID]:
			others = append(others, c.ID)
		}
		come[c.ID] = true
		changes = append(changes, c)
	}
	for _, id := range applied.IDs[:min(int(applied.Count), len(applied.IDs))] {
		if id != self && !come[id] {
			others = append(others, id)
		}
	}
	for _, c := range changes {
		if len(others) > 1 {
			return true
		}
		if c.Gone {
			others = slices.DeleteFunc(others, func(id uint64) bool { return id == c.ID })
		} else {
			others = append(others, c.ID)
		}
	}
	return len(others) > 1
}

// Voters is a configuration's voters, as far as the rules ask.
type Voters struct {
	Count    uint8 // saturates at 255
	IDs      [2]uint64
	Learners uint8
}

// MaxRemove is how many other members one surgery can remove.
const MaxRemove = 8

// Confs sums up every end-of-log configuration: the applied one and each that
// follows from a later entry of the log (P5).
type Confs struct {
	Applied   Voters
	Self      bool   // self is a voter in every one of them
	MaxOthers uint8  // the most other voters in any of them
	Other     uint64 // some other voter; the only one if Others is 1
	Others    uint8  // distinct other voters over all of them, saturating
	AnyAlone  bool   // in one of them there is, or may be, a single voter
	Unknown   bool   // an entry that this version does not understand
	Last      bool   // self is a voter in the last one
	Learner   bool   // self is a learner in one of them
	Only      bool   // the last one has no voter but self and members of this site; see FoldSite

	// Remove lists every other member of any of them, learners included, zeros
	// at the end: what surgery removes (P8, F21). Overflow: there are more. The first Twins of them have peer
	// URLs of this site: they are what this member was called before (P12, P18).
	Remove   [MaxRemove]uint64
	Twins    uint8
	Overflow bool
}

// ConfMember is a member of a configuration.
type ConfMember struct {
	ID       uint64
	Name     string
	Learner  bool
	PeerURLs []string
	maybe    bool // perhaps etcd does not have it; see accept
	vague    bool // perhaps it has other peer URLs
}

// ConfChangeKind is what an entry does to a configuration.
type ConfChangeKind uint8

// The kinds. Promote is etcd's AddNode with IsPromote in its context.
const (
	ChangeUnknown ConfChangeKind = iota
	ChangeAdd
	ChangeAddLearner
	ChangePromote
	ChangeRemove
	ChangeUpdate
)

// ConfChange is one configuration entry of the log.
type ConfChange struct {
	Kind     ConfChangeKind
	ID       uint64
	Learner  bool
	PeerURLs []string
}

// FoldConfs walks from the applied configuration over the entries that follow,
// judging each as etcd does when it applies it: one that etcd rejects changes
// nothing (etcd: server/etcdserver/api/membership, ValidateConfigurationChange). Where
// that depends on anything outside the data (--max-learners), each answer of Confs is the
// one on the safe side.
func FoldConfs(self uint64, applied []ConfMember, removed []uint64, changes []ConfChange) Confs {
	return FoldSite(self, nil, applied, removed, changes)
}

// FoldSite is FoldConfs with this member's own peer URLs, by which it knows what it was called before: it fills
// in Twins and Only.
func FoldSite(self uint64, site []string, applied []ConfMember, removed []uint64, changes []ConfChange) Confs {
	members := map[uint64]ConfMember{}
	for _, m := range applied {
		members[m.ID] = m
	}
	gone := map[uint64]bool{}
	for _, id := range removed {
		gone[id] = true
	}
	c := Confs{Self: true}
	others := map[uint64]bool{}
	twins := map[uint64]bool{}
	see := func() Voters {
		for _, m := range members {
			twins[m.ID] = twins[m.ID] || (m.ID != self && slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(site, u) }))
		}
		return c.add(self, members, others)
	}
	c.Applied = see()
	for _, ch := range changes {
		if ch.Kind == ChangeUnknown || (ch.Kind == ChangeAdd && ch.Learner) {
			// The second: Raft would count a voter, etcd's membership a learner.
			c.Unknown = true
			continue
		}
		if accept(members, gone, ch) {
			see()
		}
	}
	if len(site) == 0 {
		return c
	}
	c.Only = true
	for _, m := range members {
		c.Only = c.Only && (m.ID == self || m.Learner || m.maybe || twins[m.ID])
	}
	var mine, rest []uint64
	for _, id := range c.Remove {
		if twins[id] {
			mine = append(mine, id)
		} else {
			rest = append(rest, id)
		}
	}
	copy(c.Remove[:], append(mine, rest...))
	c.Twins = uint8(len(mine))
	return c
}

// accept applies ch to members if etcd would, or might, and says so. What etcd does depends on things that no
// data directory shows: --max-learners refuses a learner beside another one, which makes it a maybe, and so is
// whatever follows from one. Members come to hold at least everybody whom etcd has, a maybe as a voter if
// it can be one, and those who are no maybe just as etcd has them. A refused addition can come again under the same
// ID, which is a hash of the peer URLs and the second (etcd: membership, computeMemberID). gone holds those
// removed, true if etcd takes them back under no circumstances.
func accept(members map[uint64]ConfMember, gone map[uint64]bool, ch ConfChange) bool {
	sure, left := gone[ch.ID]
	if sure {
		return false
	}
	m, ok := members[ch.ID]
	switch ch.Kind {
	case ChangeAdd, ChangeAddLearner:
		learner := ch.Kind == ChangeAddLearner
		if urlTaken(members, ch) || (ok && !m.maybe) {
			return false
		}
		maybe := left || ok || doubt(members, ch.ID) || (learner && hasLearner(members))
		members[ch.ID] = ConfMember{ID: ch.ID, Learner: learner && (m.Learner || !ok), PeerURLs: ch.PeerURLs, maybe: maybe}
	case ChangePromote:
		if !m.Learner { // a voter, or nobody
			return false
		}
		m.Learner = false
		members[ch.ID] = m
	case ChangeRemove:
		if !ok {
			return false
		}
		delete(members, ch.ID)
		gone[ch.ID] = !m.maybe
	case ChangeUpdate:
		if !ok || urlTaken(members, ch) {
			return false
		}
		m.PeerURLs, m.vague = ch.PeerURLs, doubt(members, ch.ID)
		members[ch.ID] = m
	}
	return true
}

func hasLearner(members map[uint64]ConfMember) bool {
	for _, m := range members {
		if m.Learner {
			return true
		}
	}
	return false
}

// doubt: perhaps etcd takes a peer URL of one of the others for taken.
func doubt(members map[uint64]ConfMember, id uint64) bool {
	for _, m := range members {
		if m.ID != id && (m.maybe || m.vague) {
			return true
		}
	}
	return false
}

// urlTaken: etcd surely does.
func urlTaken(members map[uint64]ConfMember, ch ConfChange) bool {
	for _, m := range members {
		if m.ID == ch.ID || m.maybe || m.vague {
			continue
		}
		for _, u := range ch.PeerURLs {
			if slices.Contains(m.PeerURLs, u) {
				return true
			}
		}
	}
	return false
}

// add accounts one configuration.
func (c *Confs) add(self uint64, members map[uint64]ConfMember, others map[uint64]bool) Voters {
	var v Voters
	var ids []uint64
	in, n, sure := false, uint8(0), 0
	for _, id := range slices.Sorted(maps.Keys(members)) {
		m := members[id]
		if m.ID != self {
			c.remove(m.ID)
		}
		c.Learner = c.Learner || (m.ID == self && (m.Learner || m.maybe))
		if m.Learner {
			v.Learners = sat(v.Learners)
			continue
		}
		ids = append(ids, m.ID)
		if !m.maybe {
			sure++
		}
		if m.ID == self {
			in = !m.maybe
			continue
		}
		n = sat(n)
		if !others[m.ID] {
			others[m.ID] = true
			c.Others = sat(c.Others)
			c.Other = m.ID
		}
	}
	v.Count = uint8(min(len(ids), 255))
	copy(v.IDs[:], ids)
	c.Self, c.Last = c.Self && in, in
	c.MaxOthers = max(c.MaxOthers, n)
	c.AnyAlone = c.AnyAlone || sure < 2
	return v
}

func (c *Confs) remove(id uint64) {
	for i, have := range c.Remove {
		if have == id {
			return
		}
		if have == 0 {
			c.Remove[i] = id
			slices.SortFunc(c.Remove[:i+1], cmp.Compare[uint64])
			return
		}
	}
	c.Overflow = true
}

func sat(n uint8) uint8 {
	if n == 255 {
		return n
	}
	return n + 1
}
