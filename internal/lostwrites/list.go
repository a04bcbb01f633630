package lostwrites

import (
	"cmp"
	"fmt"
	"slices"

	"twok/internal/member"
	"twok/rejoin"
	"twok/walsurgery"
)

// Listing is what a directory's own history had committed beyond the fork. It keeps the directory's files
// open, for the values, until Close.
type Listing struct {
	Dir             string // the member directory
	Member, Cluster uint64
	Fork            Fork
	// LowRevision and HighRevision bound the revision at the fork: what has a revision up to the low one predates
	// it, what has one above the high one is beyond it. They are equal where the log tells.
	LowRevision, HighRevision int64
	// Applied is consistent_index, Committed up to where the member itself knew its log to be committed, Last its end.
	Applied, Committed uint64
	First, Last        walsurgery.Position
	// Alone: the member was the only voter at the end of its log, so whatever it had synced may have been acknowledged.
	Alone bool
	// Compacted is the revision up to which the database was compacted, 0 if it was not.
	Compacted int64

	Changes []Change // in the order of their revisions
	Keys    []Key    // what they come to, in the order of the newest change
	Leases  []Lease  // those of Keys that existed at the end, by ID
	Events  []Event  // everything else in the log beyond the fork
	Unknown []Unknown
	// Notes say what could not be told, and why.
	Notes []string

	d    *dir
	gaps bool // some changes are not known
}

// Close closes the files; the values can no longer be read.
func (l *Listing) Close() error { return l.d.close() }

// Certainty says whether a write was committed.
type Certainty int

const (
	// Committed in the member's own history, beyond doubt.
	Committed Certainty = iota
	// Possibly committed: in the log, behind the commit index that reached the disk. A member that is alone commits
	// whatever it has synced, so it may have acknowledged it.
	Possibly
)

func (c Certainty) String() string {
	if c == Possibly {
		return "possibly-committed"
	}
	return "committed"
}

// Change is one change of one key.
type Change struct {
	Revision, Sub int64
	Index         uint64 // of the entry that made it, 0 where that cannot be told
	Key           []byte
	Delete        bool
	Value         Value // of a put
	Create        int64 // create revision and version of a put; 0 where the database no longer has it (FromLog)
	Version       int64
	Lease         int64
	Old           State // before
	Certainty     Certainty
	// Perhaps: it may predate the fork.
	Perhaps bool
	// FromLog: compacted in the database, and found in the WAL.
	FromLog bool
}

// State is a key at some moment. Unless Known nothing else is set.
type State struct {
	Known, Exists   bool
	Mod, Lease      int64
	Value           Value
	Create, Version int64
}

// Key is what the changes of one key come to.
type Key struct {
	Key       []byte
	Changes   int
	AtFork    State // before the first of them
	Lost      State // after the last of them
	First     int64 // revision of the first of them
	Revision  int64 // of the last of them
	Certainty Certainty
	Perhaps   bool // all of them may predate the fork
	// Presumed: it was deleted after the last change that is known, since the database has no revision of it: compaction took the
	// tombstone.
	Presumed bool
	// Internal: twok's own bookkeeping, which belongs to one history and is never replayed.
	Internal bool

	// Now is the key at the endpoints, nil until Compare.
	Now    *Current
	Status Status
}

// Lease is a lease to which lost keys were bound.
type Lease struct{ ID, TTL int64 }

// Event is an entry beyond the fork that changes no key by itself.
type Event struct {
	Index     uint64
	Term      uint64
	Kind      string
	Detail    string
	Certainty Certainty
}

// Unknown is an entry beyond the fork, or perhaps beyond it, of whose changes the database no longer has everything.
type Unknown struct {
	Revision int64  // 0: not known, nor whether it made one
	Index    uint64 // of the entry
	What     string // it would write
}

// Open reads a directory that was set aside, a data directory or a member directory, and lists what is lost. Nothing is
// written anywhere. Errors: those of this package; walsurgery's and member's for a damaged directory.
func Open(path string, s Sources) (*Listing, error) {
	d, err := openDir(path)
	if err != nil {
		return nil, fmt.Errorf("list lost writes: %w", err)
	}
	l := &Listing{Dir: d.path, Member: d.sum.MemberID, Cluster: d.sum.ClusterID, Applied: d.applied, Committed: d.committed(),
		First: d.sum.First, Last: d.sum.Last, Alone: d.alone(), Compacted: max(d.compacted, 0), d: d}
	if l.Fork, err = d.fork(s); err == nil {
		err = l.list()
	}
	if err != nil {
		d.close()
		return nil, fmt.Errorf("list lost writes of %s: %w", d.path, err)
	}
	return l, nil
}

func (l *Listing) note(format string, args ...any) {
	l.Notes = append(l.Notes, fmt.Sprintf(format, args...))
}

