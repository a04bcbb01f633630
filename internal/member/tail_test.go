package member

import (
	"encoding/json"
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
	"twok/walsurgery"
)

func request(t testing.TB, r *pb.InternalRaftRequest) []byte {
	t.Helper()
	r.Header = &pb.RequestHeader{ID: 4711}
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func putOp(key string, value []byte) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key), Value: value}}}
}

func delOp(key, end string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}}
}

func txnOp(t *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}

// Every operation that can touch the token's key is seen, and no other.
//
// Rules: P4.
func TestTailOperations(t *testing.T) {
	tok := sampleToken()
	value := encode(t, tok, "n")
	other := tok
	other.RecordID = "another"
	foreign := tok
	foreign.Cluster++
	higher := tok
	higher.Generation = 9
	put := func(v []byte) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(TokenKey), Value: v}}
	}
	del := func(key, end string) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}
	}
	txn := func(success, failure []*pb.RequestOp) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{Txn: &pb.TxnRequest{Success: success, Failure: failure}}
	}
	none := failover.Tail{}
	good := failover.Tail{Writes: true, RecordID: tok.RecordID, Generation: 7}
	bad := failover.Tail{Bad: true}
	badWrite := failover.Tail{Writes: true, Bad: true}
	lease := put(value)
	lease.Put.Lease = 1
	ignoreLease := put(value)
	ignoreLease.Put.IgnoreLease = true
	ignoreValue := put(nil)
	ignoreValue.Put.IgnoreValue = true

	for _, c := range []struct {
		name string
		reqs []*pb.InternalRaftRequest
		want failover.Tail
	}{
		{"nothing", nil, none},
		{"put", []*pb.InternalRaftRequest{put(value)}, good},
		{"two puts", []*pb.InternalRaftRequest{put(encode(t, higher, "m")), put(value)}, failover.Tail{Writes: true, RecordID: tok.RecordID, Generation: 9}},
		{"two records", []*pb.InternalRaftRequest{put(value), put(encode(t, other, "m"))}, failover.Tail{Writes: true, Bad: true, RecordID: tok.RecordID, Generation: 7}},
		{"another cluster", []*pb.InternalRaftRequest{put(encode(t, foreign, "m"))}, badWrite},
		{"garbage", []*pb.InternalRaftRequest{put([]byte("x"))}, badWrite},
		{"no value", []*pb.InternalRaftRequest{put(nil)}, badWrite},
		{"lease", []*pb.InternalRaftRequest{lease}, badWrite},
		{"ignore lease", []*pb.InternalRaftRequest{ignoreLease}, badWrite},
		{"ignore value", []*pb.InternalRaftRequest{ignoreValue}, badWrite},
		{"another key", []*pb.InternalRaftRequest{{Put: &pb.PutRequest{Key: []byte(TokenKey + "x"), Value: []byte("x"), Lease: 5}}}, none},
		{"delete", []*pb.InternalRaftRequest{del(TokenKey, "")}, bad},
		{"delete another", []*pb.InternalRaftRequest{del("/twok", ""), del(TokenKey+"\x00", "\x00"), del("/", TokenKey), del(TokenKey, TokenKey)}, none},
		{"delete prefix", []*pb.InternalRaftRequest{del("/twok/", "/twok0")}, bad},
		{"delete to just above", []*pb.InternalRaftRequest{del("/", TokenKey+"\x00")}, bad},
		{"delete from the key on", []*pb.InternalRaftRequest{del(TokenKey, "\x00")}, bad},
		{"delete all", []*pb.InternalRaftRequest{del("\x00", "\x00")}, bad},
		{"empty range", []*pb.InternalRaftRequest{del("/z", "/a")}, none},
		{"txn, success", []*pb.InternalRaftRequest{txn([]*pb.RequestOp{putOp("k", nil), putOp(TokenKey, value)}, nil)}, good},
		{"txn, failure", []*pb.InternalRaftRequest{txn(nil, []*pb.RequestOp{putOp(TokenKey, value)})}, good},
		{"txn, delete", []*pb.InternalRaftRequest{txn([]*pb.RequestOp{delOp("/a", "/z")}, nil)}, bad},
		{"txn in txn", []*pb.InternalRaftRequest{txn([]*pb.RequestOp{txnOp(&pb.TxnRequest{Failure: []*pb.RequestOp{
			txnOp(&pb.TxnRequest{Success: []*pb.RequestOp{putOp(TokenKey, value)}})}})}, nil)}, good},
		{"txn, both branches", []*pb.InternalRaftRequest{txn([]*pb.RequestOp{putOp(TokenKey, value)}, []*pb.RequestOp{delOp(TokenKey, "")})},
			failover.Tail{Writes: true, Bad: true, RecordID: tok.RecordID, Generation: 7}},
		{"txn, range and other keys", []*pb.InternalRaftRequest{txn([]*pb.RequestOp{putOp("k", value),
			{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(TokenKey)}}}}, nil)}, none},
		{"requests that touch no key", []*pb.InternalRaftRequest{{Compaction: &pb.CompactionRequest{Revision: 1}}, {LeaseRevoke: &pb.LeaseRevokeRequest{ID: 1}},
			{LeaseGrant: &pb.LeaseGrantRequest{ID: 1}}, {Range: &pb.RangeRequest{Key: []byte(TokenKey)}}, {DowngradeVersionTest: &pb.DowngradeVersionTestRequest{}}}, none},
	} {
		tl := tail{cluster: tok.Cluster}
		for i, r := range c.reqs {
			if err := tl.entry(walsurgery.Entry{Index: uint64(i + 1), Term: 1, Data: request(t, r)}); err != nil {
				t.Fatal(err)
			}
		}
		if tl.ops != c.want || len(tl.changes) != 0 || (tl.why != nil) != tl.ops.Bad {
			t.Errorf("%s: %+v (%v), want %+v", c.name, tl.ops, tl.why, c.want)
		}
	}
}

