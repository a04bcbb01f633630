package etcdapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

var (
	// ErrFutureRevision: the member has not got this revision yet; try again.
	ErrFutureRevision = errors.New("the member has not got this revision yet")
	// ErrCompacted: the revision is gone at this member; take a newer one.
	ErrCompacted = errors.New("the revision was compacted")
	// ErrOtherCluster: the member belongs to another cluster.
	ErrOtherCluster = errors.New("the member belongs to another cluster")
	// errDialledOnce: the connection of Once was lost.
	errDialledOnce = errors.New("the connection is dialled once only and was lost")
)

// Dialer reaches members. Nil TLS configurations mean plain text.
type Dialer struct {
	ClientTLS *tls.Config // for client ports
	PeerTLS   *tls.Config // for peer ports, with the peer certificate
	// ClientRoots and PeerRoots are the authorities, asked for each connection, so that a changed file is noticed.
	// nil: those of ClientTLS and PeerTLS. Without these they are not asked.
	ClientRoots, PeerRoots func() *x509.CertPool

	peers atomic.Pointer[http.Client]
}

// fast reconnects soon: a member that comes back is noticed within a tick or two.
var fast = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: 500 * time.Millisecond,
})

// Client is a client of the members at these client URLs. It does not connect
// before its first call. The caller closes it.
func (d *Dialer) Client(urls ...string) (*clientv3.Client, error) {
	return d.client(urls, fast)
}

// Once is a client whose single connection is dialled now or never: after its
// loss every call fails instead of reaching whoever listens there by then (P14).
func (d *Dialer) Once(url string) (*clientv3.Client, error) {
	var dialled atomic.Bool
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if dialled.Swap(true) {
			return nil, errDialledOnce
		}
		network := "tcp"
		if p, ok := strings.CutPrefix(addr, "unix:"); ok {
			network, addr = "unix", strings.TrimPrefix(p, "//")
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	return d.client([]string{url}, grpc.WithContextDialer(dial))
}

func (d *Dialer) client(urls []string, opts ...grpc.DialOption) (*clientv3.Client, error) {
	if len(urls) == 0 {
		return nil, errors.New("no client URL is known")
	}
	if d.ClientTLS != nil && d.ClientRoots != nil {
		opts = append(opts, grpc.WithTransportCredentials(handshakes{d.ClientTLS, d.ClientRoots, credentials.NewTLS(d.ClientTLS)}))
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: urls, TLS: d.ClientTLS, Logger: zap.NewNop(), DialOptions: opts,
		// A retry would hide an outcome; the callers look again instead (F6).
		MaxUnaryRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client for %s: %w", strings.Join(urls, ","), err)
	}
	return c, nil
}

func (d *Dialer) http() *http.Client {
	if c := d.peers.Load(); c != nil {
		return c
	}
	dialer := &net.Dialer{Timeout: 2 * time.Second}
	t := &http.Transport{
		TLSClientConfig: d.PeerTLS, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, DialContext: dialer.DialContext,
	}
	if d.PeerTLS != nil && d.PeerRoots != nil {
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return (&tls.Dialer{NetDialer: dialer, Config: WithRoots(d.PeerTLS, d.PeerRoots)}).DialContext(ctx, network, addr)
		}
	}
	c := &http.Client{Transport: t}
	if d.peers.CompareAndSwap(nil, c) {
		return c
	}
	return d.peers.Load()
}

func (d *Dialer) get(ctx context.Context, url, path string, body []byte, header http.Header) ([]byte, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("peer port %s: %w", url, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := d.http().Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("peer port: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, resp.StatusCode, fmt.Errorf("peer port %s%s: %w", url, path, err)
	}
	return b, resp.StatusCode, nil
}

func (d *Dialer) getOK(ctx context.Context, url, path string, into any) error {
	b, code, err := d.get(ctx, url, path, nil, nil)
	if err != nil {
		return err
	}
	if code != http.StatusOK {
		return fmt.Errorf("peer port %s%s: HTTP status %d: %s", url, path, code, bytes.TrimSpace(b))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("peer port %s%s: %w", url, path, err)
	}
	return nil
}

// Probe asks a peer port as etcd's own peers do; a bare connect would fill its log.
func (d *Dialer) Probe(ctx context.Context, peerURL string) error {
	return d.getOK(ctx, peerURL, "/raft/probing", nil)
}

// PeerVersion returns the server's and the cluster's version, such as "3.6.16"
// and "3.6.0"; the latter is "not_decided" while there is none. It answers without a leader.
func (d *Dialer) PeerVersion(ctx context.Context, peerURL string) (server, cluster string, err error) {
	var v struct {
		Server  string `json:"etcdserver"`
		Cluster string `json:"etcdcluster"`
	}
	err = d.getOK(ctx, peerURL, "/version", &v)
	return v.Server, v.Cluster, err
}

// Member is a member as its list shows it.
type Member struct {
	ID         uint64   `json:"id"`
	Name       string   `json:"name"`
	PeerURLs   []string `json:"peerURLs"`
	ClientURLs []string `json:"clientURLs"`
	Learner    bool     `json:"isLearner"`
}

// PeerMembers reads the member list from a peer port: for addresses only (invariant 3).
func (d *Dialer) PeerMembers(ctx context.Context, peerURL string) ([]Member, error) {
	var ms []Member
	if err := d.getOK(ctx, peerURL, "/members", &ms); err != nil {
		return nil, err
	}
	return ms, nil
}

// Hash is a key-space hash. Two are comparable only at the same revision and
// the same compact revision.
type Hash struct {
	Hash            uint32 `json:"hash"`
	CompactRevision int64  `json:"compact_revision"`
	Revision        int64  `json:"hash_revision"`
}

// HashKV reads the hash at a revision from a peer port; learners answer too.
// ErrFutureRevision: not there yet. ErrCompacted, ErrOtherCluster: as named.
func (d *Dialer) HashKV(ctx context.Context, peerURL string, cluster uint64, revision int64) (Hash, error) {
	h := http.Header{"Content-Type": {"application/json"}, "X-Etcd-Cluster-Id": {strconv.FormatUint(cluster, 16)}}
	b, code, err := d.get(ctx, peerURL, "/members/hashkv", fmt.Appendf(nil, `{"revision":%d}`, revision), h)
	if err != nil {
		return Hash{}, err
	}
	text := string(bytes.TrimSpace(b))
	switch {
	case code == http.StatusOK:
		var hash Hash
		if err := json.Unmarshal(b, &hash); err != nil {
			return Hash{}, fmt.Errorf("hash at %s: %w", peerURL, err)
		}
		return hash, nil
	case code == http.StatusPreconditionFailed:
		return Hash{}, fmt.Errorf("hash at %s: %w", peerURL, ErrOtherCluster)
	case strings.Contains(text, "future revision"):
		return Hash{}, fmt.Errorf("hash at %s, revision %d: %w", peerURL, revision, ErrFutureRevision)
	case strings.Contains(text, "compacted"):
		return Hash{}, fmt.Errorf("hash at %s, revision %d: %w", peerURL, revision, ErrCompacted)
	}
	return Hash{}, fmt.Errorf("hash at %s: HTTP status %d: %s", peerURL, code, text)
}

// Status asks the member over the client's own connection; the client's Status
// would dial another one for each call.
func Status(ctx context.Context, c *clientv3.Client) (*pb.StatusResponse, error) {
	return pb.NewMaintenanceClient(c.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
}
