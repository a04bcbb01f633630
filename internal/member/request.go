package member

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// DecodeRequest reads the payload of a normal entry. It is nil for an empty payload and for a request to the store
// of etcd 2 (as etcd 3.5 still proposes them), neither of which touches the key space. The error says that it does not
// decode, or has a field that etcd 3.5 to 3.7 do not know: what it does to the key space cannot be told.
func DecodeRequest(b []byte) (*etcdserverpb.InternalRaftRequest, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := new(etcdserverpb.InternalRaftRequest)
	if err := proto.Unmarshal(b, r); err != nil {
		if isV2(b) {
			return nil, nil
		}
		return nil, fmt.Errorf("a request that does not decode: %w", err)
	}
	// Field 2 was v2.
	if err := unknownFields(r, 2); err != nil {
		return nil, err
	}
	return r, nil
}
