package workload

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Only what etcd cannot have done was refused. "No space" is the answer to a write that was applied, too.
//
// Rules: none (the harness).
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{rpctypes.ErrLeaseNotFound, true},
		{rpctypes.ErrPermissionDenied, true},
		{rpctypes.ErrInvalidAuthToken, true},
		{rpctypes.ErrNoSpace, false},
		{rpctypes.ErrTimeout, false},
		{rpctypes.ErrNoLeader, false},
		{rpctypes.ErrLeaderChanged, false},
		{status.Error(codes.Unavailable, "connection refused"), false},
		{context.DeadlineExceeded, false},
		{errors.New("whatever"), false},
	} {
		if got := refused(c.err); got != c.want {
			t.Errorf("%v: refused %t", c.err, got)
		}
	}
}
