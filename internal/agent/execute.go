package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"twok/arbiter"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/failpoint"
	"twok/internal/member"
	"twok/rejoin"
	"twok/walsurgery"
)

// Every action has a failpoint before it is carried out and one after, named
// agent/<action>/before and agent/<action>/after.
var steps = func() map[failover.ActionKind][2]string {
	m := map[failover.ActionKind][2]string{}
	for _, k := range failover.ActionKinds() {
		m[k] = [2]string{
			failpoint.Declare("agent/" + k.String() + "/before"),
			failpoint.Declare("agent/" + k.String() + "/after"),
		}
	}
	return m
}()

// execute carries out one action and answers it.
func (a *Agent) execute(ctx context.Context, act failover.Action, own failover.Own) failover.Event {
	e := failover.Event{Kind: act.Kind.Reply()}
	err := failpoint.Hit(steps[act.Kind][0])
	if err == nil {
		err = a.perform(ctx, act, own, &e)
	}
	if err == nil {
		err = failpoint.Hit(steps[act.Kind][1])
	}
	if err != nil {
		if e.Outcome == failover.Done {
			e.Outcome = failover.Unknown
		}
		lvl := a.log.Warn
		switch act.Kind {
		case failover.LookAtList, failover.Compare: // expected while the other side is away
			lvl = a.log.Debug
		case failover.ReadRecord:
			lvl = a.log.Info
		}
		if repeated, ok := a.echo.tell(act.Kind.String()+" "+err.Error(), time.Now()); ok {
			lvl("action", zap.Stringer("action", act.Kind), zap.Error(err), zap.Int("repeated", repeated))
		}
	}
	return e
}

