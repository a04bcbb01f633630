package workload

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"twok/testing/history"
)

// Site is where clients are.
type Site struct {
	Name string
	// URL of the member's client port.
	URL string
	// Dial connects from the site. Nil: from wherever the program is.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	TLS  *tls.Config
}

// Config describes a load.
type Config struct {
	Sites []Site
	// Clients at each site. Default 4.
	Clients int
	Seed    uint64
	// Pause of a client after an operation, on average. Default 15 ms.
	Pause time.Duration
	// Deadline of an operation. Default 1 s.
	Deadline time.Duration
	// Large makes one value in four so many bytes long.
	Large int
}

// Load is clients at work.
type Load struct {
	rec     *history.Recorder
	clients []*clientv3.Client
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	stopWatch context.CancelFunc
	watches   sync.WaitGroup
}

// Start starts the clients and the watches.
func Start(cfg Config, rec *history.Recorder) (*Load, error) {
	if cfg.Clients <= 0 {
		cfg.Clients = 4
	}
	if cfg.Pause <= 0 {
		cfg.Pause = 15 * time.Millisecond
	}
	if cfg.Deadline <= 0 {
		cfg.Deadline = time.Second
	}
	l := &Load{rec: rec}
	ctx, cancel := context.WithCancel(context.Background())
	wctx, stopWatch := context.WithCancel(context.Background())
	l.cancel, l.stopWatch = cancel, stopWatch
	n := 0
	for _, s := range cfg.Sites {
		for range cfg.Clients {
			cl, err := l.dial(s)
			if err != nil {
				l.Stop()
				l.StopWatches()
				return nil, err
			}
			c := &client{
				n: n, site: s.Name, cfg: cfg, cl: cl, rec: rec,
				rng: rand.New(rand.NewPCG(cfg.Seed, uint64(n))), last: map[string]history.KV{},
			}
			n++
			l.wg.Go(func() { c.run(ctx) })
		}
		cl, err := l.dial(s)
		if err != nil {
			l.Stop()
			l.StopWatches()
			return nil, err
		}
		l.watches.Go(func() { watch(wctx, s.Name, cl, rec) })
	}
	return l, nil
}

func (l *Load) dial(s Site) (*clientv3.Client, error) {
	opts := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.3, Jitter: 0.1, MaxDelay: 200 * time.Millisecond},
		MinConnectTimeout: time.Second,
	})}
	if s.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(s.Dial))
	}
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{s.URL}, TLS: s.TLS, Logger: zap.NewNop(), DialOptions: opts})
	if err != nil {
		return nil, fmt.Errorf("client of %s at %s: %w", s.Name, s.URL, err)
	}
	l.clients = append(l.clients, cl)
	return cl, nil
}

// Stop ends the clients; the watches go on.
func (l *Load) Stop() {
	l.cancel()
	l.wg.Wait()
}

// StopWatches ends the watches, and with them the load.
func (l *Load) StopWatches() {
	l.stopWatch()
	l.watches.Wait()
	for _, c := range l.clients {
		c.Close()
	}
	l.clients = nil
}

// watch follows the whole key space and goes on where it was after whatever ends it.
func watch(ctx context.Context, site string, cl *clientv3.Client, rec *history.Recorder) {
	next := int64(1)
	for ctx.Err() == nil {
		// A watch that needs a leader ends where there is none, as a kube-apiserver's does.
		wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
		for resp := range cl.Watch(wctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(next)) {
			if resp.CompactRevision > 0 {
				rec.Watch(site, history.Event{Rev: resp.CompactRevision, Compacted: true})
				next = resp.CompactRevision
			}
			if resp.Err() != nil {
				break
			}
			for _, e := range resp.Events {
				rec.Watch(site, history.Event{
					Rev: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: string(e.Kv.Value), Delete: e.Type == clientv3.EventTypeDelete,
				})
				next = e.Kv.ModRevision + 1
			}
		}
		cancel()
		sleep(ctx, 50*time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// client makes one operation after the other.
type client struct {
	n    int
	site string
	cfg  Config
	cl   *clientv3.Client
	rec  *history.Recorder
	rng  *rand.Rand

	seq    int
	last   map[string]history.KV // what it saw of each key last
	leases []history.Op          // LeasePuts whose lease it may revoke
}

func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		pause := c.cfg.Pause/2 + time.Duration(c.rng.Int64N(int64(c.cfg.Pause)))
		if err := c.one(ctx); err != nil {
			pause += 50 * time.Millisecond
		}
		sleep(ctx, pause)
	}
}

// value is a new one.
func (c *client) value() string {
	c.seq++
	v := fmt.Sprintf("%d.%d", c.n, c.seq)
	if c.cfg.Large > 0 && c.seq%4 == 0 {
		v += "." + strings.Repeat("x", c.cfg.Large)
	}
	return v
}

func (c *client) one(ctx context.Context) error {
	register := fmt.Sprintf("r%d/v", c.rng.IntN(4))
	group := fmt.Sprintf("t%d", c.rng.IntN(2))
	switch x := c.rng.IntN(100); {
	case x < 30:
		return c.unique(ctx)
	case x < 42:
		return c.put(ctx, register)
	case x < 56:
		return c.cas(ctx, register)
	case x < 60:
		return c.del(ctx, register)
	case x < 72:
		return c.txn(ctx, group)
	case x < 79:
		return c.get(ctx, history.Get, "r"+register[1:2])
	case x < 86:
		return c.get(ctx, history.Get, group)
	case x < 96:
		return c.get(ctx, history.StaleGet, group)
	default:
		return c.lease(ctx)
	}
}

// do makes the call and takes it down. ok fills in what the reply says.
func (c *client) do(ctx context.Context, o history.Op, call func(context.Context) (revision int64, ok func(*history.Op), err error)) error {
	o.Client, o.Site = c.n, c.site
	id := c.rec.Call(o)
	cctx, cancel := context.WithTimeout(ctx, c.cfg.Deadline)
	rev, ok, err := call(cctx)
	cancel()
	c.rec.Return(id, func(o *history.Op) {
		if err != nil {
			o.Error, o.Outcome = err.Error(), history.Unknown
			if refused(err) || len(o.Writes) == 0 && o.Kind != history.Grant {
				o.Outcome = history.Failed
			}
			return
		}
		o.Outcome, o.Revision, o.Applied = history.OK, rev, true
		if ok != nil {
			ok(o)
		}
		for _, kv := range o.Seen {
			c.last[kv.Key] = kv
		}
		if o.Applied {
			for _, w := range o.Writes {
				c.last[w.Key] = history.KV{Key: w.Key, Value: w.Value, Mod: rev}
				if w.Delete {
					c.last[w.Key] = history.KV{Key: w.Key}
				}
			}
		}
	})
	return err
}

// refused says whether etcd says with this error that it did not propose, or not apply, the request.
// All others leave that open; so does "unavailable", even where nobody listens.
func refused(err error) bool {
	if errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return true
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}

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
