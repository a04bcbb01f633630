package workload

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/testing/history"
)

func (c *client) unique(ctx context.Context) error {
	v := c.value()
	key := fmt.Sprintf("u/%d/%d", c.n, c.seq)
	return c.do(ctx, history.Op{Kind: history.Unique, Writes: []history.Write{{Key: key, Value: v}}},
		func(ctx context.Context) (int64, func(*history.Op), error) {
			r, err := c.cl.Put(ctx, key, v)
			if err != nil {
				return 0, nil, err
			}
			return r.Header.Revision, nil, nil
		})
}

func (c *client) put(ctx context.Context, key string) error {
	v := c.value()
	return c.do(ctx, history.Op{Kind: history.Put, Group: groupOf(key), Writes: []history.Write{{Key: key, Value: v}}},
		func(ctx context.Context) (int64, func(*history.Op), error) {
			r, err := c.cl.Put(ctx, key, v, clientv3.WithPrevKV())
			if err != nil {
				return 0, nil, err
			}
			return r.Header.Revision, func(o *history.Op) {
				o.Seen = []history.KV{{Key: key}}
				if r.PrevKv != nil {
					o.Seen[0] = seen(r.PrevKv)
				}
			}, nil
		})
}

func (c *client) del(ctx context.Context, key string) error {
	return c.do(ctx, history.Op{Kind: history.Delete, Group: groupOf(key), Writes: []history.Write{{Key: key, Delete: true}}},
		func(ctx context.Context) (int64, func(*history.Op), error) {
			r, err := c.cl.Delete(ctx, key, clientv3.WithPrevKV())
			if err != nil {
				return 0, nil, err
			}
			return r.Header.Revision, func(o *history.Op) {
				o.Seen = []history.KV{{Key: key}}
				if len(r.PrevKvs) > 0 {
					o.Seen[0] = seen(r.PrevKvs[0])
				}
			}, nil
		})
}

// cond is that key is as this client saw it last.
func (c *client) cond(key string) (*history.Cond, clientv3.Cmp) {
	last := c.last[key]
	if !last.Present() {
		return &history.Cond{Key: key, Absent: true}, clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return &history.Cond{Key: key, Value: last.Value}, clientv3.Compare(clientv3.Value(key), "=", last.Value)
}

func (c *client) cas(ctx context.Context, key string) error {
	cond, cmp := c.cond(key)
	return c.transaction(ctx, history.CAS, groupOf(key), cond, []clientv3.Cmp{cmp}, []string{key}, []history.Write{{Key: key, Value: c.value()}})
}

func keysOf(group string) []string {
	if group[0] == 'r' {
		return []string{group + "/v"}
	}
	return []string{group + "/x", group + "/y", group + "/z"}
}

func groupOf(key string) string { return key[:strings.IndexByte(key, '/')] }

// txn writes one to three keys of the group, half the time on a condition, and reads all.
func (c *client) txn(ctx context.Context, group string) error {
	keys := keysOf(group)
	var cond *history.Cond
	var cmps []clientv3.Cmp
	if c.rng.IntN(2) == 0 {
		var cmp clientv3.Cmp
		cond, cmp = c.cond(keys[c.rng.IntN(3)])
		cmps = append(cmps, cmp)
	}
	var writes []history.Write
	for _, i := range c.rng.Perm(3)[:1+c.rng.IntN(3)] {
		writes = append(writes, history.Write{Key: keys[i], Value: c.value()})
	}
	return c.transaction(ctx, history.Txn, group, cond, cmps, keys, writes)
}

func (c *client) transaction(ctx context.Context, kind history.Kind, group string, cond *history.Cond, cmps []clientv3.Cmp, keys []string, writes []history.Write) error {
	var gets []clientv3.Op
	for _, k := range keys {
		gets = append(gets, clientv3.OpGet(k))
	}
	then := gets
	for _, w := range writes {
		then = append(then[:len(then):len(then)], clientv3.OpPut(w.Key, w.Value))
	}
	return c.do(ctx, history.Op{Kind: kind, Group: group, If: cond, Writes: writes},
		func(ctx context.Context) (int64, func(*history.Op), error) {
			r, err := c.cl.Txn(ctx).If(cmps...).Then(then...).Else(gets...).Commit()
			if err != nil {
				return 0, nil, err
			}
			return r.Header.Revision, func(o *history.Op) {
				o.Applied = r.Succeeded
				for i, k := range keys {
					kv := history.KV{Key: k}
					if g := r.Responses[i].GetResponseRange(); len(g.Kvs) > 0 {
						kv = seen(g.Kvs[0])
					}
					o.Seen = append(o.Seen, kv)
				}
			}, nil
		})
}

func (c *client) get(ctx context.Context, kind history.Kind, group string) error {
	opts := []clientv3.OpOption{clientv3.WithPrefix()}
	if kind == history.StaleGet {
		opts = append(opts, clientv3.WithSerializable())
	}
	return c.do(ctx, history.Op{Kind: kind, Group: group},
		func(ctx context.Context) (int64, func(*history.Op), error) {
			r, err := c.cl.Get(ctx, group+"/", opts...)
			if err != nil {
				return 0, nil, err
			}
			return r.Header.Revision, func(o *history.Op) {
				for _, k := range keysOf(group) {
					kv := history.KV{Key: k}
					for _, x := range r.Kvs {
						if string(x.Key) == k {
							kv = seen(x)
						}
					}
					o.Seen = append(o.Seen, kv)
				}
			}, nil
		})
}

// leaseTTL is longer than any run: an expiry is never the reason why a key is not there.
const leaseTTL = 24 * 3600

// lease revokes a lease, or grants one and writes a key under it.
func (c *client) lease(ctx context.Context) error {
	if len(c.leases) > 0 && c.rng.IntN(2) == 0 {
		old := c.leases[0]
		c.leases = c.leases[1:]
		return c.do(ctx, history.Op{Kind: history.Revoke, Lease: old.Lease, Writes: []history.Write{{Key: old.Writes[0].Key, Delete: true}}},
			func(ctx context.Context) (int64, func(*history.Op), error) {
				r, err := c.cl.Revoke(ctx, clientv3.LeaseID(old.Lease))
				if err != nil {
					return 0, nil, err
				}
				return r.Header.Revision, nil, nil
			})
	}
	var id int64
	err := c.do(ctx, history.Op{Kind: history.Grant}, func(ctx context.Context) (int64, func(*history.Op), error) {
		r, err := c.cl.Grant(ctx, leaseTTL)
		if err != nil {
			return 0, nil, err
		}
		id = int64(r.ID)
		return 0, func(o *history.Op) { o.Lease = id }, nil
	})
	if err != nil {
		return err
	}
	v := c.value()
	key := fmt.Sprintf("l/%d/%d", c.n, c.seq)
	put := history.Op{Kind: history.LeasePut, Lease: id, Writes: []history.Write{{Key: key, Value: v}}}
	err = c.do(ctx, put, func(ctx context.Context) (int64, func(*history.Op), error) {
		r, err := c.cl.Put(ctx, key, v, clientv3.WithLease(clientv3.LeaseID(id)))
		if err != nil {
			return 0, nil, err
		}
		return r.Header.Revision, nil, nil
	})
	if err == nil {
		c.leases = append(c.leases, put)
	}
	return err
}

func seen(kv *mvccpb.KeyValue) history.KV {
	return history.KV{Key: string(kv.Key), Value: string(kv.Value), Mod: kv.ModRevision, Create: kv.CreateRevision, Version: kv.Version}
}
