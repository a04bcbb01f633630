package member

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
	"twok/walsurgery"
)

// tail collects what the entries after consistent_index do to TokenKey and to the
// configuration (P4, P5). What etcd would do with them when it applies them is assumed
// in the way that denies: every branch of a transaction runs, no permission is lacking.
type tail struct {
	cluster uint64
	ops     failover.Tail
	why     error // why ops.Bad
	changes []failover.ConfChange
	unknown error // why a change is unknown
}

// entry takes the next entry. The error is that of an entry that could not be read.
func (t *tail) entry(e walsurgery.Entry) error {
	switch e.Kind {
	case walsurgery.KindNormal:
		t.request(e)
	case walsurgery.KindConfChange:
		c, err := confChange(e.Change)
		if err != nil && t.unknown == nil {
			t.unknown = fmt.Errorf("entry %d: %w", e.Index, err)
		}
		t.changes = append(t.changes, c)
	default:
		if e.Err != nil && !errors.Is(e.Err, walsurgery.ErrUnexpectedFormat) {
			return e.Err
		}
		if t.unknown == nil {
			t.unknown = fmt.Errorf("entry %d: %w", e.Index, e.Err)
		}
		t.changes = append(t.changes, failover.ConfChange{Kind: failover.ChangeUnknown})
	}
	return nil
}

func (t *tail) request(e walsurgery.Entry) {
	w := walker{key: []byte(TokenKey),
		put: func(p *etcdserverpb.PutRequest) {
			t.ops.Writes = true
			if err := t.put(p); err != nil {
				t.bad(e.Index, err)
			}
		},
		remove: func() { t.bad(e.Index, errors.New("a delete")) },
	}
	if err := w.data(e.Data); err != nil {
		t.bad(e.Index, err)
	}
}

func (t *tail) bad(index uint64, err error) {
	t.ops.Bad = true
	if t.why == nil {
		t.why = fmt.Errorf("entry %d: %w", index, err)
	}
}

func (t *tail) put(p *etcdserverpb.PutRequest) error {
	tok, _, err := DecodeToken(p.Value)
	switch {
	case p.Lease != 0 || p.IgnoreLease:
		return errors.New("a write with a lease")
	case p.IgnoreValue:
		return errors.New("a write that keeps whatever value there is")
	case err != nil:
		return err
	case tok.Cluster != t.cluster:
		return fmt.Errorf("a token of cluster %x", tok.Cluster)
	case t.ops.RecordID != "" && t.ops.RecordID != tok.RecordID:
		return fmt.Errorf("tokens of two records, %s and %s", t.ops.RecordID, tok.RecordID)
	}
	t.ops.RecordID, t.ops.Generation = tok.RecordID, max(t.ops.Generation, tok.Generation)
	return nil
}

// walker visits the operations of a request that touch one key.
type walker struct {
	key    []byte
	put    func(*etcdserverpb.PutRequest)
	remove func()
}

// data takes an entry's payload. The error says that it may touch keys in a way
// that is not understood. LeaseRevoke deletes the keys that are bound to the lease; a
// token never is, and one that is counts as bad before. Compaction keeps the newest revision.
func (w walker) data(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var r etcdserverpb.InternalRaftRequest
	if err := proto.Unmarshal(b, &r); err != nil {
		if isV2(b) {
			return nil
		}
		return fmt.Errorf("a request that does not decode: %w", err)
	}
	// Field 2 was v2: it reaches the store of etcd 2, which has no such key.
	if err := unknownFields(&r, 2); err != nil {
		return err
	}
	if r.Put != nil {
		if err := w.onPut(r.Put); err != nil {
			return err
		}
	}
	if r.DeleteRange != nil {
		if err := w.onDelete(r.DeleteRange); err != nil {
			return err
		}
	}
	if r.Txn != nil {
		return w.onTxn(r.Txn)
	}
	return nil
}

func (w walker) onPut(p *etcdserverpb.PutRequest) error {
	if !bytes.Equal(p.Key, w.key) {
		return nil
	}
	w.put(p)
	return unknownFields(p)
}