func (l *Listing) list() error {
	d := l.d
	if d.sum.Torn {
		l.note("the WAL ends in an incomplete write, which etcd would cut off too: %s", d.sum.TornAt)
	}
	if d.sum.Inconsistent != "" {
		l.note("the WAL is not one history: %s; what lies behind its snapshot is doubtful", d.sum.Inconsistent)
	}
	if !l.Fork.Exact {
		l.note("entries below %d may differ from the other history too, if they were in the log but not yet committed when the histories parted; --against tells", l.Fork.Index)
	}
	if l.Fork.Index > d.sum.Last.Index {
		l.LowRevision, l.HighRevision = d.newest, d.newest
		return nil
	}
	b := boundary{lo: d.newest, hi: d.newest}
	if l.Fork.Index <= d.applied {
		floor := int64(0)
		if d.token.Present {
			// Tokens are written by a whole pair (P14), so its revision is older than any claim behind it.
			floor = d.tokenFound
		}
		var err error
		if b, err = d.align(l.Fork.Index, floor); err != nil {
			return err
		}
		l.explain(b)
		if err := l.applied(b); err != nil {
			return err
		}
	}
	l.LowRevision, l.HighRevision = b.lo, b.hi
	if err := l.tail(); err != nil {
		return err
	}
	slices.SortStableFunc(l.Changes, func(x, y Change) int { return cmp.Or(cmp.Compare(x.Revision, y.Revision), cmp.Compare(x.Sub, y.Sub)) })
	l.chain()
	return l.events()
}

// explain says what the log no longer tells.
func (l *Listing) explain(b boundary) {
	d := l.d
	switch {
	case b.broken:
		l.note("WAL and database do not fit together: everything since revision %d is listed, and may predate the fork", b.lo)
	case b.lo == b.hi:
	case d.sum.First.Index > l.Fork.Index || d.sum.First.Index == 0:
		l.note("the WAL begins at entry %d, the fork is at %d: the entries between are gone; revisions %d to %d may predate the fork", d.sum.First.Index, l.Fork.Index, b.lo+1, b.hi)
	default:
		l.note("the log does not tell which revision the fork is at: revisions %d to %d may predate it", b.lo+1, b.hi)
	}
}

// applied lists what the database has of revisions beyond the fork, and what the WAL still has of those that were compacted.
func (l *Listing) applied(b boundary) error {
	d := l.d
	i, _ := slices.BinarySearchFunc(d.revs, b.lo+1, func(r revision, m int64) int { return cmp.Compare(r.main, m) })
	for ; i < len(d.revs); i++ {
		l.add(d.revs[i], b.madeBy[d.revs[i].main], Committed, d.revs[i].main <= b.hi)
	}
	gone := int64(0)
	for main := b.lo + 1; main <= min(d.compacted, d.newest); main++ {
		if b.madeBy[main] == 0 {
			if len(d.group(main)) == 0 {
				gone++
			}
			continue
		}
		if err := l.recover(main, b.madeBy[main], main <= b.hi); err != nil {
			return err
		}
	}
	for _, index := range b.doubtful {
		req, err := d.request(index)
		if err != nil {
			return err
		}
		l.Unknown = append(l.Unknown, Unknown{Index: index, What: describe(req)})
	}
	l.gaps = l.gaps || gone > 0
	switch {
	case gone == 0:
	case d.sum.First.Index > 0 && d.sum.First.Index <= l.Fork.Index && !b.broken:
		l.note("COMPACTED: of %d revisions from %d to %d nothing is left in the database, and the WAL does not tell which of its entries made them, and which failed: the entries in question are listed as unknown",
			gone, b.lo+1, d.compacted)
	default:
		l.note("COMPACTED: %d revisions from %d to %d are gone from the database, and from the WAL. Values that were overwritten later are lost with them, and so is every key that was deleted: such deletes are not listed",
			gone, b.lo+1, d.compacted)
	}
	return nil
}

// recover takes from the WAL what compaction took from a revision.
func (l *Listing) recover(main int64, index uint64, perhaps bool) error {
	d := l.d
	group := d.group(main)
	req, err := d.request(index)
	if err != nil {
		return err
	}
	var paths []path
	o := outcomes(req, nil, true)
	for _, p := range o.paths {
		if !d.possible(p, main) {
			continue
		}
		ok, err := d.follows(p.ops, group, false)
		if err != nil {
			return err
		}
		if ok {
			paths = append(paths, p)
		}
	}
	if !o.any && len(paths) == 1 {
		if rs, ok := d.rebuild(paths[0].ops, req, main, index); ok {
			for _, r := range rs {
				if !slices.ContainsFunc(group, func(g revision) bool { return g.key == r.key }) {
					l.add(r, index, Committed, perhaps)
					l.Changes[len(l.Changes)-1].FromLog = true
				}
			}
			return nil
		}
	}
	l.gaps = true
	l.Unknown = append(l.Unknown, Unknown{Revision: main, Index: index, What: describe(req)})
	return nil
}

