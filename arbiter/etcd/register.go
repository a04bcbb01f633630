package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
)

const (
	// DefaultTimeout bounds a call whose context has no earlier deadline.
	DefaultTimeout = 5 * time.Second
	// MaxValue is the largest value in bytes.
	MaxValue = 64 << 10
	maxKey   = 1024
)

// Config of a Register.
type Config struct {
	// Endpoints are the client ports (host:port) of members of one cluster.
	Endpoints []string
	// Key of the value.
	Key string
	// TLS of the connections; nil is plain text.
	TLS *tls.Config
	// Roots are the authorities, asked for each connection, so that a changed file is noticed. nil: those of
	// TLS. Without TLS it is not asked.
	Roots func() *x509.CertPool
	// Login returns the user and password, and is asked at every login, so that a
	// changed file is noticed. nil: no login; a client certificate may be one.
	Login func() (user, password string, err error)
	// Timeout of one call; 0 is DefaultTimeout.
	Timeout time.Duration
}

// Register is an arbiter.Register; see the package documentation.
type Register struct {
	cfg   Config
	shown string

	mu      sync.Mutex
	first   int    // the endpoint that is tried first
	token   string // of the last login
	cluster uint64 // that answered; 0: none yet
	other   uint64 // the second cluster that answered (R6)
}

var _ arbiter.Register = (*Register)(nil)

// New checks the configuration and sends nothing. Its error is ErrMisconfigured.
func New(cfg Config) (*Register, error) {
	r := &Register{cfg: cfg, shown: "etcd://" + strings.Join(cfg.Endpoints, ",") + "/" + cfg.Key}
	fail := func(format string, args ...any) (*Register, error) {
		return nil, fmt.Errorf("the arbiter %s: %w: %w", r.shown, arbiter.ErrMisconfigured, fmt.Errorf(format, args...))
	}
	switch {
	case len(cfg.Endpoints) == 0:
		return fail("it names no endpoint; use etcd://HOST:PORT[,HOST:PORT]/KEY")
	case cfg.Key == "":
		return fail("it names no key; use one for each pair, for example %s/my-pair", strings.TrimRight(r.shown, "/"))
	case len(cfg.Key) > maxKey:
		return fail("the key has %d bytes, at most %d", len(cfg.Key), maxKey)
	case strings.ContainsRune(cfg.Key, 0):
		return fail("the key has a zero byte")
	case cfg.Timeout < 0:
		return fail("the timeout %v is negative", cfg.Timeout)
	}
	seen := map[string]bool{}
	for _, e := range cfg.Endpoints {
		host, port, err := net.SplitHostPort(e)
		n, perr := strconv.ParseUint(port, 10, 16)
		switch {
		case err != nil:
			return fail("endpoint %q is not HOST:PORT: %w", e, err)
		case host == "" || strings.ContainsAny(host, "/@ "):
			return fail("endpoint %q has no usable host", e)
		case perr != nil || n == 0:
			return fail("endpoint %q has no usable port; etcd's clients use 2379", e)
		case seen[e]:
			return fail("endpoint %q is named twice", e)
		}
		seen[e] = true
	}
	if cfg.Timeout == 0 {
		r.cfg.Timeout = DefaultTimeout
	}
	return r, nil
}

// String is the endpoints and the key as a URL.
func (r *Register) String() string { return r.shown }

// Read implements arbiter.Register.
func (r *Register) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	fail := func(err error) ([]byte, arbiter.Version, error) {
		return nil, arbiter.Absent, fmt.Errorf("read %s: %w", r.shown, err)
	}
	resp, err := r.get(ctx)
	if err != nil {
		return fail(err)
	}
	if len(resp.Kvs) == 0 {
		return nil, arbiter.Absent, nil
	}
	kv := resp.Kvs[0]
	switch {
	case len(kv.Value) > MaxValue:
		return fail(fmt.Errorf("%w: the value has %d bytes, a record at most %d; is it another program's key?", arbiter.ErrMisconfigured, len(kv.Value), MaxValue))
	case kv.Lease != 0:
		return fail(fmt.Errorf("%w: the key has the lease %x and would vanish with it; twok writes none: find out who put it, and revoke nothing before the key is written without a lease",
			arbiter.ErrMisconfigured, kv.Lease))
	case kv.Value == nil:
		kv.Value = []byte{}
	}
	return kv.Value, at(resp.Header.ClusterId, kv.ModRevision), nil
}

