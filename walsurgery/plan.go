package walsurgery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/raft/v3/raftpb"

	"twok/internal/failpoint"
)

// Steps of Apply, each named after what has just been done.
const (
	stepAppendBegin     = "wal/append/begin"     // nothing yet
	stepAppendHardState = "wal/append/hardstate" // HardState{T+1, vote self, old commit}, synced
	stepAppendEntries   = "wal/append/entries"   // the entries, synced
	stepAppendCommit    = "wal/append/commit"    // HardState{commit=last}, in memory only
	stepAppendSynced    = "wal/append/synced"    // synced
)

var (
	_ = failpoint.Declare(stepAppendBegin)
	_ = failpoint.Declare(stepAppendHardState)
	_ = failpoint.Declare(stepAppendEntries)
	_ = failpoint.Declare(stepAppendCommit)
	_ = failpoint.Declare(stepAppendSynced)
)

// End is the exact end of a log: where its last record ends, and the running
// CRC there, which depends on every byte before it.
type End struct {
	Segment string `json:"segment"`
	Offset  int64  `json:"offset"`
	CRC     uint32 `json:"crc"`
}

// Plan is a survivor's append (P8), made by Log.Plan and carried out by
// Log.Apply. It is a value: it can be printed, stored as JSON and read back.
type Plan struct {
	Dir   string
	Owner Metadata
	At    End       // what the plan was made from
	State HardState // there
	Last  Position  // there
	Term  uint64    // of the append
	// Remove are the members to remove, one entry each, in this order. If it is
	// empty the append is one empty entry.
	Remove []uint64
	// Join, if not nil, are the peer URLs of the owner, which is added as a voter after the first JoinAfter
	// removals (P18).
	Join      []string
	JoinAfter int
	// Fork is the first entry of the append, End the last one; both in Term.
	Fork, End Position
}

// String tells in one line what would be written.
func (p Plan) String() string {
	what := "one empty entry"
	if len(p.Remove) > 0 {
		ids := make([]string, len(p.Remove))
		for i, id := range p.Remove {
			ids[i] = strconv.FormatUint(id, 16)
		}
		what = "the removal of " + strings.Join(ids, ", ")
	}
	if p.Join != nil {
		what = fmt.Sprintf("its own addition at %s and, %d of them before, %s", strings.Join(p.Join, ","), p.JoinAfter, what)
		if len(p.Remove) == 0 {
			what = "its own addition at " + strings.Join(p.Join, ",")
		}
	}
	return fmt.Sprintf("append to %s (%s, log ends at %s, term %d, commit %d): %s as %s to %s, and commit %d",
		p.Dir, p.Owner, p.Last, p.State.Term, p.State.Commit, what, p.Fork, p.End, p.End.Index)
}

// planJSON has IDs in hexadecimal, as etcd prints them: JSON numbers lose digits.
type planJSON struct {
	Dir     string   `json:"dir"`
	Member  string   `json:"member"`
	Cluster string   `json:"cluster"`
	At      End      `json:"at"`
	Term    uint64   `json:"term"`
	Vote    string   `json:"vote"`
	Commit  uint64   `json:"commit"`
	Last    Position `json:"last"`
	NewTerm uint64   `json:"new_term"`
	Remove  []string `json:"remove"`
	Join    []string `json:"join,omitempty"`
	After   int      `json:"join_after,omitempty"`
	Fork    Position `json:"fork"`
	End     Position `json:"end"`
}