// What is not understood denies, unless it is known to touch no key: an empty entry
// and etcd 2's requests.
//
// Rules: P4, P11.
func TestTailNotUnderstood(t *testing.T) {
	b := func(num protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), v)
	}
	join := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	id := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 77)
	v2 := func(method, path string) []byte {
		return join(id, b(2, []byte(method)), b(3, []byte(path)), b(4, []byte(`{"name":"a"}`)))
	}
	for _, c := range []struct {
		name string
		data []byte
		bad  bool
	}{
		{"empty entry", nil, false},
		{"etcd 2, plain", v2("PUT", "/0/members/8e9e05c52164694d/attributes"), false},
		{"etcd 2, sync", join(id, b(2, []byte("SYNC")), b(3, []byte("")), b(4, []byte("{"))), false},
		{"etcd 2, wrapped", join(b(2, v2("PUT", "/1/x")), b(100, id)), false},
		{"not etcd 2", v2("EXEC", "/1/x"), true},
		{"garbage", []byte("garbage"), true},
		{"torn", b(4, b(1, []byte(TokenKey)))[:8], true},
		{"unknown request", join(b(12, []byte("x")), b(100, id)), true},
		{"unknown operation in a transaction", b(6, b(2, b(5, []byte("x")))), true},
		{"unknown field of a transaction", b(6, b(4, []byte("x"))), true},
		{"unknown field of a delete of something else", b(5, join(b(1, []byte("k")), b(9, []byte("x")))), true},
	} {
		tl := tail{}
		if err := tl.entry(walsurgery.Entry{Index: 1, Term: 1, Data: c.data}); err != nil {
			t.Fatal(err)
		}
		if tl.ops != (failover.Tail{Bad: c.bad}) {
			t.Errorf("%s: %+v (%v), want bad %t", c.name, tl.ops, tl.why, c.bad)
		}
	}
}

