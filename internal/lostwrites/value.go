package lostwrites

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"

	"twok/internal/member"
	"twok/walsurgery"
)

// Value is a value in the directory. It is read when it is asked for: what a member wrote alone for
// days need not fit into memory.
type Value struct {
	n   int
	d   *dir
	db  member.Ref // a whole mvccpb.KeyValue, if index is 0
	mem []byte     // instead of db, if that has no place of its own
	// The n-th put in the request of a WAL entry (see puts).
	index uint64
	put   int
}

// Len is the length in bytes.
func (v Value) Len() int { return v.n }

// Bytes reads the value. It belongs to the caller.
func (v Value) Bytes() ([]byte, error) {
	switch {
	case v.n == 0:
		return nil, nil
	case v.index > 0:
		req, err := v.d.request(v.index)
		if err != nil {
			return nil, err
		}
		if ps := puts(req); v.put < len(ps) {
			return ps[v.put].Value, nil
		}
		return nil, fmt.Errorf("entry %d has no put %d any more", v.index, v.put)
	case v.mem != nil:
		return v.mem, nil
	}
	b, err := v.d.db.Read(v.db)
	if err != nil {
		return nil, err
	}
	kv, err := parseKV(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", member.ErrDatabase, err)
	}
	return kv.value, nil
}

// puts are all puts of a request, of both branches of transactions, in one fixed order.
func puts(r *etcdserverpb.InternalRaftRequest) []*etcdserverpb.PutRequest {
	var out []*etcdserverpb.PutRequest
	if r.GetPut() != nil {
		out = append(out, r.Put)
	}
	var txn func(t *etcdserverpb.TxnRequest)
	txn = func(t *etcdserverpb.TxnRequest) {
		for _, branch := range [][]*etcdserverpb.RequestOp{t.GetSuccess(), t.GetFailure()} {
			for _, op := range branch {
				if p := op.GetRequestPut(); p != nil {
					out = append(out, p)
				} else if n := op.GetRequestTxn(); n != nil {
					txn(n)
				}
			}
		}
	}
	txn(r.GetTxn())
	return out
}

// rawKV is an mvccpb.KeyValue whose slices lie in what was parsed.
type rawKV struct {
	key, value                    []byte
	create, mod, version, leaseID int64
}

// parseKV is proto.Unmarshal for an mvccpb.KeyValue, without copies: a database has millions.
func parseKV(b []byte) (rawKV, error) {
	var kv rawKV
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return kv, protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case typ == protowire.BytesType && (num == 1 || num == 5):
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return kv, protowire.ParseError(n)
			}
			if b = b[n:]; num == 1 {
				kv.key = v
			} else {
				kv.value = v
			}
		case typ == protowire.VarintType && num <= 6:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return kv, protowire.ParseError(n)
			}
			b = b[n:]
			switch num {
			case 2:
				kv.create = int64(v)
			case 3:
				kv.mod = int64(v)
			case 4:
				kv.version = int64(v)
			case 6:
				kv.leaseID = int64(v)
			}
		default:
			return kv, fmt.Errorf("a key-value pair with field %d of type %d", num, typ)
		}
	}
	return kv, nil
}

// request reads and decodes the request of an entry again.
func (d *dir) request(index uint64) (*etcdserverpb.InternalRaftRequest, error) {
	for e := range d.log.From(index) {
		if e.Index != index || e.Kind != walsurgery.KindNormal {
			break
		}
		return member.DecodeRequest(e.Data)
	}
	return nil, fmt.Errorf("entry %d cannot be read again: %w", index, walsurgery.ErrCorrupt)
}
