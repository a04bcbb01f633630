package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/rejoin"
	"twok/walsurgery"
)

// preflight reads the WAL beside the running etcd, before it is stopped for it (P7).
func (a *Agent) preflight(e *failover.Event) error {
	l, err := walsurgery.Inspect(a.log, a.cfg.walDir())
	if err != nil {
		e.Outcome, e.Why = failover.Failed, walReason(err)
		return err
	}
	if err := walsurgery.CheckSpace(a.cfg.walDir()); err != nil {
		e.Outcome, e.Why = failover.Failed, failover.DiskFull
		return errors.Join(err, l.Close())
	}
	e.Outcome = failover.Done
	return l.Close()
}

func walReason(err error) failover.Reason {
	switch {
	case errors.Is(err, walsurgery.ErrTooOld):
		return failover.WALOld
	case errors.Is(err, walsurgery.ErrNoSpace):
		return failover.DiskFull
	case errors.Is(err, walsurgery.ErrLocked):
		return failover.WALInUse
	case errors.Is(err, walsurgery.ErrNoWAL):
		return failover.DiskBlank
	}
	return failover.WALUnreadable
}

// stop ends etcd and takes the locks. Held locks are verified instead.
func (a *Agent) stop(ctx context.Context) error {
	if a.sec.lock != nil {
		if err := a.sec.lock.Verify(); err == nil {
			return nil
		}
		if err := a.unlock(); err != nil {
			a.log.Warn("stale locks", zap.Error(err))
		}
	}
	if a.watch != nil && a.watch.blank.Load() {
		if err := member.Touch(a.cfg.DataDir); err != nil {
			return err
		}
	}
	for {
		lock, err := member.Acquire(ctx, a.cfg.DataDir, a.cfg.Etcd.Stop)
		if err != nil {
			return err
		}
		a.sec = section{lock: lock}
		locked, err := a.openLog()
		if err != nil {
			return errors.Join(err, a.unlock())
		}
		if !locked {
			return nil
		}
		// An etcd holds the WAL although the database's lock was free: start over.
		if err := a.unlock(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop etcd: %w", walsurgery.ErrLocked)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// openLog looks for room and opens the WAL, or says in the section why not. locked: an etcd holds it.
func (a *Agent) openLog() (locked bool, err error) {
	if a.sec.log != nil {
		if err := a.sec.log.Close(); err != nil {
			a.log.Warn("closing the log", zap.Error(err))
		}
		a.sec.log = nil
	}
	if _, err := walsurgery.Settle(a.log, a.cfg.walDir()); err != nil && !errors.Is(err, fs.ErrNotExist) { // a forced claim was killed: its copy takes space
		a.log.Warn("what an interrupted append left beside the WAL stays there", zap.Error(err))
	}
	if a.sec.space = walsurgery.CheckSpace(a.cfg.walDir()); errors.Is(a.sec.space, fs.ErrNotExist) {
		a.sec.space = nil // no WAL to be copied; a new one looks for its room itself
	}
	if a.sec.space == nil {
		a.sec.log, a.sec.walErr = walsurgery.Open(a.log, a.cfg.walDir())
	} else {
		a.sec.log, a.sec.walErr = walsurgery.Inspect(a.log, a.cfg.walDir())
	}
	locked = errors.Is(a.sec.walErr, walsurgery.ErrLocked)
	if !locked && (a.sec.walErr != nil || a.sec.space != nil) {
		// Nothing of ours holds the WAL: prove at least that nobody else does.
		if locked, err = walsurgery.Locked(a.cfg.walDir()); errors.Is(err, walsurgery.ErrNoWAL) {
			err = nil
		}
	}
	return locked, err
}

func (a *Agent) readData(act failover.Action, e *failover.Event) error {
	if a.sec.lock == nil {
		e.Outcome = failover.Failed
		return errors.New("the locks are not held")
	}
	if a.sec.log == nil || a.sec.space != nil {
		// A member that is kept down stays in its section (P16): what was in the way may be gone, or the log was used up.
		err := a.sec.lock.Verify()
		locked := false
		if err == nil {
			locked, err = a.openLog()
		}
		if locked {
			err = errors.Join(err, walsurgery.ErrLocked)
		}
		if err != nil {
			e.Outcome = failover.Failed
			return fmt.Errorf("open the log again: %w", err)
		}
	}
	if a.sec.space != nil {
		e.Why = failover.DiskFull
	}
	if a.sec.log == nil {
		e.Outcome = failover.Done
		e.Data = failover.Data{Problem: walReason(a.sec.walErr)}
		a.post.read(e.Data)
		return nil
	}
	d, err := member.Read(a.sec.lock, a.sec.log, act.Index, a.mem.site().PeerURLs...)
	if errors.Is(err, member.ErrLockLost) {
		e.Outcome = failover.Failed
		return err
	}
	if d.Name == "" {
		d.Name = a.mem.site().Name
	}
	e.Outcome, e.Data = failover.Done, d
	a.post.read(d)
	if err != nil {
		a.log.Warn("the data", zap.Error(err))
	}
	return nil
}

// append operates (P8, P18).
func (a *Agent) append(act failover.Action) error {
	if a.sec.lock == nil || a.sec.log == nil {
		return errors.New("the locks are not held")
	}
	if err := a.sec.lock.Verify(); err != nil {
		return err
	}
	opts := []walsurgery.PlanOption{walsurgery.MinTerm(act.Term)}
	if act.ID != 0 {
		opts = append(opts, walsurgery.As(act.ID), walsurgery.Join(a.mem.site().PeerURLs, int(act.Twins)))
	}
	plan, err := a.sec.log.Plan(removals(act.Remove), opts...)
	if err != nil {
		return err
	}
	if plan.Term != act.Term {
		return fmt.Errorf("the log is at term %d, not where it was decided on (%d)", plan.Term-1, act.Term-1)
	}
	a.log.Info("operating", zap.Stringer("plan", plan))
	before := a.sec.log.Summary()
	aside := ""
	if jumps := plan.Term > max(before.HardState.Term, before.Last.Term)+1; jumps || act.ID != 0 {
		aside, err = a.appendStaged(plan, act)
	} else {
		err = a.sec.log.Apply(plan)
	}
	var after walsurgery.Summary
	if a.sec.log != nil {
		after = a.sec.log.Summary()
	}
	a.post.appended(a.cfg, before, plan, after, aside, err)
	if err != nil && a.sec.log != nil { // it is used up
		err = errors.Join(err, a.sec.log.Close())
		a.sec.log = nil
	}
	return err
}

// appendStaged makes a forced claim's append, the one whose term jumps (P18), in a copy of the log, which then takes its place: an
// overridden survivor can be in one configuration with this member until all of it is in force, and half of it would let
// Raft mix the two histories. The WAL of a removed member gets its new ID in the same step. Where two directories cannot be
// exchanged the append is made in place, as any other: a kill in the middle then leaves that half until the claim is repeated.
func (a *Agent) appendStaged(plan walsurgery.Plan, act failover.Action) (aside string, err error) {
	aside, err = a.sec.log.ApplyStaged(plan)
	inPlace := errors.Is(err, walsurgery.ErrCannotExchange) && act.ID == 0
	if err != nil && !inPlace {
		return aside, err
	}
	if err := a.sec.log.Close(); err != nil {
		return aside, err
	}
	a.sec.log = nil
	l, oerr := walsurgery.Open(a.log, a.cfg.walDir())
	if oerr != nil {
		return aside, errors.Join(err, oerr)
	}
	a.sec.log = l
	if inPlace {
		a.log.Warn("a copy of the WAL cannot take its place, so the append is made in the WAL itself: if this is cut short the claim must be repeated before the other member is started", zap.Error(err))
		return "", l.Apply(plan)
	}
	a.log.Info("the append is in force in one step", zap.String("id", hex(plan.Owner.MemberID)), zap.String("replaced", aside))
	if act.ID != 0 && a.watch != nil { // not by hand
		a.watch.reread()
	}
	return aside, nil
}

func (a *Agent) unlock() error {
	var errs []error
	if a.sec.log != nil {
		errs = append(errs, a.sec.log.Close())
	}
	if a.sec.lock != nil {
		errs = append(errs, a.sec.lock.Release())
	}
	a.sec = section{}
	return errors.Join(errs...)
}

// release gives the locks back and lets etcd run. The locks are gone in any case.
func (a *Agent) release(ctx context.Context) error {
	a.unblank(a.sec.lock != nil)
	if err := a.unlock(); err != nil {
		a.log.Warn("releasing the locks", zap.Error(err))
	}
	err := a.cfg.Etcd.Start(ctx)
	a.post.write(a.cfg)
	if err != nil {
		// The core asks again at once: not faster than this.
		time.Sleep(200 * time.Millisecond)
	}
	return err
}

// rewrite gives the local WAL its new member ID, with or without its log (P13). e.Why says why without.
func (a *Agent) rewrite(ctx context.Context, act failover.Action, e *failover.Event) error {
	if a.sec.lock == nil {
		return errors.New("the locks are not held")
	}
	if err := a.sec.lock.Verify(); err != nil {
		return err
	}
	var before *walsurgery.Summary
	if a.sec.log != nil {
		s := a.sec.log.Summary()
		before = &s
		if err := a.sec.log.Close(); err != nil {
			return err
		}
		a.sec.log = nil
	}
	keep, why, kept := act.Keep, act.Why, ""
	if keep {
		aside, err := walsurgery.RewriteID(a.log, a.cfg.walDir(), act.ID)
		switch {
		case err == nil:
			a.log.Info("the WAL carries the new member ID", zap.String("id", hex(act.ID)), zap.String("replaced", aside))
			kept = aside
		case a.unrewritable(err, act.ID):
			// It reads, but no copy of it can be vouched for: as good as unreadable (P13).
			a.log.Warn("the log cannot be kept", zap.Error(err))
			keep, why = false, failover.WALUnreadable
		default:
			return err
		}
	}
	if !keep {
		e.Why = why
		aside, err := rejoin.Reset(a.log, a.cfg.DataDir, walsurgery.Metadata{MemberID: act.ID, ClusterID: act.Cluster}, why.String()+a.post.at())
		if err != nil {
			if errors.Is(a.sec.lock.Verify(), member.ErrReplaced) { // after the exchange
				err = errors.Join(err, evictStrays(ctx, a.cfg.DataDir))
			}
			return err
		}
		a.log.Warn("the member directory was set aside and replaced by an empty one",
			zap.String("reason", why.String()), zap.String("kept", aside), zap.String("id", hex(act.ID)))
		kept = aside
		dev, ino := a.sec.lock.Inode()
		if err := etcdproc.Evict(ctx, dev, ino, 0); err != nil {
			return err
		}
	}
	a.post.returned(a.cfg, before, act, keep, why, kept)
	a.watch.reread()
	return nil
}

// evictStrays ends an etcd that has a replaced database open: one that waited for its lock when the agent
// was killed, or failed, between the exchange of the member directory and Evict goes on
// with the old database and the new log.
func evictStrays(ctx context.Context, dataDir string) error {
	dbs, err := rejoin.ReplacedDatabases(dataDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, db := range dbs {
		var st unix.Stat_t
		if err := unix.Stat(db, &st); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("replaced database %s: %w", db, err))
			}
			continue
		}
		errs = append(errs, etcdproc.Evict(ctx, uint64(st.Dev), st.Ino, 0))
	}
	return errors.Join(errs...)
}

// unrewritable says whether RewriteID failed for good, on the content of the log, and
// before anything was exchanged.
func (a *Agent) unrewritable(err error, id uint64) bool {
	if !errors.Is(err, walsurgery.ErrUnexpectedFormat) && !errors.Is(err, walsurgery.ErrCorrupt) {
		return false
	}
	md, merr := walsurgery.ReadMetadata(a.cfg.walDir())
	return merr == nil && md.MemberID != id
}

// tidy keeps the newest replaced WAL and lets the older ones go: the pair is
// whole, and they are copies that this program made.
func (a *Agent) tidy() error {
	if err := rejoin.Settle(a.cfg.DataDir); err != nil {
		return err
	}
	if _, err := walsurgery.Settle(a.log, a.cfg.walDir()); err != nil {
		return err
	}
	if _, err := walsurgery.SettleRewrite(a.log, a.cfg.walDir()); err != nil {
		return err
	}
	names, err := walsurgery.Replaced(a.cfg.walDir())
	if err != nil {
		return err
	}
	for i, name := range names {
		if i == len(names)-1 {
			break
		}
		if err := walsurgery.Discard(name); err != nil {
			a.log.Warn("an older replaced WAL stays there", zap.Error(err))
			continue
		}
		a.log.Info("an older replaced WAL was removed, the pair is whole", zap.String("path", name))
	}
	return nil
}
