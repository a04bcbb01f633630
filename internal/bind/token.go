package bind

import (
	"context"
	"errors"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/member"
)

// ErrNotAPair: the member list does not show two voters and nobody else.
var ErrNotAPair = errors.New("this is not a pair of two voters")

// WriteToken writes the pair token by P14: through c, a connection to the member that leads, dialled once
// (etcdapi.Once), so that the transaction cannot reach a restarted etcd. may judges the token that is there,
// which is absent at first; its error ends the call.
//
// t is the token with EntryTerm as the reply said it; if that differs from Term, it has to be written again. sent says that
// a transaction may have been applied, whatever the error.
func WriteToken(ctx context.Context, d *etcdapi.Dialer, c *clientv3.Client, recordID string, generation uint64, may func(failover.Token) error) (t failover.Token, sent bool, err error) {
	list, err := c.MemberList(ctx) // linearizable
	if err != nil {
		return t, false, fmt.Errorf("token: member list: %w", err)
	}
	self, err := leads(ctx, c, list)
	if err != nil {
		return t, false, err
	}
	pair, ok := PairOf(list.Members)
	if !ok || !slices.Contains(pair[:], self) {
		return t, false, fmt.Errorf("token: %w", ErrNotAPair)
	}
	if err := bothShow(ctx, d, c, list, self, pair); err != nil {
		return t, false, err
	}
	t = failover.Token{RecordID: recordID, Generation: generation, Cluster: list.Header.ClusterId, Members: pair, Term: list.Header.RaftTerm}
	return put(ctx, c, t, may)
}

// leads returns the member that c reaches if it leads.
func leads(ctx context.Context, c *clientv3.Client, list *clientv3.MemberListResponse) (uint64, error) {
	st, err := etcdapi.Status(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("token: status: %w", err)
	}
	self := list.Header.MemberId
	if st.Leader != self || st.Header.MemberId != self {
		return 0, errors.New("token: this member does not lead")
	}
	return self, nil
}

// bothShow: each member's own list, at its own client port, shows the pair (P14).
func bothShow(ctx context.Context, d *etcdapi.Dialer, c *clientv3.Client, list *clientv3.MemberListResponse, self uint64, pair [2]uint64) error {
	for _, m := range list.Members {
		if err := showsPair(ctx, d, c, m.ID, self, m.ClientURLs, list.Header.ClusterId, pair); err != nil {
			return err
		}
	}
	return nil
}

// put is the transaction on the token's mod revision.
func put(ctx context.Context, c *clientv3.Client, t failover.Token, may func(failover.Token) error) (failover.Token, bool, error) {
	get, err := c.Get(ctx, member.TokenKey)
	if err != nil {
		return t, false, fmt.Errorf("token: %w", err)
	}
	var mod int64
	var old failover.Token
	if len(get.Kvs) > 0 {
		mod = get.Kvs[0].ModRevision
		old = Applied(get.Kvs[0].Value, get.Kvs[0].Lease)
	}
	if err := may(old); err != nil {
		return t, false, fmt.Errorf("token: %w", err)
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
func showsPair(ctx context.Context, d *etcdapi.Dialer, own *clientv3.Client, id, self uint64, urls []string, cluster uint64, pair [2]uint64) error {
	c := own
	if id != self {
		if len(urls) == 0 {
			return fmt.Errorf("token: the member %s has not published its client URLs yet", arbiter.FormatID(id))
		}
		var err error
		if c, err = d.Client(urls...); err != nil {
			return err
		}
		defer c.Close()
	}
	resp, err := c.MemberList(ctx, clientv3.WithSerializable())
	if err != nil {
		return fmt.Errorf("token: local list of %s: %w", arbiter.FormatID(id), err)
	}
	if resp.Header.MemberId != id || resp.Header.ClusterId != cluster {
		return fmt.Errorf("token: asked the member %s for its list, %s answered", arbiter.FormatID(id), arbiter.FormatID(resp.Header.MemberId))
	}
	if got, ok := PairOf(resp.Members); !ok || got != pair {
		return fmt.Errorf("token: the member %s does not show the pair yet", arbiter.FormatID(id))
	}
	return nil
}

// PairOf returns the two members of a list that is a pair: two voters, and no
// other member.
func PairOf(ms []*pb.Member) (pair [2]uint64, ok bool) {
	if len(ms) != 2 || ms[0].IsLearner || ms[1].IsLearner {
		return pair, false
	}
	return [2]uint64{min(ms[0].ID, ms[1].ID), max(ms[0].ID, ms[1].ID)}, true
}

// Applied judges a value of the token's key as P4 does.
func Applied(value []byte, lease int64) failover.Token {
	t, _, err := member.DecodeToken(value)
	if err != nil || lease != 0 {
		return failover.Token{Present: true, Bad: true}
	}
	t.Present = true
	return t
}
