package lostwrites

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// Fork is where two histories part.
type Fork struct {
	// Index is the first entry of the set-aside directory's log that the other history does not have.
	Index uint64
	// Other is the first entry of the other history that this one does not have, as far as it is known.
	Other walsurgery.Position
	// Source says in words where that comes from.
	Source string
	// Exact: nothing below Index differs. Otherwise entries right below it, never acknowledged before the fork, may
	// differ too.
	Exact bool
}

// Sources tell where the fork lies. Exactly one of Record, At and Against is set.
type Sources struct {
	// Record is the arbiter's.
	Record *arbiter.Record
	// At is the first entry of the other history's append: the fork of `twok arbiter history`.
	At *walsurgery.Position
	// Against is the other side's data directory, its etcd stopped.
	Against string
}

func (d *dir) fork(s Sources) (Fork, error) {
	switch {
	case s.Record != nil:
		return d.forkOfRecord(*s.Record)
	case s.At != nil:
		return d.forkAt(*s.At, "--fork")
	case s.Against != "":
		return d.forkAgainst(s.Against)
	}
	return Fork{}, fmt.Errorf("no source: %w", ErrForkUnknown)
}

// forkAt takes the first entry of the other history's append. Its term is one that nobody else uses (P8, P18), so an entry of
// that very term here means that the histories are one.
func (d *dir) forkAt(p walsurgery.Position, source string) (Fork, error) {
	if p.Index == 0 || p.Term == 0 {
		return Fork{}, fmt.Errorf("fork %s: %w", p, ErrForkUnknown)
	}
	if t, ok := d.log.Term(p.Index); ok && t == p.Term {
		return Fork{}, fmt.Errorf("fork %s: %w", p, ErrSameHistory)
	}
	return Fork{Index: min(p.Index, d.operated()), Other: p, Source: source}, nil
}

// operated is the first entry of this member's own appends (P8) since the pair was last whole, as the token says; the end of all
// indices if there is none. The other side has not got it, or the pair would have been whole again, unless it was on its way back. An append
// begins its term with a change of the members; an elected leader begins it with an empty entry.
func (d *dir) operated() uint64 {
	since := uint64(0)
	if d.token.Present {
		for e := range d.log.From(0) {
			if e.Kind == walsurgery.KindNormal && writesToken(e.Data, d.token) {
				since = e.Index
			}
		}
	}
	for e := range d.log.Changes() {
		if e.Index <= since || e.Kind != walsurgery.KindConfChange {
			continue
		}
		if before, ok := d.log.Term(e.Index - 1); ok && before < e.Term {
			return e.Index
		}
	}
	return math.MaxUint64
}

func writesToken(data []byte, tok failover.Token) bool {
	if !bytes.Contains(data, []byte(member.TokenKey)) {
		return false
	}
	r, err := member.DecodeRequest(data)
	if err != nil {
		return false
	}
	for _, p := range puts(r) {
		if string(p.Key) == member.TokenKey {
			t, _, err := member.DecodeToken(p.Value)
			return err == nil && t.RecordID == tok.RecordID && t.Generation == tok.Generation
		}
	}
	return false
}

