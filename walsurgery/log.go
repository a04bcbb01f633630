package walsurgery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"

	"twok/internal/failpoint"
)

// Steps of Open's repair of a torn tail.
const (
	stepRepairCopied = "wal/repair/copied" // the broken segment was copied and the copy synced
	stepRepairCut    = "wal/repair/cut"    // it was truncated, not yet synced
)

var (
	_ = failpoint.Declare(stepRepairCopied)
	_ = failpoint.Declare(stepRepairCut)
)

// inspectAttempts bounds how often Inspect reads again: beside a running etcd a
// segment can be purged, or a page be half written, at the wrong moment.
const inspectAttempts = 4

// Log is a WAL that was read to its end. Its methods are not safe for
// concurrent use.
type Log struct {
	lg   *zap.Logger
	dir  string
	s    *scan
	sum  Summary
	w    *wal.WAL // nil: read only
	done bool     // Apply was called, Close is all that is left
}

// Inspect reads the log in walDir. It creates, repairs, locks and changes
// nothing and may run beside a living etcd, where it sees a prefix of what etcd
// has handed to the kernel; it reads everything, so it does not belong into a
// poll loop (half a second for 24 MB). The files stay open until Close.
//
// Errors: ErrNoWAL, ErrCorrupt, ErrUnexpectedFormat, or of the file system.
func Inspect(lg *zap.Logger, walDir string) (l *Log, err error) {
	defer guard("inspect WAL", walDir, &err)
	for attempt := 1; ; attempt++ {
		var s *scan
		s, err = scanDir(walDir)
		if err == nil {
			// Beside a running etcd what is behind the end is the present, not damage.
			if locked, lerr := Locked(walDir); lerr == nil && !locked {
				if err := s.checkBeyond(); err != nil {
					s.close()
					return nil, err
				}
			}
			return &Log{lg: quiet(lg), dir: walDir, s: s, sum: s.summary()}, nil
		}
		passing := errors.Is(err, ErrCorrupt) || errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNoWAL)
		if !passing || attempt == inspectAttempts {
			return nil, err
		}
		if locked, lerr := Locked(walDir); lerr == nil && !locked {
			return nil, err // nobody writes: it will not change
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Open reads the log in walDir and takes etcd's own WAL lock on it, until Close.
// A torn tail is cut off once, as etcd does when it starts: the segment is
// copied to "<segment>.broken" first. Otherwise nothing is changed, except that
// etcd's code preallocates a file for the next segment and removes it on Close.
//
// Errors: ErrLocked, ErrNoWAL, ErrNoSpace (less than 128 MB free), ErrCorrupt,
// ErrUnexpectedFormat, or of the file system.
func Open(lg *zap.Logger, walDir string) (l *Log, err error) {
	defer guard("open WAL", walDir, &err)
	lg = quiet(lg)
	if err := mustBeUnlocked(walDir); err != nil {
		return nil, err
	}
	if err := spaceFor(walDir, reserve); err != nil {
		return nil, err
	}
	s, err := scanDir(walDir)
	if err != nil {
		return nil, err
	}
	if err := s.checkBeyond(); err != nil {
		s.close()
		return nil, err
	}
	if s.mustRepair() {
		s.close()
		if s, err = repair(lg, walDir); err != nil {
			return nil, err
		}
	}
	l = &Log{lg: lg, dir: walDir, s: s, sum: s.summary()}
	if err := l.openForAppend(); err != nil {
		s.close()
		return nil, err
	}
	if err := adoptOwner(walDir); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// openForAppend lets etcd's code open the log at the snapshot where etcd would
// begin, and compares what the two readers found.
func (l *Log) openForAppend() (err error) {
	var w *wal.WAL
	defer func() {
		if err != nil && w != nil {
			err = errors.Join(err, closeWAL(l.dir, w))
		}
	}()
	defer guard("open WAL", l.dir, &err)
	snap := l.sum.Snapshot
	w, err = wal.Open(l.lg, l.dir, &walpb.Snapshot{Index: proto.Uint64(snap.Index), Term: proto.Uint64(snap.Term)})
	if err != nil {
		w = nil
		return l.translate("open WAL", err)
	}
	meta, hs, ents, err := w.ReadAll()
	if err != nil {
		return l.translate("read WAL", err)
	}
	last := snap
	if n := len(ents); n > 0 {
		last = Position{Index: ents[n-1].GetIndex(), Term: ents[n-1].GetTerm()}
	}
	if got := (HardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}); !slices.Equal(meta, l.s.metaRaw) ||
		got != l.sum.HardState || last != l.sum.Last || uint64(len(ents)) != l.sum.Last.Index-snap.Index {
		return fmt.Errorf("open WAL %s: %w", l.dir, corrupt("etcd's reader ends at %s with %+v, ours at %s with %+v", last, got, l.sum.Last, l.sum.HardState))
	}
	l.w = w
	return nil
}

// translate turns an error of etcd's wal package into one of ours.
func (l *Log) translate(op string, err error) error {
	switch {
	case errors.Is(err, fileutil.ErrLocked):
		err = ErrLocked
	case errors.Is(err, unix.ENOSPC):
		err = fmt.Errorf("%w: %w", err, ErrNoSpace)
	case errors.Is(err, wal.ErrFileNotFound):
		err = fmt.Errorf("%w: %w", err, ErrNoWAL)
	case errors.Is(err, wal.ErrCRCMismatch), errors.Is(err, wal.ErrSnapshotMismatch), errors.Is(err, wal.ErrSnapshotNotFound),
		errors.Is(err, wal.ErrSliceOutOfRange), errors.Is(err, wal.ErrMetadataConflict), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: %w", err, ErrCorrupt)
	}
	return fmt.Errorf("%s %s: %w", op, l.dir, err)
}

// mustRepair: the end is torn, or would be after an append: what is left of a
// file whose size is no multiple of 8 looks like an incomplete frame header.
func (s *scan) mustRepair() bool {
	return s.torn != nil || s.segs[len(s.segs)-1].size%frameHeader != 0
}

// repair cuts off the torn tail of the last segment under its lock, keeping the
// whole segment as a copy, and reads the log again.
func repair(lg *zap.Logger, walDir string) (*scan, error) {
	locks, err := lockSegments(walDir)
	if err != nil {
		return nil, err
	}
	defer locks.release()
	s, err := scanDir(walDir)
	if err != nil || !s.mustRepair() {
		return s, err
	}
	seg, off, torn := s.segs[len(s.segs)-1], s.off, s.torn
	s.close()
	name := filepath.Join(walDir, seg.name)
	copied, err := copyAside(name)
	if err != nil {
		return nil, fmt.Errorf("repair WAL %s: keep the broken segment: %w", walDir, err)
	}
	if err := failpoint.Hit(stepRepairCopied); err != nil {
		return nil, err
	}
	f := locks[len(locks)-1]
	if err := f.Truncate(off); err != nil {
		return nil, fmt.Errorf("repair WAL %s: %w", walDir, err)
	}
	if err := failpoint.Hit(stepRepairCut); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("repair WAL %s: %w", walDir, err)
	}
	lg.Info("cut off a torn write at the end of the WAL", zap.String("segment", name), zap.Int64("offset", off),
		zap.String("kept", copied), zap.Error(torn))
	s, err = scanDir(walDir)
	if err == nil && s.mustRepair() {
		s.close()
		return nil, fmt.Errorf("repair WAL %s: %w", walDir, corrupt("still torn after the repair"))
	}
	return s, err
}

// copyAside copies name to name.broken, or name.broken.N where that exists, and
// syncs copy and directory.
func copyAside(name string) (string, error) {
	src, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer src.Close()
	to := name + ".broken"
	for n := 1; ; n++ {
		dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			to = fmt.Sprintf("%s.broken.%d", name, n)
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = io.Copy(dst, src)
		if err == nil {
			err = dst.Sync()
		}
		if err := errors.Join(err, dst.Close()); err != nil {
			return "", err
		}
		return to, syncDir(filepath.Dir(name))
	}
}

// Summary describes the log as it was when it was read, or after Apply.
func (l *Log) Summary() Summary {
	s := l.sum
	s.Voters, s.Learners, s.Snapshots = slices.Clone(s.Voters), slices.Clone(s.Learners), slices.Clone(s.Snapshots)
	return s
}

// Entries gives all entries from Summary.First to the end of the log, oldest
// first: those before Summary.Snapshot too, as far back as the segments reach.
// Each is read again from disk and verified; one that fails comes as KindOther
// with Err set, and callers deny on it.
func (l *Log) Entries() iter.Seq[Entry] { return l.From(0) }

// From is Entries from the given index on.
func (l *Log) From(index uint64) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		ents := l.s.ents
		i := sort.Search(len(ents), func(i int) bool { return ents[i].index >= index })
		for _, e := range ents[i:] {
			if !yield(l.s.load(e)) {
				return
			}
		}
	}
}