// MarshalJSON writes the plan with its IDs in hexadecimal.
func (p Plan) MarshalJSON() ([]byte, error) {
	hex := func(id uint64) string { return strconv.FormatUint(id, 16) }
	j := planJSON{Dir: p.Dir, Member: hex(p.Owner.MemberID), Cluster: hex(p.Owner.ClusterID), At: p.At,
		Term: p.State.Term, Vote: hex(p.State.Vote), Commit: p.State.Commit, Last: p.Last,
		NewTerm: p.Term, Remove: []string{}, Join: p.Join, After: p.JoinAfter, Fork: p.Fork, End: p.End}
	for _, id := range p.Remove {
		j.Remove = append(j.Remove, hex(id))
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *Plan) UnmarshalJSON(b []byte) error {
	var j planJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	var errs []error
	hex := func(s string) uint64 {
		id, err := strconv.ParseUint(s, 16, 64)
		errs = append(errs, err)
		return id
	}
	q := Plan{Dir: j.Dir, Owner: Metadata{hex(j.Member), hex(j.Cluster)}, At: j.At,
		State: HardState{Term: j.Term, Vote: hex(j.Vote), Commit: j.Commit}, Last: j.Last, Term: j.NewTerm, Join: j.Join, JoinAfter: j.After, Fork: j.Fork, End: j.End}
	for _, s := range j.Remove {
		q.Remove = append(q.Remove, hex(s))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	*p = q
	return nil
}

// PlanOption changes what Plan computes.
type PlanOption func(*Plan)

// MinTerm makes the append's term at least t (a forced claim, P18).
func MinTerm(t uint64) PlanOption {
	return func(p *Plan) { p.Term = max(p.Term, t) }
}

// Plan computes the append that makes this member the only one (P8): in the term
// after the hard state's, the removal of each given member, or one empty entry
// if there is none. It reads and writes nothing. It does not judge whether the
// append is allowed (P4 to P6); it refuses only what would not be a legal log.
//
// The term is above the last entry's too: a torn save can leave an entry of a
// term that the hard state does not know yet.
//
// Errors: ErrTooOld; ErrCorrupt for an inconsistent log or one without an entry;
// a removal of oneself, of 0, or twice; a term that is used up.
func (l *Log) Plan(remove []uint64, opts ...PlanOption) (Plan, error) {
	fail := func(err error) (Plan, error) {
		return Plan{}, fmt.Errorf("plan an append to WAL %s: %w", l.dir, err)
	}
	s := l.sum
	switch {
	case !s.HasConfState:
		return fail(ErrTooOld)
	case s.Inconsistent != "":
		return fail(corrupt("%s", s.Inconsistent))
	case s.Torn:
		return fail(corrupt("the tail is torn and this log was opened for reading only"))
	case s.Last.Index == 0:
		return fail(corrupt("the log is empty, it holds no configuration"))
	}
	for i, id := range remove {
		if id == 0 || slices.Contains(remove[:i], id) {
			return fail(fmt.Errorf("cannot remove %x: it is zero or given twice", id))
		}
	}
	base := max(s.HardState.Term, s.Last.Term)
	n := uint64(max(len(remove), 1))
	p := Plan{Dir: l.dir, Owner: s.Metadata, At: l.end(), State: s.HardState, Last: s.Last, Term: base + 1, Remove: slices.Clone(remove)}
	for _, o := range opts {
		o(&p)
	}
	if p.Join != nil {
		n = uint64(len(remove)) + 1
	}
	if err := p.checkJoin(); err != nil {
		return fail(err)
	}
	if id := p.Owner.MemberID; id == 0 || slices.Contains(remove, id) {
		return fail(fmt.Errorf("the append cannot be member %x's: that is zero or removed by it", id))
	}
	if base == math.MaxUint64 || s.Last.Index > math.MaxUint64-n {
		return fail(fmt.Errorf("term %d or index %d cannot grow", base, s.Last.Index))
	}
	p.Fork = Position{Index: s.Last.Index + 1, Term: p.Term}
	p.End = Position{Index: s.Last.Index + n, Term: p.Term}
	return p, nil
}

func (l *Log) end() End {
	return End{Segment: l.s.segs[l.s.cur].name, Offset: l.s.off, CRC: l.s.crc}
}

// Apply carries out a plan made from the present end of this log (P8, P9):
// HardState{term, vote self, old commit}, then the entries, then
// HardState{term, vote self, commit = last}, each synced before the next. It
// truncates nothing. Then it reads the tail back; Summary and Entries show it.
//
// After an error, or a kill, the log holds a prefix of that order, each of which
// is a legal Raft state: etcd starts on it and has lost nothing, and Open, Plan,
// Apply complete the work. The Log itself is good for nothing but Close then.
//
// Errors: ErrStalePlan and ErrClosed (nothing was written), ErrNoSpace, or of
// the file system.
func (l *Log) Apply(p Plan) (err error) {
	switch {
	case l.w == nil || l.done:
		return fmt.Errorf("append to WAL %s: %w", l.dir, ErrClosed)
	case !l.madeFrom(p), p.Owner != l.sum.Metadata:
		return fmt.Errorf("append to WAL %s: %w", l.dir, ErrStalePlan)
	}
	l.done = true
	if err := l.save(p); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: %w", err, ErrNoSpace)
		}
		return fmt.Errorf("append to WAL %s: %w", l.dir, err)
	}
	if err := l.readBack(p); err != nil {
		return fmt.Errorf("append to WAL %s: read it back: %w", l.dir, err)
	}
	return nil
}