// Rules: P5, P11.
func TestConfChanges(t *testing.T) {
	const learner, promote = true, true
	ctx := func(id uint64, isLearner, isPromote bool) []byte {
		// As etcd marshals it: the member's fields, and isPromote beside them.
		b, err := json.Marshal(map[string]any{"id": id, "peerURLs": []string{"http://p"}, "isLearner": isLearner, "isPromote": isPromote})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	urls := []string{"http://p"}
	const big = 0xfe1190ac13b33e31 // beyond a float64's digits
	for _, c := range []struct {
		name string
		in   walsurgery.Change
		want failover.ConfChange
	}{
		{"add", walsurgery.Change{Type: walsurgery.AddNode, NodeID: big, Context: ctx(big, !learner, !promote)}, failover.ConfChange{Kind: failover.ChangeAdd, ID: big, PeerURLs: urls}},
		{"add learner", walsurgery.Change{Type: walsurgery.AddLearner, NodeID: big, Context: ctx(big, learner, !promote)}, failover.ConfChange{Kind: failover.ChangeAddLearner, ID: big, Learner: true, PeerURLs: urls}},
		{"promote", walsurgery.Change{Type: walsurgery.AddNode, NodeID: big, Context: ctx(big, !learner, promote)}, failover.ConfChange{Kind: failover.ChangePromote, ID: big}},
		{"remove", walsurgery.Change{Type: walsurgery.RemoveNode, NodeID: big}, failover.ConfChange{Kind: failover.ChangeRemove, ID: big}},
		{"update", walsurgery.Change{Type: walsurgery.UpdateNode, NodeID: big, Context: ctx(big, !learner, !promote)}, failover.ConfChange{Kind: failover.ChangeUpdate, ID: big, PeerURLs: urls}},
		{"no ID", walsurgery.Change{Type: walsurgery.RemoveNode}, failover.ConfChange{}},
		{"no context", walsurgery.Change{Type: walsurgery.AddNode, NodeID: 5}, failover.ConfChange{ID: 5}},
		{"another ID in the context", walsurgery.Change{Type: walsurgery.AddNode, NodeID: 5, Context: ctx(6, !learner, !promote)}, failover.ConfChange{ID: 5}},
		{"learner as a voter", walsurgery.Change{Type: walsurgery.AddNode, NodeID: 5, Context: ctx(5, learner, !promote)}, failover.ConfChange{ID: 5}},
		{"voter as a learner", walsurgery.Change{Type: walsurgery.AddLearner, NodeID: 5, Context: ctx(5, !learner, !promote)}, failover.ConfChange{ID: 5}},
		{"demotion", walsurgery.Change{Type: walsurgery.AddLearner, NodeID: 5, Context: ctx(5, learner, promote)}, failover.ConfChange{ID: 5}},
		{"unknown type", walsurgery.Change{Type: 4, NodeID: 5, Context: ctx(5, !learner, !promote)}, failover.ConfChange{ID: 5}},
	} {
		tl := tail{}
		if err := tl.entry(walsurgery.Entry{Index: 9, Term: 1, Kind: walsurgery.KindConfChange, Change: c.in}); err != nil {
			t.Fatal(err)
		}
		got := tl.changes[0]
		if len(tl.changes) != 1 || got.Kind != c.want.Kind || got.ID != c.want.ID || got.Learner != c.want.Learner || len(got.PeerURLs) != len(c.want.PeerURLs) {
			t.Errorf("%s: %+v, want %+v", c.name, tl.changes, c.want)
		}
		if (tl.unknown != nil) != (got.Kind == failover.ChangeUnknown) {
			t.Errorf("%s: kind %d with error %v", c.name, got.Kind, tl.unknown)
		}
	}

	tl := tail{}
	if err := tl.entry(walsurgery.Entry{Index: 9, Kind: walsurgery.KindOther, Err: walsurgery.ErrUnexpectedFormat}); err != nil {
		t.Fatal(err)
	}
	if len(tl.changes) != 1 || tl.changes[0].Kind != failover.ChangeUnknown || tl.unknown == nil {
		t.Errorf("an entry of another type: %+v, %v", tl.changes, tl.unknown)
	}
	if err := tl.entry(walsurgery.Entry{Index: 9, Kind: walsurgery.KindOther, Err: walsurgery.ErrCorrupt}); !errors.Is(err, walsurgery.ErrCorrupt) {
		t.Errorf("an entry that cannot be read: %v", err)
	}
}
