package walsurgery

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
)

// segment is one file of the log, open for reading.
type segment struct {
	name  string
	seq   uint64
	index uint64 // of the first entry that may be in it
	f     *os.File
	size  int64
}

// entryRef is where an entry is. Its data are read on demand, so that a log of
// gigabytes needs 56 bytes of memory for each entry.
type entryRef struct {
	index, term uint64
	off         int64 // of the raftpb.Entry in its segment
	n           uint32
	seg         uint32
	before      uint32 // running CRC before and after the entry
	after       uint32
	kind        EntryKind
}

type snapRecord struct {
	Position
	hasConf          bool
	voters, learners []uint64
	seg              int // where the record is
	off              int64
}

// scan is the result of reading a log from its first segment to its end.
type scan struct {
	dir  string
	segs []segment

	metaRaw []byte // nil: no metadata record yet
	meta    Metadata
	hs      HardState
	snaps   []snapRecord
	ents    []entryRef // contiguous
	gapEnd  uint64     // largest index that followed a gap, 0 if none did

	replacedBy snapRecord // the last received snapshot that replaced entries, see dropReplaced

	cur   int    // segment of the last valid frame
	off   int64  // its end
	crc   uint32 // running CRC there
	bytes int64  // sum of off over the segments before cur
	torn  error  // the torn write at the end, if any
}

// segmentNames returns the names of the segments in dir in order.
func segmentNames(dir string) ([]segment, error) {
	d, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read WAL directory %s: %w: %w", dir, err, ErrNoWAL)
	}
	if err != nil {
		return nil, fmt.Errorf("read WAL directory %s: %w", dir, err)
	}
	var segs []segment
	for _, e := range d { // sorted by name
		if !strings.HasSuffix(e.Name(), ".wal") {
			continue // *.tmp, *.broken: etcd ignores them too
		}
		s, ok := parseSegmentName(e.Name())
		if !ok || !e.Type().IsRegular() {
			return nil, unexpected("WAL directory %s: %q is not a segment", dir, e.Name())
		}
		if n := len(segs); n > 0 && s.seq != segs[n-1].seq+1 {
			return nil, corrupt("WAL directory %s: no segment between %s and %s", dir, segs[n-1].name, s.name)
		}
		segs = append(segs, s)
	}
	if len(segs) == 0 {
		return nil, fmt.Errorf("WAL directory %s holds no segment: %w", dir, ErrNoWAL)
	}
	return segs, nil
}

func parseSegmentName(name string) (segment, bool) {
	if len(name) != 16+1+16+4 || name[16] != '-' || strings.ToLower(name) != name {
		return segment{}, false
	}
	seq, err1 := strconv.ParseUint(name[:16], 16, 64)
	index, err2 := strconv.ParseUint(name[17:33], 16, 64)
	return segment{name: name, seq: seq, index: index}, err1 == nil && err2 == nil
}

