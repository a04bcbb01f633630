package cluster

import (
	"encoding/binary"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"twok/testing/history"
)

// readDatabase reads every revision that a member's database holds, the leases (never nil), and the revision that it was
// compacted at. etcd must not run on it. A key of etcd's bucket "key" is the revision, '_', the place
// within it, each 8 bytes, and 't' if it is a delete. One
// of "lease" is its ID, 8 bytes.
func readDatabase(path string) (all []history.Change, leases []int64, compact int64, err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: 5 * time.Second})
	if err != nil {
		return nil, nil, 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		meta, keys, granted := tx.Bucket([]byte("meta")), tx.Bucket([]byte("key")), tx.Bucket([]byte("lease"))
		if meta == nil || keys == nil || granted == nil {
			return fmt.Errorf("%s has no bucket \"key\", \"meta\" or \"lease\"", path)
		}
		leases = []int64{}
		err := granted.ForEach(func(k, _ []byte) error {
			if len(k) != 8 {
				return fmt.Errorf("%s: the key %x is no lease", path, k)
			}
			leases = append(leases, int64(binary.BigEndian.Uint64(k)))
			return nil
		})
		if err != nil {
			return err
		}
		if v := meta.Get([]byte("finishedCompactRev")); len(v) >= 8 {
			compact = int64(binary.BigEndian.Uint64(v))
		}
		return keys.ForEach(func(k, v []byte) error {
			if len(k) != 17 && len(k) != 18 {
				return fmt.Errorf("%s: the key %x is no revision", path, k)
			}
			var kv mvccpb.KeyValue
			if err := proto.Unmarshal(v, &kv); err != nil {
				return fmt.Errorf("%s: revision %x: %w", path, k, err)
			}
			all = append(all, history.Change{
				Rev: int64(binary.BigEndian.Uint64(k)), Sub: int64(binary.BigEndian.Uint64(k[9:])), Delete: len(k) == 18,
				Key: string(kv.Key), Value: history.Value(kv.Value), Create: kv.CreateRevision, Version: kv.Version,
			})
			return nil
		})
	})
	return all, leases, compact, err
}