// onDelete: etcd server/etcdserver/txn, mkGteRange: "\x00" as the end is no end.
func (w walker) onDelete(d *etcdserverpb.DeleteRangeRequest) error {
	hit := false
	switch {
	case len(d.RangeEnd) == 0:
		hit = bytes.Equal(d.Key, w.key)
	case len(d.RangeEnd) == 1 && d.RangeEnd[0] == 0:
		hit = bytes.Compare(d.Key, w.key) <= 0
	default:
		hit = bytes.Compare(d.Key, w.key) <= 0 && bytes.Compare(w.key, d.RangeEnd) < 0
	}
	if hit {
		w.remove()
	}
	return unknownFields(d)
}

func (w walker) onTxn(t *etcdserverpb.TxnRequest) error {
	if err := unknownFields(t); err != nil {
		return err
	}
	for _, branch := range [][]*etcdserverpb.RequestOp{t.Success, t.Failure} {
		for _, op := range branch {
			var err error
			switch o := op.GetRequest().(type) {
			case *etcdserverpb.RequestOp_RequestRange:
			case *etcdserverpb.RequestOp_RequestPut:
				err = w.onPut(o.RequestPut)
			case *etcdserverpb.RequestOp_RequestDeleteRange:
				err = w.onDelete(o.RequestDeleteRange)
			case *etcdserverpb.RequestOp_RequestTxn:
				err = w.onTxn(o.RequestTxn)
			default:
				// An empty operation does nothing; an unknown one has unknown fields.
				err = unknownFields(op)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// unknownFields: a newer etcd may mean anything by them.
func unknownFields(m proto.Message, harmless ...protowire.Number) error {
	for b := m.ProtoReflect().GetUnknown(); len(b) > 0; {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return fmt.Errorf("%s does not decode: %w", m.ProtoReflect().Descriptor().Name(), protowire.ParseError(n))
		}
		b = b[n:]
		if len(harmless) == 0 || num != harmless[0] {
			return fmt.Errorf("%s has field %d, which this version does not know", m.ProtoReflect().Descriptor().Name(), num)
		}
	}
	return nil
}

// isV2 recognises a request to the store of etcd 2, as etcd 3.5 proposed it: an
// etcdserverpb.Request with ID (1), Method (2), Path (3).
func isV2(b []byte) bool {
	var method, path string
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > 18 {
			return false
		}
		b = b[n:]
		if typ == protowire.BytesType {
			v, n := protowire.ConsumeString(b)
			if n < 0 {
				return false
			}
			switch num {
			case 2:
				method = v
			case 3:
				path = v
			}
		}
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return false
		}
		b = b[n:]
	}
	switch method {
	case "SYNC":
		return true
	case "GET", "PUT", "POST", "DELETE", "QGET", "HEAD":
		return len(path) > 0 && path[0] == '/'
	}
	return false
}

// confChange reads a change as etcd does when it applies it (server/etcdserver,
// applyConfChange; membership.ConfigChangeContext). Where etcd would panic, or its
// membership and its raft would disagree, the change is unknown.
func confChange(c walsurgery.Change) (failover.ConfChange, error) {
	unknown := func(format string, args ...any) (failover.ConfChange, error) {
		return failover.ConfChange{Kind: failover.ChangeUnknown, ID: c.NodeID},
			fmt.Errorf("%s of %x: %s", c.Type, c.NodeID, fmt.Sprintf(format, args...))
	}
	if c.NodeID == 0 {
		return unknown("no member ID")
	}
	if c.Type == walsurgery.RemoveNode {
		return failover.ConfChange{Kind: failover.ChangeRemove, ID: c.NodeID}, nil
	}
	var m memberJSON
	if err := json.Unmarshal(c.Context, &m); err != nil {
		return unknown("context: %v", err)
	}
	if m.ID != c.NodeID {
		return unknown("its context names %x", m.ID)
	}
	out := failover.ConfChange{ID: c.NodeID, Learner: m.IsLearner, PeerURLs: m.PeerURLs}
	switch {
	case c.Type == walsurgery.UpdateNode:
		out.Kind = failover.ChangeUpdate
	case c.Type == walsurgery.AddNode && m.IsPromote:
		out.Kind, out.Learner, out.PeerURLs = failover.ChangePromote, false, nil
	case c.Type == walsurgery.AddNode && !m.IsLearner:
		out.Kind = failover.ChangeAdd
	case c.Type == walsurgery.AddLearner && m.IsLearner && !m.IsPromote:
		out.Kind = failover.ChangeAddLearner
	default:
		return unknown("learner %t, promotion %t", m.IsLearner, m.IsPromote)
	}
	return out, nil
}