// madeFrom makes the plan again and compares.
func (l *Log) madeFrom(p Plan) bool {
	q, err := l.Plan(p.Remove, append(p.options(), As(p.Owner.MemberID))...)
	return err == nil && filepath.Clean(p.Dir) == filepath.Clean(q.Dir) && p.Owner == q.Owner && p.At == q.At && p.State == q.State &&
		p.Last == q.Last && p.Term == q.Term && p.Fork == q.Fork && p.End == q.End
}

func (l *Log) save(p Plan) (err error) {
	defer guard("append to WAL", l.dir, &err)
	ents, err := p.entries()
	if err != nil {
		return err
	}
	hs := func(commit uint64) *raftpb.HardState {
		return &raftpb.HardState{Term: proto.Uint64(p.Term), Vote: proto.Uint64(p.Owner.MemberID), Commit: proto.Uint64(commit)}
	}
	if err := failpoint.Hit(stepAppendBegin); err != nil {
		return err
	}
	// A new term or vote, and entries, make Save sync (raft.MustSync).
	if err := l.w.Save(hs(p.State.Commit), nil); err != nil {
		return err
	}
	if err := failpoint.Hit(stepAppendHardState); err != nil {
		return err
	}
	if err := l.w.Save(&raftpb.HardState{}, ents); err != nil {
		return err
	}
	if err := failpoint.Hit(stepAppendEntries); err != nil {
		return err
	}
	// A commit index alone does not.
	if err := l.w.Save(hs(p.End.Index), nil); err != nil {
		return err
	}
	if err := failpoint.Hit(stepAppendCommit); err != nil {
		return err
	}
	if err := l.w.Sync(); err != nil {
		return err
	}
	return failpoint.Hit(stepAppendSynced)
}

// entries are V1 changes with ID 0, removals without a context: any other form panics when
// etcd applies it. Every scalar is set, so that the bytes are those of etcd 3.5.
func (p Plan) entries() ([]*raftpb.Entry, error) {
	entry := func(i int, t raftpb.EntryType, data []byte) *raftpb.Entry {
		return &raftpb.Entry{Term: proto.Uint64(p.Term), Index: proto.Uint64(p.Fork.Index + uint64(i)), Type: t.Enum(), Data: data}
	}
	changes, err := p.changes()
	if err != nil || len(changes) == 0 {
		return []*raftpb.Entry{entry(0, raftpb.EntryNormal, nil)}, err
	}
	var ents []*raftpb.Entry
	for i, c := range changes {
		cc := &raftpb.ConfChange{Id: proto.Uint64(0), Type: raftpb.ConfChangeType(c.Type).Enum(), NodeId: proto.Uint64(c.NodeID), Context: c.Context}
		data, err := proto.Marshal(cc)
		if err != nil {
			return nil, err
		}
		ents = append(ents, entry(i, raftpb.EntryConfChange, data))
	}
	return ents, nil
}

// readBack reads what was appended and compares it with the plan.
func (l *Log) readBack(p Plan) error {
	segs, err := segmentNames(l.dir)
	if err != nil {
		return err
	}
	have := l.s.segs[len(l.s.segs)-1]
	for _, seg := range segs {
		if seg.seq > have.seq { // the append began a new one
			if err := l.s.open(seg); err != nil {
				return err
			}
		}
	}
	tail := &l.s.segs[l.s.cur]
	st, err := tail.f.Stat()
	if err != nil {
		return err
	}
	tail.size = st.Size()
	if err := l.s.read(); err != nil {
		return err
	}
	l.sum = l.s.summary()
	want := HardState{Term: p.Term, Vote: p.Owner.MemberID, Commit: p.End.Index}
	if l.sum.HardState != want || l.sum.Last != p.End || l.sum.Torn {
		return corrupt("it ends at %s with %+v, not at %s with %+v", l.sum.Last, l.sum.HardState, p.End, want)
	}
	changes, err := p.changes()
	if err != nil {
		return err
	}
	i := 0
	for e := range l.From(p.Fork.Index) {
		if e.Err != nil {
			return e.Err
		}
		ok := e.Term == p.Term && e.Kind == KindNormal && len(changes) == 0 && len(e.Data) == 0
		if i < len(changes) {
			c := changes[i]
			ok = e.Term == p.Term && e.Kind == KindConfChange && e.Change.Type == c.Type && e.Change.NodeID == c.NodeID && bytes.Equal(e.Change.Context, c.Context)
		}
		if !ok {
			return corrupt("entry %d is not what was planned", e.Index)
		}
		i++
	}
	return nil
}
