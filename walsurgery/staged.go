package walsurgery

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"twok/internal/failpoint"
)

// Steps of ApplyStaged, each named after what has just been done. In the copy the steps of Apply follow the second one.
const (
	stepStagedBegin     = "wal/staged/begin"     // leftovers settled, locks taken
	stepStagedSegment   = "wal/staged/segment"   // one segment of the copy written and synced
	stepStagedAppended  = "wal/staged/appended"  // the append made in the copy, synced and read back
	stepStagedExchanged = "wal/staged/exchanged" // the copy has the WAL's name
	stepStagedAside     = "wal/staged/aside"     // the old log has its own
)

var (
	_ = failpoint.Declare(stepStagedBegin)
	_ = failpoint.Declare(stepStagedSegment)
	_ = failpoint.Declare(stepStagedAppended)
	_ = failpoint.Declare(stepStagedExchanged)
	_ = failpoint.Declare(stepStagedAside)
)

// appendInfix names the copy in which ApplyStaged appends: "<wal>.append-<term>".
const appendInfix = ".append-"

// As makes the append another member's, the one that a removed member becomes (P18): ApplyStaged gives the log that
// ID in the same step. Apply refuses such a plan.
func As(id uint64) PlanOption {
	return func(p *Plan) { p.Owner.MemberID = id }
}

// ApplyStaged is Apply in one step (P18): the log is copied to "<wal>.append-<term>", under the plan's member ID, the
// append is made and synced in the copy and read back, and the copy is exchanged with the WAL. So under
// the WAL's name stands the log as it was, or the one with the whole append, at every instant. The old log becomes
// "<wal>.before-<old ID>" (or ….N where that exists), whose path is returned. The caller holds the flock of member/snap/db: this
// Log's lock is given back before the copy is made. It needs room for the WAL and 128 MB (CheckSpace).
//
// After an error, or a kill, before the exchange the log is as it was; an unfinished copy is removed by the next
// ApplyStaged, or by Settle. An error after the exchange says so. The Log itself is good for nothing but
// Close in any case; Open shows the new one.
//
// Errors: ErrStalePlan, ErrClosed, ErrLocked, ErrNoSpace, ErrCannotExchange, ErrCorrupt, or of the file system.
func (l *Log) ApplyStaged(p Plan) (aside string, err error) {
	walDir := filepath.Clean(l.dir)
	defer guard("append to WAL", walDir, &err)
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("append to a copy of WAL %s: %w", walDir, err)
	}
	switch {
	case l.w == nil || l.done:
		return fail(ErrClosed)
	case !l.madeFrom(p):
		return fail(ErrStalePlan)
	}
	l.done = true
	if err := exchangeable(walDir); err != nil {
		return fail(err)
	}
	if err := l.Close(); err != nil { // it lets go of what etcd's code has preallocated
		return "", err
	}
	if _, err := Settle(l.lg, walDir); err != nil {
		return "", err
	}
	locks, err := lockSegments(walDir)
	if err != nil {
		return "", err
	}
	defer locks.release()
	if err := CheckSpace(walDir); err != nil {
		return "", err
	}
	if err := failpoint.Hit(stepStagedBegin); err != nil {
		return "", err
	}
	staging := walDir + appendInfix + strconv.FormatUint(p.Term, 16)
	if err := stage(walDir, staging, copier{newID: p.Owner.MemberID, raw: p.Owner == l.sum.Metadata, step: stepStagedSegment}); err != nil {
		return "", err
	}
	copied, err := l.appendToCopy(p, staging)
	if err != nil {
		err = fmt.Errorf("append to a copy of WAL %s: %w", walDir, err)
		return "", dropCopy(err, staging)
	}
	defer copied.release()
	if err := failpoint.Hit(stepStagedAppended); err != nil {
		return "", err
	}
	if aside, err = takePlace(walDir, staging, l.sum.MemberID, stepStagedExchanged, stepStagedAside); err != nil {
		return aside, fmt.Errorf("append to a copy of WAL %s: %w", walDir, err)
	}
	l.lg.Info("the WAL with the append took the place of the old one", zap.String("wal", walDir), zap.Stringer("fork", p.Fork), zap.String("replaced", aside))
	return aside, nil
}

