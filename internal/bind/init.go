package bind

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
	"twok/internal/etcdapi"
	"twok/internal/failover"
	"twok/internal/member"
)

var (
	// ErrBound: the data are bound to another record and Options.Rebind is not set. Nothing was changed.
	ErrBound = errors.New("the pair is bound to another record")
	// ErrTaken: the register holds a record that is not this cluster's, or that a pair used. Nothing was changed.
	ErrTaken = errors.New("the register holds another record")
	// ErrNoLeader: no member leads, or the one that does cannot be reached. Nothing was changed.
	ErrNoLeader = errors.New("no leader that can be reached")
)

// Options say what Init binds.
type Options struct {
	Dialer     *etcdapi.Dialer
	ClientURLs []string         // of members; one that lives is enough
	Register   arbiter.Register // the new record
	Old        arbiter.Register // the record that the data are bound to; nil: not readable any more
	Rebind     bool             // replace a binding to another record
}

// Result is what Init did.
type Result struct {
	RecordID   string `json:"record"`
	Generation uint64 `json:"generation"`
	Cluster    string `json:"cluster"`
	Member     string `json:"member"` // that leads
	Alone      bool   `json:"alone"`  // a survivor that leads alone
	Created    bool   `json:"created"`
	Token      bool   `json:"token_written"`
	Before     string `json:"bound_before"` // the record ID that the data named; empty: none
}

// attempts is how often a token is tried whose key or term changed under the transaction.
const attempts = 5

// Init binds a running pair, or a survivor that leads alone, to the record in Options.Register (P3). After an error
// that is none of the package's, a record may have been created and the token not: call it again.
func Init(ctx context.Context, o Options) (res Result, err error) {
	in := &initer{Options: o}
	if err := in.find(ctx); err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, in.c.Close()) }()
	res = Result{Cluster: arbiter.FormatID(in.list.Header.ClusterId), Member: arbiter.FormatID(in.self), Alone: in.alone}
	if in.tok, err = in.token(ctx); err != nil {
		return res, err
	}
	if in.tok.Present && !in.tok.Bad {
		res.Before = in.tok.RecordID
	}
	rec, v, err := in.record(ctx)
	if err != nil {
		return res, err
	}
	if v.Exists() && res.Before == rec.ID {
		res.RecordID, res.Generation = rec.ID, rec.Generation
		return res, nil // done already
	}
	if res.Before != "" && !o.Rebind {
		return res, fmt.Errorf("%w: %s", ErrBound, res.Before)
	}
	next, err := in.next(ctx, rec, v)
	if err != nil {
		return res, err
	}
	if next != rec {
		if err := in.swap(ctx, v, next); err != nil {
			return res, err
		}
		res.Created = true
	}
	res.RecordID, res.Generation = next.ID, next.Generation
	if err := in.write(ctx, next); err != nil {
		return res, err
	}
	res.Token = true
	return res, nil
}

type initer struct {
	Options
	c     *clientv3.Client // to the member that leads, dialled once
	list  *clientv3.MemberListResponse
	self  uint64
	alone bool
	tok   failover.Token
}

// find connects to the member that leads, and judges its linearizable list.
func (in *initer) find(ctx context.Context) error {
	url, err := in.leader(ctx)
	if err != nil {
		return err
	}
	if in.c, err = in.Dialer.Once(url); err != nil {
		return err
	}
	fail := func(err error) error {
		if err == nil {
			return nil
		}
		return errors.Join(err, in.c.Close())
	}
	if in.list, err = in.c.MemberList(ctx); err != nil {
		return fail(fmt.Errorf("member list of %s: %w: %w", url, ErrNoLeader, err))
	}
	if in.self, err = leads(ctx, in.c, in.list); err != nil {
		return fail(fmt.Errorf("%s: %w: %w", url, ErrNoLeader, err))
	}
	pair, ok := PairOf(in.list.Members)
	switch {
	case ok:
		if err := bothShow(ctx, in.Dialer, in.c, in.list, in.self, pair); err != nil {
			return fail(fmt.Errorf("%w that both answer: %w", ErrNotAPair, err))
		}
		return nil
	case len(in.list.Members) == 1 && !in.list.Members[0].IsLearner:
		in.alone = true
		return nil
	}
	return fail(fmt.Errorf("%w: %d members, %d of them learners", ErrNotAPair, len(in.list.Members), learners(in.list.Members)))
}

