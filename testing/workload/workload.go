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
	// User and Password log in. The client library asks for a new token where one is refused.
	User, Password string
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
	cl, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.URL}, TLS: s.TLS, Username: s.User, Password: s.Password, Logger: zap.NewNop(), DialOptions: opts,
	})
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
					Rev: e.Kv.ModRevision, Key: string(e.Kv.Key), Value: history.Value(e.Kv.Value), Delete: e.Type == clientv3.EventTypeDelete,
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
			// The client library repeats a revocation by itself: the second try finds no lease where the first one was not answered.
			twice := o.Kind == history.Revoke && errors.Is(err, rpctypes.ErrLeaseNotFound)
			if refused(err) && !twice || len(o.Writes) == 0 && o.Kind != history.Grant {
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
// All others leave that open: "unavailable", even where nobody listens, and "no space", with which etcd answers a write that
// went over the quota and was applied, too (etcd server, quotaApplierV3).
func refused(err error) bool {
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return true
	}
	code := status.Code(err)
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) { // the client library has made it of the status
		code = e.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return false
}