func (a *Agent) perform(ctx context.Context, act failover.Action, own failover.Own, e *failover.Event) error {
	limit := a.cfg.callDeadline()
	switch act.Kind {
	case failover.ReadRecord, failover.Swap:
		limit = a.cfg.arbiterDeadline()
	case failover.Stop, failover.Restart:
		limit = stopDeadline
	case failover.Compare:
		limit = max(compareFirst, a.compFor)
	case failover.Preflight, failover.ReadData, failover.Append, failover.Rewrite, failover.Release, failover.Tidy:
		limit = 5 * time.Minute // local work on files: it ends when the disk lets it
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch act.Kind {
	case failover.ReadRecord:
		return a.readRecord(ctx, e)
	case failover.Swap:
		return a.swap(ctx, act, own, e)
	case failover.Preflight:
		return a.preflight(e)
	case failover.Stop:
		return a.done(e, a.stop(ctx))
	case failover.ReadData:
		return a.readData(act, e)
	case failover.Append:
		return a.done(e, a.append(act))
	case failover.Release:
		return a.done(e, a.release(ctx))
	case failover.Restart:
		return a.done(e, a.cfg.Etcd.Restart(ctx))
	case failover.LookAtList:
		return a.lookAtList(ctx, e)
	case failover.RemoveLearner, failover.AddLearner, failover.Promote:
		return a.changeMember(ctx, act, e)
	case failover.Rewrite:
		return a.done(e, a.rewrite(ctx, act))
	case failover.Compare:
		return a.compare(ctx, act, e)
	case failover.Sample:
		return a.sample(ctx, e)
	case failover.WriteToken:
		return a.writeToken(ctx, act, e)
	case failover.Tidy:
		return a.done(e, a.tidy())
	}
	return fmt.Errorf("unknown action %v", act.Kind)
}

// done is for actions of which the shell knows that an error means "not done".
func (a *Agent) done(e *failover.Event, err error) error {
	if err == nil {
		e.Outcome = failover.Done
	} else {
		e.Outcome = failover.Failed
	}
	return err
}

func (a *Agent) readRecord(ctx context.Context, e *failover.Event) error {
	b, v, err := a.cfg.Arbiter.Read(ctx)
	if err != nil {
		switch arbiter.Class(err) {
		case arbiter.ErrForbidden:
			e.Status = failover.Forbidden
		case arbiter.ErrMisconfigured:
			e.Status = failover.Misconfigured
		default:
			e.Status = failover.Unavailable
		}
		return err
	}
	e.Outcome = failover.Done
	if !v.Exists() {
		e.Status = failover.Absent
		return nil
	}
	rec, err := arbiter.Decode(b)
	switch {
	case err == nil:
	case errors.Is(err, arbiter.ErrEmpty), errors.Is(err, arbiter.ErrWhitespace):
		e.Status = failover.Empty
	case errors.Is(err, arbiter.ErrForeign):
		e.Status = failover.Foreign
	case errors.Is(err, arbiter.ErrFuture):
		e.Status = failover.Future
	default:
		e.Status = failover.Garbage
	}
	if err != nil {
		return err
	}
	e.Status, e.Record, e.Version = failover.Readable, rec, v
	if e.Seen, err = a.mem.see(rec.ID, rec.Generation); err != nil {
		a.log.Warn("the generation could not be stored", zap.Error(err))
	}
	return nil
}

func (a *Agent) swap(ctx context.Context, act failover.Action, own failover.Own, e *failover.Event) error {
	if act.Claim && act.Record.Survivor.Name == "" {
		act.Record.Survivor.Name = a.mem.site().Name // for people (P17: the record may not know it any more)
	}
	b, err := arbiter.Encode(act.Record)
	if err != nil {
		e.Outcome, e.Why = failover.Failed, failover.RecordGarbage
		return err
	}
	if act.Claim {
		if err := a.mem.setOwn(own); err != nil {
			e.Outcome, e.Why = failover.Failed, failover.StateUnwritable
			return err
		}
	}
	err = a.cfg.Arbiter.CompareAndSwap(ctx, act.Prev, b)
	switch arbiter.Class(err) {
	case nil:
		e.Outcome = failover.Done
	case arbiter.ErrConflict:
		e.Outcome = failover.Conflict
	case arbiter.ErrUnavailable:
		e.Outcome, e.Why = failover.Failed, failover.RecordUnavailable
	case arbiter.ErrForbidden:
		e.Outcome, e.Why = failover.Failed, failover.RecordForbidden
	case arbiter.ErrMisconfigured:
		e.Outcome, e.Why = failover.Failed, failover.RecordMisconfigured
	default:
		e.Outcome = failover.Unknown
	}
	return err
}

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
	for {
		lock, err := member.Acquire(ctx, a.cfg.DataDir, a.cfg.Etcd.Stop)
		if err != nil {
			return err
		}
		a.sec = section{lock: lock}
		if a.sec.space = walsurgery.CheckSpace(a.cfg.walDir()); a.sec.space == nil {
			a.sec.log, a.sec.walErr = walsurgery.Open(a.log, a.cfg.walDir())
		} else {
			a.sec.log, a.sec.walErr = walsurgery.Inspect(a.log, a.cfg.walDir())
		}
		locked := errors.Is(a.sec.walErr, walsurgery.ErrLocked)
		if !locked && (a.sec.walErr != nil || a.sec.space != nil) {
			// Nothing of ours holds the WAL: prove at least that nobody else does.
			if locked, err = walsurgery.Locked(a.cfg.walDir()); err != nil && !errors.Is(err, walsurgery.ErrNoWAL) {
				return errors.Join(err, a.unlock())
			}
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

func (a *Agent) readData(act failover.Action, e *failover.Event) error {
	if a.sec.lock == nil {
		e.Outcome = failover.Failed
		return errors.New("the locks are not held")
	}
	if a.sec.space != nil {
		e.Why = failover.DiskFull
	}
	if a.sec.log == nil {
		e.Outcome = failover.Done
		e.Data = failover.Data{Problem: walReason(a.sec.walErr)}
		return nil
	}
	d, err := member.Read(a.sec.lock, a.sec.log, act.Index)
	if errors.Is(err, member.ErrLockLost) {
		e.Outcome = failover.Failed
		return err
	}
	if d.Name == "" {
		d.Name = a.mem.site().Name
	}
	e.Outcome, e.Data = failover.Done, d
	if err != nil {
		a.log.Warn("the data", zap.Error(err))
	}
	return nil
}

// append operates (P8).
func (a *Agent) append(act failover.Action) error {
	if a.sec.lock == nil || a.sec.log == nil {
		return errors.New("the locks are not held")
	}
	if err := a.sec.lock.Verify(); err != nil {
		return err
	}
	plan, err := a.sec.log.Plan(removals(act.Remove))
	if err != nil {
		return err
	}
	if plan.Term != act.Term {
		return fmt.Errorf("the log is at term %d, not where it was decided on (%d)", plan.Term-1, act.Term-1)
	}
	a.log.Info("operating", zap.Stringer("plan", plan))
	return a.sec.log.Apply(plan)
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
	if err := a.unlock(); err != nil {
		a.log.Warn("releasing the locks", zap.Error(err))
	}
	err := a.cfg.Etcd.Start(ctx)
	if err != nil {
		// The core asks again at once: not faster than this.
		time.Sleep(200 * time.Millisecond)
	}
	return err
}

// survivor is the other member as it was last known, and this site as it sees it.
func (a *Agent) survivor() (*rejoin.Survivor, rejoin.Site, error) {
	info := a.mem.site()
	site := rejoin.Site{PeerURLs: info.PeerURLs, PeerURL: a.cfg.PeerURL}
	md, err := walsurgery.ReadMetadata(a.cfg.walDir())
	switch {
	case err == nil:
		site.ID = md.MemberID
	case info.MemberID != 0:
		// The WAL is damaged in its first record: the survivor is asked all the same
		// whether this member is out, and then it returns from an empty log.
		site.ID = info.MemberID
	default:
		return nil, site, err
	}
	s := &rejoin.Survivor{Dialer: a.dialer}
	for _, m := range info.Other {
		s.ClientURLs = append(s.ClientURLs, m.ClientURLs...)
		s.PeerURLs = append(s.PeerURLs, m.PeerURLs...)
	}
	if len(s.ClientURLs) == 0 || len(s.PeerURLs) == 0 {
		return nil, site, errors.New("the other member's URLs are not known yet")
	}
	return s, site, nil
}

func (a *Agent) lookAtList(ctx context.Context, e *failover.Event) error {
	s, site, err := a.survivor()
	if err == nil {
		e.List, err = s.List(ctx, site)
	}
	return a.done(e, err)
}

func (a *Agent) changeMember(ctx context.Context, act failover.Action, e *failover.Event) error {
	s, site, err := a.survivor()
	if err != nil {
		e.Outcome = failover.Failed
		return err
	}
	switch act.Kind {
	case failover.AddLearner:
		if len(site.PeerURLs) == 0 {
			e.Outcome = failover.Failed
			return errors.New("this member's own peer URLs are not known")
		}
		e.ID, err = s.AddLearner(ctx, site)
	case failover.RemoveLearner:
		err = s.Remove(ctx, act.ID)
	case failover.Promote:
		err = s.Promote(ctx, act.ID)
	}
	if err == nil {
		e.Outcome = failover.Done
	}
	return err // Unknown: the list tells
}

// rewrite gives the local WAL its new member ID, with or without its log (P13).
func (a *Agent) rewrite(ctx context.Context, act failover.Action) error {
	if a.sec.lock == nil {
		return errors.New("the locks are not held")
	}
	if err := a.sec.lock.Verify(); err != nil {
		return err
	}
	if a.sec.log != nil {
		if err := a.sec.log.Close(); err != nil {
			return err
		}
		a.sec.log = nil
	}
	keep, why := act.Keep, act.Why
	if keep {
		aside, err := walsurgery.RewriteID(a.log, a.cfg.walDir(), act.ID)
		switch {
		case err == nil:
			a.log.Info("the WAL carries the new member ID", zap.String("id", hex(act.ID)), zap.String("replaced", aside))
		case a.unrewritable(err, act.ID):
			// It reads, but no copy of it can be vouched for: as good as unreadable (P13).
			a.log.Warn("the log cannot be kept", zap.Error(err))
			keep, why = false, failover.WALUnreadable
		default:
			return err
		}
	}
	if !keep {
		aside, err := rejoin.Reset(a.log, a.cfg.DataDir, walsurgery.Metadata{MemberID: act.ID, ClusterID: act.Cluster}, why.String())
		if err != nil {
			if errors.Is(a.sec.lock.Verify(), member.ErrReplaced) { // after the exchange
				err = errors.Join(err, evictStrays(ctx, a.cfg.DataDir))
			}
			return err
		}
		a.log.Warn("the member directory was set aside and replaced by an empty one",
			zap.String("reason", why.String()), zap.String("kept", aside), zap.String("id", hex(act.ID)))
		dev, ino := a.sec.lock.Inode()
		if err := etcdproc.Evict(ctx, dev, ino, 0); err != nil {
			return err
		}
	}
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

func (a *Agent) compare(ctx context.Context, act failover.Action, e *failover.Event) error {
	s, site, err := a.survivor()
	if err != nil {
		return a.done(e, err)
	}
	if site.ID != act.ID {
		return a.done(e, fmt.Errorf("the WAL carries the ID %s, not %s", hex(site.ID), hex(act.ID)))
	}
	e.Equal, err = s.Compare(ctx, site)
	switch {
	case errors.Is(err, rejoin.ErrHashTime):
		a.compFor = min(2*max(compareFirst, a.compFor), compareMax)
	case err != nil:
		a.compFor = 0
	}
	return a.done(e, err)
}

// tidy keeps the newest replaced WAL and lets the older ones go: the pair is
// whole, and they are copies that this program made.
func (a *Agent) tidy() error {
	if err := rejoin.Settle(a.cfg.DataDir); err != nil {
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
		if err := os.RemoveAll(name); err != nil {
			return err
		}
		a.log.Info("an older replaced WAL was removed, the pair is whole", zap.String("path", name))
	}
	return nil
}