func learners(ms []*pb.Member) (n int) {
	for _, m := range ms {
		if m.IsLearner {
			n++
		}
	}
	return n
}

// leader is the client URL of the member that leads: one of the given, or one that it published.
func (in *initer) leader(ctx context.Context) (string, error) {
	var errs []error
	for _, url := range in.ClientURLs {
		c, err := in.Dialer.Client(url)
		if err != nil {
			return "", err
		}
		found, err := func() (string, error) {
			one, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			list, err := c.MemberList(one, clientv3.WithSerializable())
			if err != nil {
				return "", err
			}
			st, err := etcdapi.Status(one, c)
			if err != nil {
				return "", err
			}
			if st.Leader == st.Header.MemberId && st.Leader != 0 {
				return url, nil
			}
			for _, m := range list.Members {
				if m.ID == st.Leader && len(m.ClientURLs) > 0 {
					return m.ClientURLs[0], nil
				}
			}
			return "", errors.New("it knows of no leader")
		}()
		err = errors.Join(err, c.Close())
		if found != "" {
			return found, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", url, err))
	}
	return "", fmt.Errorf("%w: %w", ErrNoLeader, errors.Join(errs...))
}

// token reads the token, linearizably.
func (in *initer) token(ctx context.Context) (failover.Token, error) {
	get, err := in.c.Get(ctx, member.TokenKey)
	if err != nil || len(get.Kvs) == 0 {
		if err != nil {
			err = fmt.Errorf("the pair token: %w", err)
		}
		return failover.Token{}, err
	}
	return Applied(get.Kvs[0].Value, get.Kvs[0].Lease), nil
}

// record reads the new register. What it may hold is a record of this cluster.
func (in *initer) record(ctx context.Context) (arbiter.Record, arbiter.Version, error) {
	b, v, err := in.Register.Read(ctx)
	if err != nil || !v.Exists() {
		return arbiter.Record{}, v, err
	}
	rec, err := arbiter.Decode(b)
	if err != nil {
		return rec, v, fmt.Errorf("%w: %w", ErrTaken, err)
	}
	if rec.ClusterID != in.list.Header.ClusterId {
		return rec, v, fmt.Errorf("%w: it is of the cluster %s", ErrTaken, arbiter.FormatID(rec.ClusterID))
	}
	return rec, v, nil
}

// next is the record as it must be before the token is written; rec itself if it is that already.
func (in *initer) next(ctx context.Context, rec arbiter.Record, v arbiter.Version) (arbiter.Record, error) {
	above := uint64(0)
	if in.tok.Present && !in.tok.Bad {
		above = in.tok.Generation
	}
	if in.Old != nil {
		b, ov, err := in.Old.Read(ctx)
		if err != nil {
			return rec, fmt.Errorf("the old record: %w", err)
		}
		if ov.Exists() {
			old, err := arbiter.Decode(b)
			if err != nil {
				return rec, fmt.Errorf("the old record: %w", err)
			}
			if old.ClusterID != in.list.Header.ClusterId {
				return rec, fmt.Errorf("the old record: %w: it is of the cluster %s", ErrTaken, arbiter.FormatID(old.ClusterID))
			}
			above = max(above, old.Generation)
			if in.alone && old.Survivor.ID != in.self {
				return rec, fmt.Errorf("the old record: %w: it does not name the member that leads alone, %s", ErrTaken, arbiter.FormatID(in.self))
			}
		}
	}
	if in.alone && (!in.tok.Present || in.tok.Bad || in.tok.Other(in.self) == 0) {
		return rec, fmt.Errorf("%w: the member that leads alone has no token that names it: let the other member return first", ErrNotAPair)
	}
	if v.Exists() {
		// Left by an Init that was interrupted: a record that no pair has used. Anything else is somebody's.
		if rec.WholeGeneration != 0 || (rec.Survivor.ID != 0) != in.alone || (in.alone && rec.Survivor.ID != in.self) || rec.Confirmed.Index != 0 {
			return rec, fmt.Errorf("%w: %s, at generation %d, which a pair has used", ErrTaken, rec.ID, rec.Generation)
		}
		if rec.Generation > above {
			return rec, nil
		}
		return rec, fmt.Errorf("%w: %s, at generation %d, not above the data's %d: use another key", ErrTaken, rec.ID, rec.Generation, above)
	}
	stamp := failover.Stamp{Nonce: arbiter.NewNonce(), Now: time.Now().UnixMilli()}
	next := failover.Create(arbiter.NewID(), in.list.Header.ClusterId, stamp)
	next.Generation = above + 1
	if in.alone {
		end, err := in.end(ctx)
		if err != nil {
			return rec, err
		}
		return failover.Rebound(next, above+2, in.me(), end, stamp), nil
	}
	return next, nil
}

func (in *initer) me() arbiter.Member {
	i := slices.IndexFunc(in.list.Members, func(m *pb.Member) bool { return m.ID == in.self })
	return arbiter.Member{ID: in.self, Name: in.list.Members[i].Name}
}

// end is an index that the lone leader has applied, with its term.
func (in *initer) end(ctx context.Context) (arbiter.Position, error) {
	st, err := etcdapi.Status(ctx, in.c)
	if err != nil {
		return arbiter.Position{}, fmt.Errorf("status: %w", err)
	}
	if st.Leader != in.self {
		return arbiter.Position{}, fmt.Errorf("%w: %s does not lead any more", ErrNoLeader, arbiter.FormatID(in.self))
	}
	return arbiter.Position{Index: st.RaftAppliedIndex, Term: st.RaftTerm}, nil
}

// swap writes the record, and settles an unknown outcome by reading (P1).
func (in *initer) swap(ctx context.Context, prev arbiter.Version, next arbiter.Record) error {
	b, err := arbiter.Encode(next)
	if err != nil {
		return err
	}
	err = in.Register.CompareAndSwap(ctx, prev, b)
	if c := arbiter.Class(err); c != arbiter.ErrUnknown && c != arbiter.ErrConflict {
		return err
	}
	now, v, rerr := in.Register.Read(ctx)
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	if v.Exists() {
		if rec, derr := arbiter.Decode(now); derr == nil && rec.Nonce == next.Nonce && rec.ID == next.ID {
			return nil
		}
	}
	return err
}

// write writes the token until its entry has the term that it names.
func (in *initer) write(ctx context.Context, rec arbiter.Record) (err error) {
	before := in.tok
	may := func(old failover.Token) error {
		if old.Present && !old.Bad && old.RecordID != rec.ID && (old.RecordID != before.RecordID || !in.Rebind) {
			return fmt.Errorf("%w: %s", ErrBound, old.RecordID)
		}
		return nil
	}
	for range attempts {
		var t failover.Token
		if in.alone {
			t = failover.Token{RecordID: rec.ID, Generation: rec.Generation - 1, Cluster: in.list.Header.ClusterId, Members: before.Members, Term: in.list.Header.RaftTerm}
			t, _, err = put(ctx, in.c, t, may)
		} else {
			t, _, err = WriteToken(ctx, in.Dialer, in.c, rec.ID, rec.Generation, may)
		}
		if err == nil && t.EntryTerm == t.Term {
			return nil
		}
		if errors.Is(err, ErrBound) || ctx.Err() != nil {
			break
		}
		if err == nil {
			list, lerr := in.c.MemberList(ctx)
			if lerr != nil {
				return fmt.Errorf("the pair token: %w", lerr)
			}
			in.list, err = list, errors.New("the pair token: the term changed while it was written")
		}
	}
	return err
}
