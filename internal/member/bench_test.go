package member

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
	"twok/walsurgery"
)

// bigDirectory is a data directory with n keys in database and log, the token at
// revision at, all written by the formats of etcd.
func bigDirectory(tb testing.TB, n, at int, value []byte) string {
	tb.Helper()
	dir := tb.TempDir()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700))
	meta, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: proto.Uint64(1), ClusterID: proto.Uint64(2)})
	must(err)
	w, err := wal.Create(nil, filepath.Join(dir, "member", "wal"), meta)
	must(err)
	db, err := bbolt.Open(DBPath(dir), 0o600, &bbolt.Options{NoSync: true})
	must(err)
	must(db.Update(func(tx *bbolt.Tx) error {
		for _, b := range []string{bucketKey, bucketMeta, bucketMembers, bucketRemoved} {
			_, err := tx.CreateBucket([]byte(b))
			must(err)
		}
		for _, m := range []string{"1", "2"} {
			must(tx.Bucket([]byte(bucketMembers)).Put([]byte(m), []byte(`{"id":`+m+`,"peerURLs":["http://`+m+`"],"name":"m`+m+`"}`)))
		}
		return tx.Bucket([]byte(bucketMeta)).Put([]byte(keyApplied), binary.BigEndian.AppendUint64(nil, uint64(n)))
	}))
	for lo := 1; lo <= n; lo += 10_000 {
		var ents []*raftpb.Entry
		must(db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucketKey))
			b.FillPercent = 0.9
			for i := lo; i < lo+10_000 && i <= n; i++ {
				key, v := fmt.Sprintf("/registry/pods/default/pod-%06d", i), bytes.Repeat([]byte("v"), 200)
				if i == at {
					key, v = TokenKey, value
				}
				rev := append(append(binary.BigEndian.AppendUint64(nil, uint64(i)), '_'), make([]byte, 8)...)
				kv, err := proto.Marshal(&mvccpb.KeyValue{Key: []byte(key), Value: v, CreateRevision: int64(i), ModRevision: int64(i), Version: 1})
				must(err)
				must(b.Put(rev, kv))
				data, err := proto.Marshal(&etcdserverpb.InternalRaftRequest{Header: &etcdserverpb.RequestHeader{ID: uint64(i)},
					Put: &etcdserverpb.PutRequest{Key: []byte(key), Value: v}})
				must(err)
				ents = append(ents, &raftpb.Entry{Term: proto.Uint64(2), Index: proto.Uint64(uint64(i)), Type: raftpb.EntryNormal.Enum(), Data: data})
			}
			return nil
		}))
		must(w.Save(&raftpb.HardState{Term: proto.Uint64(2), Vote: proto.Uint64(1), Commit: proto.Uint64(uint64(lo))}, ents))
	}
	must(errors.Join(db.Close(), w.Close()))
	return dir
}

// The worst case: 300,000 keys in the database and in the log, none compacted, and
// the token the oldest, or the newest, of them.
//
//	go test ./internal/member -run xxx -bench Read
func BenchmarkRead(b *testing.B) {
	const n = 300_000
	tok := failover.Token{Present: true, RecordID: "r", Generation: 1, Cluster: 2, Members: [2]uint64{1, 2}, Term: 2, EntryTerm: 2}
	for _, c := range []struct {
		name string
		at   int
	}{{"token oldest", 1}, {"token newest", n}} {
		b.Run(c.name, func(b *testing.B) {
			dir := bigDirectory(b, n, c.at, encode(b, tok, "n"))
			lock, err := TryLock(dir)
			if err != nil {
				b.Fatal(err)
			}
			defer lock.Release()
			log, err := walsurgery.Open(nil, filepath.Join(dir, "member", "wal"))
			if err != nil {
				b.Fatal(err)
			}
			defer log.Close()
			for b.Loop() {
				d, err := Read(lock, log, 7)
				if err != nil || d.Token != tok || d.Asked != 2 {
					b.Fatalf("%+v, %v", d, err)
				}
			}
		})
	}
}
