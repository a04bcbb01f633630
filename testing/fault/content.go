package fault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"twok/internal/member"
)

// contentKey is the key that otherContent alters. It is no client's: those may read it at the learner.
const contentKey = "/content"

// otherContent: the target comes back with its log, and one value in its database is another one. No entry of the log mends that.
func otherContent(ctx context.Context, s *Stage) error {
	err := s.Client(s.Leader, func(cl *clientv3.Client) error {
		return s.Until(ctx, "write the key", func(ctx context.Context) error { _, err := cl.Put(ctx, contentKey, "right"); return err })
	})
	if err != nil {
		return err
	}
	x := s.Site(s.Target)
	err = do(ctx, func(ctx context.Context) error { return s.Writes(ctx, 30) },
		func(ctx context.Context) error { return s.Wait(ctx, 500*time.Millisecond) }, // etcd's database is a tenth of a second behind
		func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, s.Confirmed,
		func(context.Context) error { return alter(member.DBPath(x.DataDir), contentKey) },
		func(context.Context) error {
			s.Note("in the database of %s the value of %s is another one", s.Target, contentKey)
			return s.Up(s.Target)
		})
	if err != nil {
		return err
	}
	waits := func(ctx context.Context) error {
		if err := s.Reason(ctx, s.Target, "hash-differs"); err != nil {
			return err
		}
		return s.Client(s.Other(), func(cl *clientv3.Client) error {
			list, err := cl.MemberList(ctx)
			if err != nil {
				return err
			}
			learners := 0
			for _, m := range list.Members {
				if m.IsLearner {
					learners++
				}
			}
			if len(list.Members) != 2 || learners != 1 {
				err = fmt.Errorf("of %d members %d are learners, and the key spaces differ", len(list.Members), learners)
			}
			return err
		})
	}
	err = do(ctx, waits, func(ctx context.Context) error { return s.WritesAt(ctx, s.Other(), 100) },
		func(ctx context.Context) error { return s.Wait(ctx, s.Between(time.Second, 2*time.Second)) }, waits)
	if err != nil {
		return err
	}
	s.Note("%s says hash-differs and is a learner still; its data are moved away", s.Target)
	if err := x.Kill(); err != nil {
		return err
	}
	if err := os.Rename(x.DataDir, x.DataDir+".moved-away"); err != nil {
		return err
	}
	return s.Up(s.Target)
}

// alter changes the last byte of a key's newest value in the database of an etcd that does not run.
func alter(path, key string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("key"))
		if b == nil {
			return errors.New("it has no bucket \"key\"")
		}
		for c, k, v := b.Cursor(), []byte(nil), []byte(nil); ; {
			if k == nil {
				k, v = c.Last()
			} else {
				k, v = c.Prev()
			}
			if k == nil {
				return fmt.Errorf("it does not hold %s", key)
			}
			var kv mvccpb.KeyValue
			if err := proto.Unmarshal(v, &kv); err != nil {
				return fmt.Errorf("revision %x: %w", k, err)
			}
			if string(kv.Key) != key || len(kv.Value) == 0 {
				continue
			}
			kv.Value[len(kv.Value)-1] ^= 1
			v, err := proto.Marshal(&kv)
			if err != nil {
				return err
			}
			return b.Put(bytes.Clone(k), v)
		}
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("alter %s: %w", path, err)
	}
	return nil
}