// exchangeable refuses, before a copy is made, what is not beside its copy: a symlink, or a mount of its own, on which the
// room for it was not looked at either.
func exchangeable(walDir string) error {
	var wal, parent unix.Stat_t
	if err := errors.Join(unix.Lstat(walDir, &wal), unix.Stat(filepath.Dir(walDir), &parent)); err != nil {
		return err
	}
	switch {
	case wal.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is a symlink: %w", walDir, ErrCannotExchange)
	case wal.Dev != parent.Dev:
		return fmt.Errorf("%s is a mount of its own: %w", walDir, ErrCannotExchange)
	}
	return nil
}

// appendToCopy makes the append in the copy and returns etcd's locks on it.
func (l *Log) appendToCopy(p Plan, staging string) (segmentLocks, error) {
	c, err := Open(l.lg, staging)
	if err != nil {
		return nil, err
	}
	q, err := c.Plan(p.Remove, p.options()...)
	if err == nil && (q.Owner != p.Owner || q.State != p.State || q.Last != p.Last || q.Fork != p.Fork || q.End != p.End) {
		err = fmt.Errorf("in the copy it would be %s: %w", q, ErrStalePlan)
	}
	if err == nil {
		err = c.Apply(q)
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	return lockSegments(staging)
}

// options are those by which the plan was made, but for its owner.
func (p Plan) options() []PlanOption {
	opts := []PlanOption{MinTerm(p.Term)}
	if p.Join != nil {
		opts = append(opts, Join(p.Join, p.JoinAfter))
	}
	return opts
}

// Settle finishes what a killed ApplyStaged left beside walDir: a copy that was never exchanged is removed, an old log
// that was is set aside, and its path returned. It does nothing where there is nothing. The caller holds
// the flock of member/snap/db.
//
// The name has the term of the append, which nobody else has: a log whose hard state lies below it has never been that copy, so
// what stands there is the copy. Where the hard state has reached it nothing is removed; nor is a log that goes on above it.
//
// Errors: of Inspect; something foreign in the copy, or more than the append; of the file system.
func Settle(lg *zap.Logger, walDir string) (aside string, err error) {
	walDir = filepath.Clean(walDir)
	defer guard("settle WAL", walDir, &err)
	lg = quiet(lg)
	left, err := beside(walDir, appendInfix)
	if err != nil || len(left) == 0 {
		return "", err
	}
	s, err := scanDir(walDir)
	if err != nil {
		return "", err
	}
	term := s.summary().HardState.Term
	s.close()
	for _, dir := range left {
		of, err := strconv.ParseUint(strings.TrimPrefix(filepath.Base(dir), filepath.Base(walDir)+appendInfix), 16, 64)
		if err != nil {
			continue // not ours
		}
		if term < of {
			if lived(dir, of) {
				return aside, fmt.Errorf("settle WAL %s: %s goes on after its append, so it was this member's log once, and the exchange was undone: move one of them away", walDir, dir)
			}
			if err := removeCopy(dir); err != nil {
				return aside, err
			}
			lg.Info("removed the unfinished copy of an interrupted append", zap.String("dir", dir))
			continue
		}
		label := "leftover"
		if md, err := ReadMetadata(dir); err == nil {
			label = strconv.FormatUint(md.MemberID, 16)
		}
		if aside, err = setAside(walDir, dir, label); err != nil {
			return "", err
		}
		lg.Info("set the replaced WAL aside after an interrupted append", zap.String("dir", aside))
	}
	return aside, nil
}

// lived says whether a log goes on above the term of its append: then it was no copy only. One that cannot be read is unfinished.
func lived(dir string, of uint64) bool {
	s, err := scanDir(dir)
	if err != nil {
		return false
	}
	defer s.close()
	sum := s.summary()
	return max(sum.HardState.Term, sum.Last.Term) > of
}

// preallocated is what etcd's code puts into a log that it has opened for writing.
var preallocated = regexp.MustCompile(`^[01]\.tmp$`)
