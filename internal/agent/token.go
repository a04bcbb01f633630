package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/member"
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
	t, sent, err := a.pairToken(ctx, c, act)
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

// pairToken returns the token with EntryTerm as the reply said it. sent says that a
// transaction may have been applied, whatever the error.
func (a *Agent) pairToken(ctx context.Context, c *clientv3.Client, act failover.Action) (t failover.Token, sent bool, err error) {
	list, err := c.MemberList(ctx) // linearizable
	if err != nil {
		return t, false, fmt.Errorf("token: member list: %w", err)
	}
	st, err := etcdapi.Status(ctx, c)
	if err != nil {
		return t, false, fmt.Errorf("token: status: %w", err)
	}
	self := list.Header.MemberId
	if st.Leader != self || st.Header.MemberId != self {
		return t, false, errors.New("token: this member does not lead")
	}
	pair, ok := pairOf(list.Members)
	if !ok || !slices.Contains(pair[:], self) {
		return t, false, errors.New("token: the list does not show a pair of two voters")
	}
	for _, m := range list.Members {
		if err := a.showsPair(ctx, c, m.ID, self, m.ClientURLs, list.Header.ClusterId, pair); err != nil {
			return t, false, err
		}
	}
	get, err := c.Get(ctx, member.TokenKey)
	if err != nil {
		return t, false, fmt.Errorf("token: %w", err)
	}
	var mod int64
	if len(get.Kvs) > 0 {
		mod = get.Kvs[0].ModRevision
		old := appliedToken(get.Kvs[0].Value, get.Kvs[0].Lease)
		if !old.Bad && (old.RecordID != act.RecordID || old.Generation > act.Generation) {
			return t, false, errors.New("token: the data are bound to another record or a later generation")
		}
	}
	t = failover.Token{
		RecordID: act.RecordID, Generation: act.Generation, Cluster: list.Header.ClusterId,
		Members: pair, Term: list.Header.RaftTerm,
	}
	value, err := member.EncodeToken(t, arbiter.NewNonce())
	if err != nil {
		return t, false, fmt.Errorf("token: %w", err)
	}
	resp, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(member.TokenKey), "=", mod)).
		Then(clientv3.OpPut(member.TokenKey, string(value))).
		Commit()
	if err != nil {
		return t, true, fmt.Errorf("token: transaction: %w", err)
	}
	if !resp.Succeeded {
		return t, false, errors.New("token: the key changed meanwhile")
	}
	t.Present, t.EntryTerm = true, resp.Header.RaftTerm
	return t, true, nil
}

// showsPair asks one member, at its own client port, for its local list: what it
// has applied. A list of the peer port would not do (A0, P14).
func (a *Agent) showsPair(ctx context.Context, own *clientv3.Client, id, self uint64, urls []string, cluster uint64, pair [2]uint64) error {
	c := own
	if id != self {
		if len(urls) == 0 {
			return fmt.Errorf("token: the member %s has not published its client URLs yet", hex(id))
		}
		var err error
		if c, err = a.dialer.Client(urls...); err != nil {
			return err
		}
		defer c.Close()
	}
	resp, err := c.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return fmt.Errorf("token: local list of %s: %w", hex(id), err)
	}
	if resp.Header.MemberId != id || resp.Header.ClusterId != cluster {
		return fmt.Errorf("token: asked the member %s for its list, %s answered", hex(id), hex(resp.Header.MemberId))
	}
	if got, ok := pairOf(resp.Members); !ok || got != pair {
		return fmt.Errorf("token: the member %s does not show the pair yet", hex(id))
	}
	return nil
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

// pairOf returns the two members of a list that is a pair: two voters, and no
// other member.
func pairOf(ms []*pb.Member) (pair [2]uint64, ok bool) {
	if len(ms) != 2 || ms[0].IsLearner || ms[1].IsLearner {
		return pair, false
	}
	return [2]uint64{min(ms[0].ID, ms[1].ID), max(ms[0].ID, ms[1].ID)}, true
}