// Changes is Entries without those of KindNormal: every membership change in the
// log, and whatever else is not a plain request. No other entry is read.
func (l *Log) Changes() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, e := range l.s.ents {
			if e.kind != KindNormal && !yield(l.s.load(e)) {
				return
			}
		}
	}
}

// Term returns the term of the entry at index, or of the snapshot there; false
// if the log no longer or not yet reaches it.
func (l *Log) Term(index uint64) (uint64, bool) {
	if t, ok := l.s.term(index); ok {
		return t, true
	}
	for _, p := range l.sum.Snapshots {
		if p.Index == index && index > 0 {
			return p.Term, true
		}
	}
	return 0, false
}

// Close releases the files and, after Open, the lock, also when it returns an
// error of the last sync. It may be called twice.
func (l *Log) Close() error {
	l.s.close()
	w := l.w
	l.w = nil
	if w == nil {
		return nil
	}
	return errors.Join(closeWAL(l.dir, w), adoptOwner(l.dir))
}

func closeWAL(dir string, w *wal.WAL) (err error) {
	defer guard("close WAL", dir, &err)
	if err := w.Close(); err != nil {
		// etcd's Close keeps its locks when its last sync fails, and then neither
		// etcd nor another Open gets them while this process lives.
		w.SetUnsafeNoFsync()
		_ = w.Close()
		return fmt.Errorf("close WAL %s: %w", dir, err)
	}
	return nil
}

// quiet returns a logger under which etcd's code cannot end the process.
func quiet(lg *zap.Logger) *zap.Logger {
	if lg == nil {
		lg = zap.NewNop()
	}
	return lg.WithOptions(zap.WithFatalHook(zapcore.WriteThenPanic))
}

// guard turns a panic of etcd's code, or of ours, into an error.
func guard(op, object string, err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%s %s: %w", op, object, unexpected("the storage code gave up: %v", r))
	}
}