// scanDir reads the log in dir. The files stay open; close releases them.
func scanDir(dir string) (*scan, error) {
	segs, err := segmentNames(dir)
	if err != nil {
		return nil, err
	}
	s := &scan{dir: dir}
	for _, seg := range segs {
		if err := s.open(seg); err != nil {
			s.close()
			return nil, err
		}
	}
	if err := s.read(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *scan) open(seg segment) error {
	f, err := os.Open(filepath.Join(s.dir, seg.name))
	if err != nil {
		return fmt.Errorf("open WAL segment: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open WAL segment: %w", err)
	}
	seg.f, seg.size = f, st.Size()
	s.segs = append(s.segs, seg)
	return nil
}

func (s *scan) close() {
	for i := range s.segs {
		if s.segs[i].f != nil {
			s.segs[i].f.Close()
			s.segs[i].f = nil
		}
	}
}

// read reads from the present position to the end of the log and checks what
// can only be judged there.
func (s *scan) read() error {
	for {
		seg := &s.segs[s.cur]
		r := newFrameReader(io.NewSectionReader(seg.f, s.off, seg.size-s.off), seg.name, seg.size, s.off, s.crc, s.cur == len(s.segs)-1)
		for {
			before := r.crc
			f, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if errors.Is(err, errTorn) {
				s.torn = err
				break
			}
			if err != nil {
				return fmt.Errorf("read WAL %s: %w", s.dir, err)
			}
			if err := s.record(f, before, r.crc); err != nil {
				return fmt.Errorf("read WAL %s: %s at %d: %w", s.dir, seg.name, f.dataOff, err)
			}
			s.off, s.crc = r.off, r.crc
		}
		if s.cur == len(s.segs)-1 {
			return s.finish()
		}
		s.bytes += s.off
		s.cur, s.off = s.cur+1, 0
	}
}

// record takes one record into the scan.
func (s *scan) record(f frame, before, after uint32) error {
	switch f.typ {
	case recMetadata:
		return s.metadata(f.data)
	case recEntry:
		e, err := parseEntry(f.data)
		if err != nil {
			return unexpected("entry does not decode: %v", err)
		}
		e.off, e.n, e.seg, e.before, e.after = f.dataOff, uint32(len(f.data)), uint32(s.cur), before, after
		return s.entry(e)
	case recState:
		var hs raftpb.HardState
		if err := proto.Unmarshal(f.data, &hs); err != nil {
			return unexpected("hard state does not decode: %v", err)
		}
		s.hs = HardState{Term: hs.GetTerm(), Vote: hs.GetVote(), Commit: hs.GetCommit()}
	case recSnapshot:
		var sn walpb.Snapshot
		if err := proto.Unmarshal(f.data, &sn); err != nil {
			return unexpected("snapshot record does not decode: %v", err)
		}
		s.snaps = append(s.snaps, snapRecord{
			Position: Position{Index: sn.GetIndex(), Term: sn.GetTerm()},
			hasConf:  sn.ConfState != nil || sn.GetIndex() == 0,
			voters:   slices.Clone(sn.ConfState.GetVoters()), learners: slices.Clone(sn.ConfState.GetLearners()),
			seg: s.cur, off: f.dataOff,
		})
	case recCRC:
	default:
		return unexpected("unknown record type %d", f.typ)
	}
	return nil
}

func (s *scan) metadata(raw []byte) error {
	if s.metaRaw != nil {
		if !slices.Equal(s.metaRaw, raw) {
			return corrupt("metadata differ from those of an earlier segment")
		}
		return nil
	}
	m, err := parseMetadata(raw)
	if err != nil {
		return err
	}
	s.meta, s.metaRaw = m, append([]byte{}, raw...)
	return nil
}

// entry appends e by the overwrite rule of Raft's storage (etcd wal.ReadAll). A
// gap starts the list anew: it is legal only behind a received snapshot, which
// finish checks.
func (s *scan) entry(e entryRef) error {
	if e.index == 0 {
		return unexpected("entry with index 0")
	}
	if n := len(s.ents); n > 0 {
		first, last := s.ents[0].index, s.ents[n-1].index
		switch {
		case e.index > last && e.index-last > 1:
			s.gapEnd = max(s.gapEnd, e.index)
			s.ents = s.ents[:0]
		case e.index < first:
			s.ents = s.ents[:0]
		default:
			s.ents = s.ents[:e.index-first]
		}
	}
	s.ents = append(s.ents, e)
	return nil
}

// finish checks what etcd's ReadAll would: entries without a gap from the newest
// valid snapshot on. And that the commit index is in the log, as raft requires.
func (s *scan) finish() error {
	if s.metaRaw == nil {
		return fmt.Errorf("read WAL %s: %w", s.dir, unexpected("no metadata record"))
	}
	snap := s.snapshot()
	if s.gapEnd > snap.Index+1 || len(s.ents) > 0 && s.ents[0].index > snap.Index+1 {
		return fmt.Errorf("read WAL %s: %w", s.dir, corrupt("entries after snapshot %s are missing", snap))
	}
	s.dropReplaced()
	if last := s.last(); s.hs.Commit > last.Index {
		return fmt.Errorf("read WAL %s: %w", s.dir, corrupt("commit index %d is beyond the end of the log, %s", s.hs.Commit, last))
	}
	return nil
}

// snapshot returns the newest valid snapshot record, zero if there is none.
func (s *scan) snapshot() snapRecord {
	for _, r := range slices.Backward(s.snaps) {
		if r.Index <= s.hs.Commit {
			return r
		}
	}
	return snapRecord{hasConf: true}
}

func (s *scan) last() Position {
	snap := s.snapshot().Position
	if n := len(s.ents); n > 0 && s.ents[n-1].index > snap.Index {
		return Position{Index: s.ents[n-1].index, Term: s.ents[n-1].term}
	}
	return snap
}

func (s *scan) summary() Summary {
	snap := s.snapshot()
	sum := Summary{
		Metadata: s.meta, HardState: s.hs,
		Snapshot: snap.Position, HasConfState: snap.hasConf, Voters: snap.voters, Learners: snap.learners,
		Last: s.last(), Entries: len(s.ents), Segments: len(s.segs), LogBytes: s.bytes + s.off,
	}
	for _, r := range s.snaps {
		if r.Index <= s.hs.Commit {
			sum.Snapshots = append(sum.Snapshots, r.Position)
		}
	}
	if len(s.ents) > 0 {
		sum.First = Position{Index: s.ents[0].index, Term: s.ents[0].term}
	}
	for _, e := range s.ents {
		switch e.kind {
		case KindConfChange:
			sum.ConfChanges++
		case KindOther:
			sum.Unsupported++
		}
	}
	sum.Inconsistent = s.inconsistent(snap)
	if s.torn != nil {
		sum.Torn, sum.TornAt = true, s.torn.Error()
	}
	for _, seg := range s.segs {
		sum.Bytes += seg.size
	}
	return sum
}

// term returns the term of the entry at index, if the log holds it.
func (s *scan) term(index uint64) (uint64, bool) {
	if n := len(s.ents); n > 0 && index >= s.ents[0].index && index <= s.ents[n-1].index {
		return s.ents[index-s.ents[0].index].term, true
	}
	return 0, false
}

// dropReplaced takes out of the log what a received snapshot has replaced: the
// entries up to a valid snapshot record that has another term than the entry
// there, and all if the log ends before it. The records stay in the WAL, but
// they are not this member's history.
func (s *scan) dropReplaced() {
	for _, r := range s.snaps {
		if r.Index == 0 || r.Index > s.hs.Commit || len(s.ents) == 0 {
			continue
		}
		first, last := s.ents[0].index, s.ents[len(s.ents)-1].index
		if last < r.Index {
			s.ents = nil
		} else if t, ok := s.term(r.Index); ok && t != r.Term {
			s.replacedBy = r
			s.ents = s.ents[r.Index-first+1:]
		}
	}
}

// inconsistent tells why the log after snap cannot be the history that continues
// it, "" if nothing speaks against it.
//
// When a member receives a snapshot raft drops its log, but records stay in the
// WAL until the next entry overwrites them; etcd restarted in between takes those
// after the snapshot back. And a snapshot record above the commit index counts
// for nothing until the commit index passes it: if it does not belong to this
// log, an append would bring it to life.
func (s *scan) inconsistent(snap snapRecord) string {
	for _, r := range s.snaps {
		if r.Index <= s.hs.Commit {
			continue
		}
		if t, ok := s.term(r.Index); !ok || t != r.Term {
			return fmt.Sprintf("snapshot record %s is above the commit index %d and is not in the log", r.Position, s.hs.Commit)
		}
	}
	prev := snap.Term
	for _, e := range s.ents {
		if r := s.replacedBy; e.index > r.Index && (int(e.seg) < r.seg || int(e.seg) == r.seg && e.off < r.off) {
			return fmt.Sprintf("entry %d@%d was saved before snapshot %s, which replaced it", e.index, e.term, r.Position)
		}
		if e.index > snap.Index {
			if e.term < prev {
				return fmt.Sprintf("entry %d@%d follows one of term %d", e.index, e.term, prev)
			}
			prev = e.term
		}
	}
	return ""
}
