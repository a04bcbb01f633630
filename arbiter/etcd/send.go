package etcd

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"

	"twok/arbiter"
)

// send makes one call (R1): the request goes to the first endpoint that is
// reached and does not say that it cannot serve.
func (r *Register) send(ctx context.Context, o op, request func(context.Context, pb.KVClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	ctx = clientv3.WithRequireLeader(ctx)
	r.mu.Lock()
	first := r.first
	r.mu.Unlock()
	n := len(r.cfg.Endpoints)
	class, nowhere := error(nil), []error{}
	for i := range n {
		endpoint := (first + i) % n
		if err := ctx.Err(); err != nil {
			class, nowhere = arbiter.ErrUnavailable, append(nowhere, fmt.Errorf("nothing was sent: %w", err))
			break
		}
		v, err := r.sendTo(ctx, r.cfg.Endpoints[endpoint], n-i, o, request)
		if err == nil {
			r.prefer(endpoint)
			return nil
		}
		if n > 1 {
			err = fmt.Errorf("%s: %w", r.cfg.Endpoints[endpoint], err)
		}
		if v.remedy != "" {
			err = fmt.Errorf("%w; %s", err, v.remedy)
		}
		if !v.elsewhere {
			// The next call begins elsewhere if this one got no answer that settles it.
			if v.class == arbiter.ErrUnknown || v.class == arbiter.ErrUnavailable {
				r.prefer((endpoint + 1) % n)
			}
			return fmt.Errorf("%w: %w", v.class, err)
		}
		nowhere = append(nowhere, err)
		if class == nil || v.class == arbiter.ErrUnavailable { // may end by itself
			class = v.class
		}
	}
	return fmt.Errorf("%w: %w", class, joined(nowhere))
}

// joined is several errors in one line.
func joined(errs []error) error {
	err := errs[0]
	for _, e := range errs[1:] {
		err = fmt.Errorf("%w. %w", err, e)
	}
	return err
}

func (r *Register) prefer(endpoint int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first = endpoint
}

// sendTo makes the request at one endpoint, over a connection of its own. shares:
// among how many endpoints the time that is left is to be divided while nothing is sent.
func (r *Register) sendTo(ctx context.Context, endpoint string, shares int, o op, request func(context.Context, pb.KVClient) error) (verdict, error) {
	var w watcher
	c, err := r.dial(endpoint, &w)
	if err != nil {
		return verdict{class: arbiter.ErrMisconfigured}, err
	}
	defer c.Close()
	early, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok && shares > 1 {
		early, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(shares))
	}
	defer cancel()
	if !connected(early, c.ActiveConnection()) {
		return verdict{class: arbiter.ErrUnavailable, elsewhere: true}, fmt.Errorf("no connection: %w", early.Err())
	}
	kv := pb.NewKVClient(c.ActiveConnection())
	for again := false; ; again = true {
		token, v, err := r.login(early, c, again)
		if err != nil {
			return v, fmt.Errorf("log in: %w", err)
		}
		rctx := ctx
		if token != "" {
			rctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
		}
		w.sent.Store(false)
		err = request(rctx, kv)
		switch {
		case err == nil:
			return verdict{}, nil
		case token != "" && !again && desc(err) == desc(rpctypes.ErrGRPCInvalidAuthToken):
			continue
		}
		return classify(o, w.sent.Load(), err), cause(ctx, err)
	}
}

// dial makes a client of one endpoint. It does not connect yet.
func (r *Register) dial(endpoint string, w *watcher) (*clientv3.Client, error) {
	scheme, secure := "http://", r.cfg.TLS.Clone()
	if secure != nil {
		scheme = "https://"
		if r.cfg.Roots != nil {
			secure.RootCAs = r.cfg.Roots()
		}
	}
	return clientv3.New(clientv3.Config{
		Endpoints:       []string{scheme + endpoint},
		TLS:             secure,
		Logger:          zap.NewNop(),
		MaxUnaryRetries: 1, // attempts, not retries: 1 is none (R1)
		DialOptions: []grpc.DialOption{
			grpc.WithStatsHandler(w),
			grpc.WithDisableRetry(),
			grpc.WithNoProxy(), // a proxy from the environment may resend
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			}),
		},
	})
}

// connected waits until a connection was made or was refused; false if ctx ended before.
func connected(ctx context.Context, conn *grpc.ClientConn) bool {
	for conn.Connect(); ; {
		s := conn.GetState()
		if s == connectivity.Ready || s == connectivity.TransientFailure {
			return true // the request itself says why
		}
		if !conn.WaitForStateChange(ctx, s) {
			return false
		}
	}
}

// login returns the token of the last login, or "" if there is none to make.
// Nothing of the register is sent.
func (r *Register) login(ctx context.Context, c *clientv3.Client, anew bool) (string, verdict, error) {
	if r.cfg.Login == nil {
		return "", verdict{}, nil
	}
	r.mu.Lock()
	token := r.token
	r.mu.Unlock()
	if token != "" && !anew {
		return token, verdict{}, nil
	}
	user, password, err := r.cfg.Login()
	if err != nil {
		return "", verdict{class: arbiter.ErrMisconfigured}, err
	}
	resp, err := pb.NewAuthClient(c.ActiveConnection()).Authenticate(ctx, &pb.AuthenticateRequest{Name: user, Password: password})
	switch {
	case err == nil:
		token = resp.Token
	case desc(err) == desc(rpctypes.ErrGRPCAuthNotEnabled):
		token = "" // everybody may do everything
	default:
		return "", classify(opRange, false, err), cause(ctx, err)
	}
	r.mu.Lock()
	r.token = token
	r.mu.Unlock()
	return token, verdict{}, nil
}

// watcher notices that a request of the register was given to a connection (R4).
type watcher struct{ sent atomic.Bool }

func (w *watcher) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (w *watcher) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (w *watcher) HandleConn(context.Context, stats.ConnStats)                       {}

func (w *watcher) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.OutHeader); ok && h.Client {
		w.sent.Store(true)
	}
}
