package etcd

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"twok/arbiter"
)

// op is what a request wanted.
type op int

const (
	opRange op = iota
	opTxn
)

// verdict is what an answer means. elsewhere: this endpoint cannot serve, and did
// nothing; another one may.
type verdict struct {
	class     error
	remedy    string
	elsewhere bool
}

// refusals are what etcd says of a request that it did not carry out and never
// will, by the text of the answer.
var refusals = map[string]verdict{
	desc(rpctypes.ErrGRPCPermissionDenied): {class: arbiter.ErrForbidden, remedy: "grant the user's role readwrite on exactly this key (etcdctl role grant-permission ROLE readwrite KEY)"},
	desc(rpctypes.ErrGRPCUserEmpty):        {class: arbiter.ErrForbidden, remedy: "this etcd wants a user: set TWOK_ARBITER_USER and TWOK_ARBITER_PASSWORD_FILE, or a client certificate"},
	desc(rpctypes.ErrGRPCUserNotFound):     {class: arbiter.ErrForbidden, remedy: "the user, or the client certificate's common name, is no user of this etcd"},
	desc(rpctypes.ErrGRPCAuthFailed):       {class: arbiter.ErrForbidden, remedy: "check the user name and the password"},
	desc(rpctypes.ErrGRPCInvalidAuthToken): {class: arbiter.ErrForbidden, remedy: "a fresh login was not accepted either; check etcd's --auth-token on all its members"},
	desc(rpctypes.ErrGRPCInvalidAuthMgmt):  {class: arbiter.ErrForbidden, remedy: "check the user's roles"},

	desc(rpctypes.ErrGRPCAuthOldRevision):         {class: arbiter.ErrUnavailable, remedy: "its users were changed at this moment; the next call finds the new ones"},
	desc(rpctypes.ErrGRPCNoLeader):                {class: arbiter.ErrUnavailable, remedy: "the arbiter's etcd has lost its majority; look at its members", elsewhere: true},
	desc(rpctypes.ErrGRPCNotSupportedForLearner):  {class: arbiter.ErrUnavailable, remedy: "this endpoint is a learner; name the voters", elsewhere: true},
	desc(rpctypes.ErrGRPCNotCapable):              {class: arbiter.ErrUnavailable, remedy: "it is still starting", elsewhere: true},
	desc(rpctypes.ErrGRPCRequestTooManyRequests):  {class: arbiter.ErrUnavailable, remedy: "the arbiter's etcd is overloaded"},
	desc(rpctypes.ErrGRPCNoSpace):                 {class: arbiter.ErrUnavailable, remedy: "compact and defragment it, or raise --quota-backend-bytes, then etcdctl alarm disarm"},
	desc(rpctypes.ErrGRPCCorrupt):                 {class: arbiter.ErrUnavailable, remedy: "its members hold different data: see etcdctl alarm list and repair it before anything else"},
	desc(rpctypes.ErrGRPCRequestTooLarge):         {class: arbiter.ErrMisconfigured, remedy: "raise --max-request-bytes"},
	desc(rpctypes.ErrGRPCEmptyKey):                {class: arbiter.ErrMisconfigured, remedy: "name a key"},
	desc(rpctypes.ErrGRPCInvalidClientAPIVersion): {class: arbiter.ErrMisconfigured, remedy: "its release does not fit this twok"},
}

func desc(err error) string { return rpctypes.ErrorDesc(err) }

// classify is the table of the package documentation for a request that got an
// error. sent: its header was given to a connection.
func classify(o op, sent bool, err error) verdict {
	text := desc(err)
	if v, ok := refusals[text]; ok {
		return v
	}
	switch {
	case !sent:
		return unsent(text)
	case status.Code(err) == codes.Unimplemented:
		return verdict{class: arbiter.ErrMisconfigured, remedy: "the endpoint speaks gRPC and is no etcd"}
	case o == opTxn:
		return verdict{class: arbiter.ErrUnknown}
	}
	return verdict{class: arbiter.ErrUnavailable}
}

// unsent classifies why there was no connection that could carry a request. gRPC
// gives the cause as text only.
func unsent(text string) verdict {
	v := verdict{class: arbiter.ErrUnavailable, elsewhere: true}
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("remote error: tls: "): // an alert: the server did not like ours
		v.class, v.remedy = arbiter.ErrForbidden, "the server refused the client certificate; check it, its dates, and the server's --trusted-ca-file"
	case has("first record does not look like a TLS handshake"):
		v.class, v.remedy = arbiter.ErrMisconfigured, "the endpoint speaks no TLS; add tls=false if that is right"
	case has("x509: certificate has expired or is not yet valid"):
		v.class, v.remedy = arbiter.ErrMisconfigured, "renew the server's certificate, or set this machine's clock"
	case has("x509: ", "tls: failed to verify"):
		v.class, v.remedy = arbiter.ErrMisconfigured, "check the CA file and that the certificate names this host"
	case has("looked like an HTTP/1.1 header"):
		v.class, v.remedy = arbiter.ErrMisconfigured, "the endpoint speaks HTTP/1 and is no etcd, or wants TLS"
	case has("no such host"):
		v.remedy = "check the host's name"
	case has("error reading server preface"):
		v.remedy = "it may want TLS: set TWOK_ARBITER_CA_FILE or add tls=true"
	}
	return v
}

// cause is err with the context's end in its chain, which gRPC gives as text only.
func cause(ctx context.Context, err error) error {
	end := ctx.Err()
	if end == nil && status.Code(err) == codes.DeadlineExceeded {
		end = context.DeadlineExceeded // the server's clock was first
	}
	err = errors.New(desc(err))
	if end == nil {
		return err
	}
	return errors.Join(end, err)
}
