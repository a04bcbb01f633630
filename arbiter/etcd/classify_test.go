package etcd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"twok/arbiter"
)

func className(err error) string {
	switch err {
	case arbiter.ErrConflict:
		return "conflict"
	case arbiter.ErrUnavailable:
		return "unavailable"
	case arbiter.ErrForbidden:
		return "forbidden"
	case arbiter.ErrMisconfigured:
		return "misconfigured"
	}
	return "unknown"
}

// Every answer has its class, as the table of the package documentation says.
// Rules: P1; F11, F29, F30.
func TestClassTable(t *testing.T) {
	const unavailable, unknown, forbidden, misconfigured = "unavailable", "unknown", "forbidden", "misconfigured"
	unreachable := func(text string) error {
		return status.Error(codes.Unavailable, `connection error: desc = "transport: `+text+`"`)
	}
	for _, c := range []struct {
		err       error
		sent      bool
		txn, read string
		elsewhere bool
	}{
		// Refused before Raft, or by every member alike.
		{rpctypes.ErrGRPCPermissionDenied, true, forbidden, forbidden, false},
		{rpctypes.ErrGRPCUserEmpty, true, forbidden, forbidden, false},
		{rpctypes.ErrGRPCUserNotFound, true, forbidden, forbidden, false},
		{rpctypes.ErrGRPCAuthFailed, false, forbidden, forbidden, false},
		{rpctypes.ErrGRPCInvalidAuthToken, true, forbidden, forbidden, false},
		{rpctypes.ErrGRPCInvalidAuthMgmt, true, forbidden, forbidden, false},
		{rpctypes.ErrGRPCAuthOldRevision, true, unavailable, unavailable, false},
		{rpctypes.ErrGRPCNoLeader, true, unavailable, unavailable, true},
		{rpctypes.ErrGRPCNotSupportedForLearner, true, unavailable, unavailable, true},
		{rpctypes.ErrGRPCNotCapable, true, unavailable, unavailable, true},
		{rpctypes.ErrGRPCRequestTooManyRequests, true, unavailable, unavailable, false},
		// 3.7 sends this one with another code.
		{status.Error(codes.Unknown, "etcdserver: too many requests"), true, unavailable, unavailable, false},
		{rpctypes.ErrGRPCNoSpace, true, unavailable, unavailable, false},
		{rpctypes.ErrGRPCCorrupt, true, unavailable, unavailable, false},
		{rpctypes.ErrGRPCRequestTooLarge, true, misconfigured, misconfigured, false},
		{rpctypes.ErrGRPCEmptyKey, true, misconfigured, misconfigured, false},
		// The proposal may be on its way.
		{rpctypes.ErrGRPCTimeout, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCTimeoutDueToLeaderFail, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCTimeoutDueToConnectionLost, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCTimeoutWaitAppliedIndex, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCLeaderChanged, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCStopped, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCUnhealthy, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCDeadlineExceeded, true, unknown, unavailable, false},
		{rpctypes.ErrGRPCCanceled, true, unknown, unavailable, false},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), true, unknown, unavailable, false},
		{status.Error(codes.Canceled, "context canceled"), true, unknown, unavailable, false},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), true, unknown, unavailable, false},
		{status.Error(codes.Unavailable, "transport is closing"), true, unknown, unavailable, false},
		{status.Error(codes.Internal, "internal error"), true, unknown, unavailable, false},
		{status.Error(codes.Unknown, "what?"), true, unknown, unavailable, false},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max"), true, unknown, unavailable, false},
		{status.Error(codes.PermissionDenied, "a gateway says no"), true, unknown, unavailable, false},
		{errors.New("no status"), true, unknown, unavailable, false},
		{status.Error(codes.Unimplemented, "unknown service etcdserverpb.KV"), true, misconfigured, misconfigured, false},
		// No connection.
		{unreachable("Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"), false, unavailable, unavailable, true},
		{unreachable("Error while dialing: dial tcp: lookup nowhere: no such host"), false, unavailable, unavailable, true},
		{unreachable("error reading server preface: EOF"), false, unavailable, unavailable, true},
		{unreachable("error reading server preface: remote error: tls: certificate required"), false, forbidden, forbidden, true},
		{unreachable("error reading server preface: remote error: tls: expired certificate"), false, forbidden, forbidden, true},
		{unreachable("authentication handshake failed: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: x"), false, misconfigured, misconfigured, true},
		{unreachable("authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority"), false, misconfigured, misconfigured, true},
		{unreachable("authentication handshake failed: tls: first record does not look like a TLS handshake"), false, misconfigured, misconfigured, true},
		{unreachable("error reading server preface: http2: failed reading the frame payload: http2: frame too large, note that the frame header looked like an HTTP/1.1 header"), false, misconfigured, misconfigured, true},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), false, unavailable, unavailable, true},
		{status.Error(codes.Canceled, "context canceled"), false, unavailable, unavailable, true},
	} {
		for o, want := range map[op]string{opTxn: c.txn, opRange: c.read} {
			v := classify(o, c.sent, c.err)
			if got := className(v.class); got != want || v.elsewhere != c.elsewhere {
				t.Errorf("operation %d, sent %v, %v: %s, elsewhere %v; want %s, %v", o, c.sent, c.err, got, v.elsewhere, want, c.elsewhere)
			}
			if v.class != arbiter.ErrUnknown && v.class != arbiter.ErrUnavailable && v.remedy == "" {
				t.Errorf("%v: %s without a remedy", c.err, className(v.class))
			}
		}
	}
}

