package lostwrites

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Status says what the other history has made of a key.
type Status int

const (
	// NotCompared: no endpoints were given.
	NotCompared Status = iota
	// Lost: the other history has not written the key since the fork. Replaying brings it back.
	Lost
	// Same: it has the same value now, or, for a delete, no such key.
	Same
	// Superseded: it has written the key since the fork, or deleted it, or that cannot be excluded. Replaying would
	// overwrite what it acknowledged.
	Superseded
)

func (s Status) String() string {
	return [...]string{"not-compared", "lost", "same", "superseded"}[s]
}

// shown is how much of a present value is kept.
const shown = 1024

// Current is a key at the endpoints.
type Current struct {
	Exists             bool
	Mod, Create, Lease int64
	Value              []byte // its beginning
	Len                int    // of the whole value
	Revision           int64  // of the key space when it was read
}

// Compare reads the present value of each key from the survivor, linearizably and one by one, and judges it. Where the log does not
// tell the revision at the fork, its history is asked first (HighRevision, Perhaps). Nothing is written. Errors: ErrOtherCluster; of the client, and then nothing counts as compared.
func (l *Listing) Compare(ctx context.Context, c clientv3.KV) (err error) {
	defer func() {
		if err != nil {
			for i := range l.Keys {
				l.Keys[i].Now, l.Keys[i].Status = nil, NotCompared
			}
			err = fmt.Errorf("compare with the endpoints: %w", err)
		}
	}()
	if err := l.narrow(ctx, c); err != nil {
		return err
	}
	for i := range l.Keys {
		k := &l.Keys[i]
		resp, err := c.Get(ctx, string(k.Key))
		if err != nil {
			return fmt.Errorf("key %.80q: %w", k.Key, err)
		}
		if id := resp.Header.ClusterId; id != l.Cluster {
			return fmt.Errorf("the endpoints are of cluster %x, the directory of %x: %w", id, l.Cluster, ErrOtherCluster)
		}
		now := &Current{Revision: resp.Header.Revision}
		var value []byte
		if len(resp.Kvs) == 1 {
			kv := resp.Kvs[0]
			value = kv.Value
			now.Exists, now.Mod, now.Create, now.Lease, now.Len = true, kv.ModRevision, kv.CreateRevision, kv.Lease, len(value)
			now.Value = bytes.Clone(value[:min(len(value), shown)])
		}
		k.Now = now
		if k.Status, err = l.judge(*k, value); err != nil {
			return err
		}
	}
	return nil
}

func (l *Listing) judge(k Key, value []byte) (Status, error) {
	if k.Lost.Exists == k.Now.Exists {
		if !k.Now.Exists {
			return Same, nil
		}
		if k.Lost.Value.Len() == len(value) {
			v, err := k.Lost.Value.Bytes()
			if err != nil {
				return NotCompared, fmt.Errorf("key %.80q: %w", k.Key, err)
			}
			if bytes.Equal(v, value) {
				return Same, nil
			}
		}
	}
	if l.written(k) {
		return Superseded, nil
	}
	return Lost, nil
}

// written says whether the other history has written a key since the fork, in doubt that it has.
func (l *Listing) written(k Key) bool {
	switch {
	case k.First > l.HighRevision && k.AtFork.Known:
		return k.Now.Mod != k.AtFork.Mod // 0: no such key
	case !k.Now.Exists:
		return true
	case k.Now.Mod <= l.LowRevision:
		return false
	case k.Now.Mod > l.HighRevision:
		return true
	}
	// A revision that both histories have, with this key, is from before the fork.
	for _, r := range l.d.group(k.Now.Mod) {
		if r.key == string(k.Key) && !r.tomb && r.create == k.Now.Create {
			return false
		}
	}
	return true
}

// narrow asks the survivor's own history, as far as it is not compacted, which of the revisions that may predate the fork it
// does not have: those are beyond the fork, and so is all that follows. That it has one proves less: both sides may have written the same.
func (l *Listing) narrow(ctx context.Context, c clientv3.KV) error {
	if l.LowRevision == l.HighRevision {
		return nil
	}
	var puts []Change
	for _, ch := range l.Changes {
		if ch.Perhaps && !ch.Delete {
			puts = append(puts, ch)
		}
	}
	from, to := 0, len(puts) // the first that is not shared lies between
	for from < to {
		i := (from + to) / 2
		shared, err := l.shares(ctx, c, puts[i])
		if errors.Is(err, rpctypes.ErrCompacted) {
			break
		}
		if err != nil {
			return err
		}
		if shared {
			from = i + 1
		} else {
			to = i
			l.HighRevision = puts[i].Revision - 1
		}
	}
	all := map[string]bool{} // keys with a change that is surely beyond the fork
	for i := range l.Changes {
		ch := &l.Changes[i]
		ch.Perhaps = ch.Revision <= l.HighRevision
		all[string(ch.Key)] = all[string(ch.Key)] || !ch.Perhaps
	}
	for i := range l.Keys {
		l.Keys[i].Perhaps = !all[string(l.Keys[i].Key)]
	}
	return nil
}

// shares says whether the other history has made this very revision.
func (l *Listing) shares(ctx context.Context, c clientv3.KV, ch Change) (bool, error) {
	resp, err := c.Get(ctx, string(ch.Key), clientv3.WithRev(ch.Revision))
	if errors.Is(err, rpctypes.ErrFutureRev) {
		return false, nil // it has not got that far
	}
	if err != nil {
		return false, fmt.Errorf("key %.80q at revision %d: %w", ch.Key, ch.Revision, err)
	}
	if len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != ch.Revision {
		return false, nil
	}
	v, err := ch.Value.Bytes()
	return bytes.Equal(v, resp.Kvs[0].Value), err
}