// ClusterID reads the key and returns the ID of the cluster that answered, for a
// comparison with the guarded one's: an etcd that guards itself decides nothing
// when it has no majority. The classes are Read's.
func (r *Register) ClusterID(ctx context.Context) (uint64, error) {
	resp, err := r.get(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask %s for its cluster ID: %w", r.shown, err)
	}
	return resp.Header.ClusterId, nil
}

func (r *Register) get(ctx context.Context) (*pb.RangeResponse, error) {
	var resp *pb.RangeResponse
	err := r.send(ctx, opRange, func(ctx context.Context, kv pb.KVClient) (err error) {
		resp, err = kv.Range(ctx, &pb.RangeRequest{Key: []byte(r.cfg.Key)})
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := r.sameCluster(resp.Header.GetClusterId()); err != nil {
		return nil, err
	}
	return resp, nil
}

// CompareAndSwap implements arbiter.Register.
func (r *Register) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	fail := func(class error, format string, args ...any) error {
		return fmt.Errorf("swap %s: %w: %w", r.shown, class, fmt.Errorf(format, args...))
	}
	if len(next) > MaxValue {
		return fail(arbiter.ErrMisconfigured, "the new value has %d bytes, at most %d", len(next), MaxValue)
	}
	var revision int64 // 0: there is no such key
	var cluster uint64
	if prev.Exists() { // R2
		var ok bool
		if cluster, revision, ok = parseTag(prev.Tag()); !ok {
			return fail(arbiter.ErrConflict, "version %.80q is not one that this store gave", prev.Tag())
		}
		if known := r.known(); known != 0 && known != cluster {
			return fail(arbiter.ErrConflict, "version %.80q is of another cluster than %x, which answers", prev.Tag(), known)
		}
	}
	key := []byte(r.cfg.Key)
	compare := clientv3.Compare(clientv3.ModRevision(r.cfg.Key), "=", revision)
	var resp *pb.TxnResponse
	err := r.send(ctx, opTxn, func(ctx context.Context, kv pb.KVClient) (err error) {
		resp, err = kv.Txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{compare.GetCompare()},
			Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: next}}}},
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("swap %s: %w", r.shown, err)
	}
	answered := resp.Header.GetClusterId()
	if err := r.sameCluster(answered); err != nil || cluster != 0 && cluster != answered {
		if resp.Succeeded { // somewhere, over something that nobody read
			return fail(arbiter.ErrUnknown, "it was applied by another cluster, %x", answered)
		}
		return fail(arbiter.ErrConflict, "another cluster, %x, answered", answered)
	}
	if !resp.Succeeded {
		if prev.Exists() {
			return fail(arbiter.ErrConflict, "its mod revision is no longer %d", revision)
		}
		return fail(arbiter.ErrConflict, "the key exists")
	}
	return nil
}

// at is the version of a key: the cluster's ID in hexadecimal, '-', the mod revision.
func at(cluster uint64, revision int64) arbiter.Version {
	return arbiter.At(fmt.Sprintf("%x-%d", cluster, revision))
}

func parseTag(tag string) (cluster uint64, revision int64, ok bool) {
	a, b, _ := strings.Cut(tag, "-")
	cluster, err := strconv.ParseUint(a, 16, 64)
	revision, err2 := strconv.ParseInt(b, 10, 64)
	ok = err == nil && err2 == nil && cluster != 0 && revision > 0
	return cluster, revision, ok && at(cluster, revision) == arbiter.At(tag)
}

func (r *Register) known() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cluster
}

// sameCluster is R6.
func (r *Register) sameCluster(id uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case id == 0:
		return fmt.Errorf("%w: the answer names no cluster; is this an etcd?", arbiter.ErrMisconfigured)
	case r.cluster == 0:
		r.cluster = id
	case r.cluster != id && r.other == 0:
		r.other = id
	}
	if r.other != 0 {
		return fmt.Errorf("%w: the clusters %x and %x both answered: the endpoints belong to two, or the arbiter was replaced; correct the endpoints, or restart the agents if it was replaced on purpose",
			arbiter.ErrMisconfigured, r.cluster, r.other)
	}
	return nil
}