// Rules: P7; F13.
func TestCauseKeepsTheContextsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := cause(ctx, status.Error(codes.Canceled, "context canceled")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := cause(t.Context(), status.Error(codes.DeadlineExceeded, "x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := cause(t.Context(), status.Error(codes.Unavailable, "x")); errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Tags that no read of this store gave are conflicts and are not sent: there is
// nobody at the endpoint.
// Rules: P1; F28.
func TestForeignTagsAreNotSent(t *testing.T) {
	r := open(t, Config{Endpoints: []string{"127.0.0.1:1"}, Key: "k"})
	for _, tag := range []string{"", "0", "7", "-", "1-", "-7", "1-0", "1--7", "0-7", "1-07", "01-7", "X-7", "1-7 ", "1-+7", "A-7", "1-9223372036854775808"} {
		if err := r.CompareAndSwap(t.Context(), arbiter.At(tag), nil); arbiter.Class(err) != arbiter.ErrConflict {
			t.Errorf("%q: %v", tag, err)
		}
	}
	for _, v := range []arbiter.Version{arbiter.Absent, at(1, 7)} {
		if err := r.CompareAndSwap(t.Context(), v, nil); arbiter.Class(err) != arbiter.ErrUnavailable {
			t.Errorf("%+v: %v", v, err)
		}
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, make([]byte, MaxValue+1)); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("too large: %v", err)
	}
}

// Rules: none (configuration).
func TestNewRefuses(t *testing.T) {
	ok := []string{"127.0.0.1:2379"}
	for _, cfg := range []Config{
		{}, {Key: "k"}, {Endpoints: ok}, {Endpoints: []string{""}, Key: "k"}, {Endpoints: []string{"host"}, Key: "k"},
		{Endpoints: []string{"host:0"}, Key: "k"}, {Endpoints: []string{"host:http"}, Key: "k"}, {Endpoints: []string{":2379"}, Key: "k"},
		{Endpoints: []string{"http://host:2379"}, Key: "k"}, {Endpoints: []string{"host:70000"}, Key: "k"},
		{Endpoints: []string{"u@host:2379"}, Key: "k"}, {Endpoints: append(ok, ok...), Key: "k"},
		{Endpoints: ok, Key: "a\x00"}, {Endpoints: ok, Key: strings.Repeat("k", maxKey+1)}, {Endpoints: ok, Key: "k", Timeout: -1},
	} {
		if r, err := New(cfg); arbiter.Class(err) != arbiter.ErrMisconfigured || r != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	r := open(t, Config{Endpoints: []string{"[::1]:2379", "host:2380"}, Key: "a/b"})
	if r.String() != "etcd://[::1]:2379,host:2380/a/b" {
		t.Errorf("%v", r)
	}
}