// forkOfRecord takes the first fork of all claims that this directory's history does not have. A claim is of its own history if its
// log holds the claim's first entry; where the log no longer reaches back, if its token is as young, or if it names this member.
//
// The other side's log may end behind the fork of a claim of this side's own that it never saw: with entries that never were
// committed. So the own claims since the pair was last whole count too, unless the end of the other log, as the record has it,
// shows that this one holds it.
func (d *dir) forkOfRecord(rec arbiter.Record) (Fork, error) {
	if rec.ClusterID != d.sum.ClusterID {
		return Fork{}, fmt.Errorf("the record is of cluster %016x, the directory of %016x: %w", rec.ClusterID, d.sum.ClusterID, ErrOtherCluster)
	}
	if d.token.Present && d.token.RecordID != rec.ID {
		return Fork{}, fmt.Errorf("the record is %s, the directory is bound to %s: %w", rec.ID, d.token.RecordID, ErrOtherCluster)
	}
	var first arbiter.HistoryEntry
	own := uint64(math.MaxUint64)
	n := rec.HistoryCount()
	for _, h := range rec.History[:n] {
		switch {
		case h.Fork.Index == 0 && h.Last > d.token.Generation:
			return Fork{}, fmt.Errorf("the record does not know the fork of generation %d yet, the member that it names has not claimed: %w", h.First, ErrForkUnknown)
		case d.owns(h):
			if h.Last > d.token.Generation {
				own = min(own, h.Fork.Index)
			}
		case first.First == 0 || h.Fork.Index < first.Fork.Index:
			first = h
		}
	}
	if first.First == 0 {
		return Fork{}, fmt.Errorf("no claim of the record overrides this directory: %w", ErrSameHistory)
	}
	if n == arbiter.HistoryLen && d.token.Generation+1 < rec.History[0].First && !d.owns(rec.History[0]) {
		return Fork{}, fmt.Errorf("the record has forgotten the claims before generation %d: %w", rec.History[0].First, ErrForkUnknown)
	}
	f := Fork{Index: min(first.Fork.Index, own), Other: walsurgery.Position(first.Fork), Source: fmt.Sprintf("the record's history, generation %d", first.First)}
	// The other log's end when it was claimed with: the same entry here means that all below is the same.
	end := walsurgery.Position(rec.ClaimEnd)
	if newest, _ := rec.Newest(); newest == first && first.Last == rec.Generation && end.Index+1 == first.Fork.Index {
		switch term, ok := d.log.Term(end.Index); {
		case ok && term == end.Term:
			f.Index, f.Exact = first.Fork.Index, true
		case ok:
			f.Index = d.differs(end)
			before, ok := d.log.Term(f.Index - 1)
			f.Exact = ok && before == end.Term // one leader wrote both (Raft, log matching)
		}
	}
	return f, nil
}

func (d *dir) owns(h arbiter.HistoryEntry) bool {
	if t, ok := d.log.Term(h.Fork.Index); ok {
		return t == h.Fork.Term
	}
	if h.Fork.Index > d.sum.Last.Index {
		return false
	}
	return d.token.Present && h.Last <= d.token.Generation || h.Survivor == d.sum.MemberID
}

// differs finds the first entry that is surely not in a log that ends at end with another term than this one has there: the first of a
// younger term, or, if this log's term is the older one, the entry at the end itself.
func (d *dir) differs(end walsurgery.Position) uint64 {
	at := end.Index
	for at > d.sum.First.Index {
		t, ok := d.log.Term(at - 1)
		if !ok || t <= end.Term {
			break
		}
		at--
	}
	return at
}

// forkAgainst compares the terms of two logs: equal index and term is equal history up to there.
func (d *dir) forkAgainst(path string) (Fork, error) {
	other, err := memberDir(path)
	if err != nil {
		return Fork{}, err
	}
	log, err := walsurgery.Inspect(nil, filepath.Join(other, "wal"))
	if err != nil {
		return Fork{}, fmt.Errorf("read the other side: %w", err)
	}
	defer log.Close()
	sum := log.Summary()
	if sum.ClusterID != d.sum.ClusterID {
		return Fork{}, fmt.Errorf("%s is of cluster %x, the directory of %x: %w", path, sum.ClusterID, d.sum.ClusterID, ErrOtherCluster)
	}
	last := min(sum.Last.Index, d.sum.Last.Index)
	for i := last; i > 0; i-- {
		mine, ok1 := d.log.Term(i)
		theirs, ok2 := log.Term(i)
		if !ok1 || !ok2 {
			return Fork{}, fmt.Errorf("the logs have no entry in common: this one begins at %s, the other at %s: %w", d.sum.First, sum.First, ErrForkUnknown)
		}
		if mine != theirs {
			continue
		}
		f := Fork{Index: i + 1, Exact: true, Source: "the log in " + other}
		if t, ok := log.Term(i + 1); ok {
			f.Other = walsurgery.Position{Index: i + 1, Term: t}
		}
		return f, nil
	}
	return Fork{}, fmt.Errorf("the logs have no entry in common: %w", ErrForkUnknown)
}