// tail applies to the database's state, in memory, what the log has behind consistent_index.
func (l *Listing) tail() error {
	d := l.d
	if d.applied >= d.sum.Last.Index {
		return nil
	}
	s := newState(d)
	for e := range d.log.From(d.applied + 1) {
		if e.Index == l.Fork.Index && l.Fork.Index > d.applied {
			l.LowRevision, l.HighRevision = s.current, s.current
		}
		certainty := Committed
		if e.Index > l.Committed {
			certainty = Possibly
		}
		switch {
		case e.Kind == walsurgery.KindConfChange:
			continue
		case e.Kind != walsurgery.KindNormal && e.Data == nil:
			return e.Err
		}
		req, err := member.DecodeRequest(e.Data)
		if err != nil || e.Kind != walsurgery.KindNormal {
			l.note("entry %d is not understood (%v): what it and the entries behind it did to the key space is doubtful", e.Index, cmp.Or(err, e.Err))
			continue
		}
		if req == nil {
			continue
		}
		changes, _, err := s.apply(e.Index, req)
		if err != nil {
			return err
		}
		if e.Index < l.Fork.Index {
			continue
		}
		for _, c := range changes {
			l.add(c, e.Index, certainty, false)
		}
	}
	return nil
}

func (l *Listing) add(r revision, index uint64, certainty Certainty, perhaps bool) {
	l.Changes = append(l.Changes, Change{Revision: r.main, Sub: r.sub, Index: index, Key: []byte(r.key), Delete: r.tomb, Value: r.value,
		Create: r.create, Version: r.version, Lease: r.lease, Old: r.old, Certainty: certainty, Perhaps: perhaps})
}

// chain fills in the old states, and what the changes come to.
func (l *Listing) chain() {
	at := map[string]int{} // in l.Keys
	for i := range l.Changes {
		c := &l.Changes[i]
		k, seen := at[string(c.Key)]
		if !seen {
			k = len(l.Keys)
			at[string(c.Key)] = k
			l.Keys = append(l.Keys, Key{Key: c.Key, First: c.Revision, Perhaps: true, Internal: internal(c.Key)})
			l.Keys[k].Lost = l.d.before(string(c.Key), c.Revision)
		}
		key := &l.Keys[k]
		if !c.Old.Known { // else it was evaluated
			c.Old = fits(key.Lost, *c, seen && !l.gaps, c.Revision > l.Compacted && l.d.has(string(c.Key), key.Lost.Mod))
		}
		if !seen {
			key.AtFork = c.Old
		}
		key.Changes++
		key.Revision = c.Revision
		key.Certainty = max(key.Certainty, c.Certainty)
		key.Perhaps = key.Perhaps && c.Perhaps
		key.Lost = State{Known: true}
		if !c.Delete {
			key.Lost = State{Known: true, Exists: true, Mod: c.Revision, Lease: c.Lease, Value: c.Value, Create: c.Create, Version: c.Version}
		}
	}
	for i := range l.Keys {
		// The database keeps the newest revision of each key up to the compaction, unless it is a tombstone.
		if k := &l.Keys[i]; k.Lost.Exists && k.Lost.Mod <= l.Compacted && !l.d.has(string(k.Key), k.Lost.Mod) {
			k.Lost, k.Presumed = State{Known: true}, true
		}
	}
	slices.SortStableFunc(l.Keys, func(x, y Key) int { return cmp.Compare(x.Revision, y.Revision) })
	leases := map[int64]bool{}
	for _, k := range l.Keys {
		if k.Lost.Exists && k.Lost.Lease != 0 && !k.Internal {
			leases[k.Lost.Lease] = true
		}
	}
	for id := range leases {
		l.Leases = append(l.Leases, Lease{ID: id, TTL: l.d.leases[id]})
	}
	slices.SortFunc(l.Leases, func(x, y Lease) int { return cmp.Compare(x.ID, y.ID) })
}

// internal: twok's token and nudges.
func internal(key []byte) bool {
	return string(key) == member.TokenKey || string(key) == rejoin.NudgeKey
}

// before is a key's state before a revision, as far as the database has it.
func (d *dir) before(key string, main int64) State {
	at := d.byKey[key]
	i, _ := slices.BinarySearchFunc(at, main, func(i int32, m int64) int { return cmp.Compare(d.revs[i].main, m) })
	if i == 0 || d.revs[at[i-1]].tomb {
		return State{Known: true}
	}
	return d.revs[at[i-1]].state()
}

// has says whether the database still has a revision of a key.
func (d *dir) has(key string, main int64) bool {
	at := d.byKey[key]
	_, ok := slices.BinarySearchFunc(at, main, func(i int32, m int64) int { return cmp.Compare(d.revs[i].main, m) })
	return ok
}

func (r revision) state() State {
	return State{Known: true, Exists: true, Mod: r.main, Lease: r.lease, Value: r.value, Create: r.create, Version: r.version}
}

// fits checks an old state against what a change says about it: revisions between may have been compacted. follows
// says that nothing came between, inDB that the database has the old state and everything behind it.
func fits(old State, c Change, follows, inDB bool) State {
	switch {
	case follows && (old.Exists || !c.Delete):
		return old
	case c.FromLog:
		return State{}
	case c.Delete && old.Exists && inDB: // a delete deletes something, and what it deleted was there until a later compaction
		return old
	case c.Delete:
		return State{}
	case c.Version == 1:
		return State{Known: true}
	case old.Exists && old.Version == c.Version-1 && old.Create == c.Create:
		return old
	}
	return State{}
}
