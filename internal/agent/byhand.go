package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/etcdproc"
	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

var (
	// ErrEtcdRuns: a claim by hand does not stop etcd. Nothing was changed.
	ErrEtcdRuns = errors.New("etcd runs on this data directory")
	// ErrAnotherSurvivor: the WAL was written, but the record names somebody else by
	// now: etcd must not be started here (P16).
	ErrAnotherSurvivor = errors.New("the record names another survivor by now: do not start etcd here")
)

// RefusedError is a claim that the rules do not allow, or that was not won. Nothing was
// appended, unless Reason is AppendFailed.
type RefusedError struct {
	Reason failover.Reason
	Cause  error // of the last action that failed; nil: the rules alone
}

func (e *RefusedError) Error() string {
	s := "the claim is refused: " + e.Reason.String()
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap is the cause.
func (e *RefusedError) Unwrap() error { return e.Cause }

// Survival is what a claim by hand did, or would do.
type Survival struct {
	Record  arbiter.Record  // as swapped
	Before  arbiter.Record  // as read
	Data    failover.Data   // of the member
	Plan    walsurgery.Plan // what is appended
	Applied bool            // false for a dry run
}

// Survive is the agent's claim by hand: the same section, decided by the same
// core, with the same refusals (P4 to P8). It needs DataDir and Arbiter of cfg, refuses while etcd or an
// agent runs (ErrEtcdRuns, member.ErrHeld), and starts nothing. A dry run swaps and appends nothing.
//
// Errors: *RefusedError with the rule's reason; ErrAnotherSurvivor.
func Survive(ctx context.Context, cfg Config, dryRun bool) (res Survival, err error) {
	cfg = cfg.Default()
	if _, err := walsurgery.ReadMetadata(cfg.walDir()); err != nil {
		return res, err
	}
	lock, err := member.AgentLock(cfg.DataDir)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	mem, warn, err := loadMemory(cfg.DataDir)
	if err != nil {
		return res, err
	}
	if warn != nil {
		cfg.Logger.Warn("memory set aside", zap.Error(warn))
	}
	etcd, err := etcdproc.NewSignal(etcdproc.Config{DataDir: cfg.DataDir, Logger: cfg.Logger})
	if err != nil {
		return res, err
	}
	cfg.Etcd = &handsOff{Etcd: etcd}
	a := &Agent{cfg: cfg, log: cfg.Logger, mem: mem, trace: newTracer(cfg.Trace)}
	defer func() { err = errors.Join(err, a.unlock()); a.post.end(cfg) }()

	s := failover.New(cfg.Params(), mem.own())
	s.Phase, s.Site = failover.Stopping, failover.Stop
	a.trace.step(startLine(s, a.mem.seen(), true))
	defer a.trace.flush()
	todo := []failover.Action{{Kind: failover.Stop}}
	var cause error
	for len(todo) > 0 {
		act := todo[0]
		if act.Kind == failover.Swap {
			res.Before, res.Record, res.Data = s.Rec, act.Record, s.Data
			opts := []walsurgery.PlanOption{walsurgery.MinTerm(act.Record.Fork.Term)}
			joins := act.Record.Survivor.ID != s.Data.Member // a removed member, by a forced claim (P18)
			if joins {
				opts = append(opts, walsurgery.As(act.Record.Survivor.ID), walsurgery.Join(a.mem.site().PeerURLs, int(s.Data.Confs.Twins)))
			}
			if res.Plan, err = a.sec.log.Plan(removals(s.Data.Confs.Remove), opts...); err != nil || dryRun {
				return res, err
			}
		}
		e := failover.Event{Kind: act.Kind.Reply()}
		perr := a.perform(ctx, act, s.Mine, &e)
		if perr != nil && (act.Kind == failover.Stop || (act.Kind == failover.ReadData && e.Outcome != failover.Done)) {
			return res, perr
		}
		if perr != nil {
			cause = perr
			cfg.Logger.Warn("action", zap.Stringer("action", act.Kind), zap.Error(perr))
		}
		e.Stamp = failover.Stamp{Nonce: arbiter.NewNonce(), Now: time.Now().UnixMilli()}
		e.Random, e.FreshID = rand.Uint32(), rand.Uint64()|1
		next, actions := failover.Step(s, e)
		a.trace.step(lineOf(s, e, next, actions))
		s, todo = next, append(todo[1:], actions...)
		switch {
		case s.Phase == failover.Fenced:
			return res, ErrAnotherSurvivor
		case act.Kind == failover.Append && e.Outcome == failover.Done:
			res.Applied = true
		case s.Phase == failover.Leaderless && act.Kind == failover.Release:
			todo = nil
		}
	}
	if !res.Applied {
		return res, &RefusedError{s.Why, cause}
	}
	return res, nil
}

func removals(ids [failover.MaxRemove]uint64) []uint64 {
	return slices.DeleteFunc(ids[:], func(id uint64) bool { return id == 0 })
}

// handsOff is an etcd that is looked at but never stopped or started.
type handsOff struct{ etcdproc.Etcd }

func (h *handsOff) Stop(context.Context) error {
	if p := h.Process(); p.Running {
		return fmt.Errorf("%w (process %d)", ErrEtcdRuns, p.PID)
	} else if p.Err != nil {
		return p.Err
	}
	return nil
}

func (h *handsOff) Start(context.Context) error { return nil }
