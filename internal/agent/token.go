package agent

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/bind"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/rejoin"
)

// writeToken writes the pair token by P14. Everything that needs the own member
// goes over one connection that is dialled once: should etcd be restarted in
// between, the transaction cannot reach the new process.
func (a *Agent) writeToken(ctx context.Context, act failover.Action, e *failover.Event) error {
	c, err := a.dialer.Once(a.cfg.ClientURL)
	if err != nil {
		return a.done(e, err)
	}
	t, sent, err := bind.WriteToken(ctx, a.dialer, c, act.RecordID, act.Generation, func(old failover.Token) error {
		if old.Present && !old.Bad && (old.RecordID != act.RecordID || old.Generation > act.Generation) {
			return errors.New("the data are bound to another record or a later generation")
		}
		return nil
	})
	err = errors.Join(err, c.Close())
	switch {
	case t.Present && t.EntryTerm != t.Term:
		e.Outcome = failover.Conflict // written, under another term than it names: write again
	case t.Present:
		e.Outcome, e.Token = failover.Done, t
		a.watch.wrote(t)
		a.log.Info("the pair token is written", zap.Uint64("generation", t.Generation), zap.Uint64("term", t.Term))
		err = nil
	case !sent:
		e.Outcome = failover.Failed
	}
	return err
}

// sample takes an applied position of the lone leader with its entry's term
// (P10). The write in between makes sure that the index was applied after the term was.
func (a *Agent) sample(ctx context.Context, e *failover.Event) error {
	pos, err := func() (arbiter.Position, error) {
		c := a.watch.local
		st1, err := etcdapi.Status(ctx, c)
		if err != nil {
			return arbiter.Position{}, err
		}
		put, err := c.Put(ctx, rejoin.NudgeKey, arbiter.NewNonce())
		if err != nil {
			return arbiter.Position{}, err
		}
		st2, err := etcdapi.Status(ctx, c)
		if err != nil {
			return arbiter.Position{}, err
		}
		self := st1.Header.MemberId
		if st1.Leader != self || st2.Leader != self || put.Header.MemberId != self {
			return arbiter.Position{}, errors.New("this member does not lead")
		}
		// Terms never fall: equal at both ends means equal in between, and the index
		// of the second status was applied after the first, so in this term.
		if st1.RaftTerm != st2.RaftTerm || st2.RaftAppliedIndex <= st1.RaftAppliedIndex {
			return arbiter.Position{}, errors.New("the term is changing")
		}
		return arbiter.Position{Index: st2.RaftAppliedIndex, Term: st2.RaftTerm}, nil
	}()
	e.Position = pos
	if err != nil {
		err = fmt.Errorf("confirmation: %w", err)
	}
	return a.done(e, err)
}
