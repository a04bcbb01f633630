package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/failover"
	"twok/internal/failpoint"
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
		return a.done(e, a.rewrite(ctx, act, e))
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
	if a.watch != nil {
		a.watch.anew.Store(false)
	}
	a.post.saw(rec)
	if e.Seen, err = a.mem.see(rec.ID, rec.Generation); err != nil {
		if repeated, ok := a.echo.tell("see "+err.Error(), time.Now()); ok {
			a.log.Warn("the generation could not be stored", zap.Error(err), zap.Int("repeated", repeated))
		}
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
	if act.Claim {
		a.post.claims(act.Record)
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
