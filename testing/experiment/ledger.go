package experiment

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ack is a write that etcd answered: the client had the answer at At.
type ack struct {
	Key   string    `json:"key"`
	Rev   int64     `json:"revision"`
	Begun time.Time `json:"begun"`
	At    time.Time `json:"at"`
}

// ledger is a load of clients, each of which writes one new key at a time and keeps what was acknowledged.
// A write without an answer is nowhere in it.
type ledger struct {
	prefix string
	size   int           // of a value
	pause  time.Duration // of each client after a write
	cl     []*clientv3.Client
	wait   time.Duration // for an answer; 0: a second
	scan   string        // keys with this prefix are read in each write's transaction, so that applying it takes time
	onAck  func()        // called by the client that got the answer, before it goes on

	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	acks   []ack
	unsure int
}

// start starts the clients. Client i writes to cl[i%len(cl)], and to the next one after an error.
func (l *ledger) start(ctx context.Context, clients int) {
	ctx, l.cancel = context.WithCancel(ctx)
	for i := range clients {
		l.wg.Go(func() { l.run(ctx, i) })
	}
}

func (l *ledger) run(ctx context.Context, client int) {
	val := strings.Repeat("v", l.size)
	at := client
	for seq := 0; ctx.Err() == nil; seq++ {
		key := fmt.Sprintf("%s%d/%d", l.prefix, client, seq)
		begun := time.Now()
		wctx, cancel := context.WithTimeout(ctx, cmp.Or(l.wait, time.Second))
		rev, err := l.write(wctx, l.cl[at%len(l.cl)], key, val)
		cancel()
		now := time.Now()
		l.mu.Lock()
		if err == nil {
			l.acks = append(l.acks, ack{key, rev, begun, now})
		} else {
			l.unsure++
		}
		l.mu.Unlock()
		pause := l.pause
		switch {
		case err != nil:
			at++
			pause = max(pause, 10*time.Millisecond)
		case l.onAck != nil:
			l.onAck()
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// write returns the revision that etcd answered with.
func (l *ledger) write(ctx context.Context, cl *clientv3.Client, key, val string) (int64, error) {
	if l.scan == "" {
		resp, err := cl.Put(ctx, key, val)
		if err != nil {
			return 0, err
		}
		return resp.Header.Revision, nil
	}
	// All of them are read, and none is in the answer.
	scan := clientv3.OpGet(l.scan, clientv3.WithPrefix(), clientv3.WithMinModRev(math.MaxInt64))
	resp, err := cl.Txn(ctx).Then(scan, clientv3.OpPut(key, val)).Commit()
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// fill writes n keys with the prefix, of size bytes each.
func fill(ctx context.Context, cl *clientv3.Client, prefix string, n, size int) error {
	val := strings.Repeat("f", size)
	per := max(1, min(100, 1<<20/(size+64)))
	for i := 0; i < n; i += per {
		var ops []clientv3.Op
		for j := i; j < min(n, i+per); j++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s%08d", prefix, j), val))
		}
		if _, err := cl.Txn(ctx).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("fill %s: %w", prefix, err)
		}
	}
	return nil
}

// stop ends the clients and returns what was acknowledged. A write that was under way has no answer.
func (l *ledger) stop() []ack {
	l.cancel()
	l.wg.Wait()
	return l.acks
}

// firstAfter is the earliest answer to a write that began at t or later; false: there is none yet.
func (l *ledger) firstAfter(t time.Time) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return firstAfter(l.acks, t)
}

func firstAfter(acks []ack, t time.Time) (first time.Time, ok bool) {
	for _, a := range acks {
		if !a.Begun.Before(t) && (!ok || a.At.Before(first)) {
			first, ok = a.At, true
		}
	}
	return first, ok
}

// waitFirst waits for firstAfter.
func (l *ledger) waitFirst(ctx context.Context, t time.Time) (time.Time, error) {
	for {
		if at, ok := l.firstAfter(t); ok {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for an acknowledged write: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// before are the acknowledgements that clients had at t.
func before(acks []ack, t time.Time) (out []ack) {
	for _, a := range acks {
		if a.At.Before(t) {
			out = append(out, a)
		}
	}
	return out
}

// missing are the acknowledged writes that are not there at their revision.
func missing(acks []ack, have map[string]int64) (out []ack) {
	for _, a := range acks {
		if rev, ok := have[a.Key]; !ok || rev != a.Rev {
			out = append(out, a)
		}
	}
	return out
}

// keysOf reads all keys with the prefix, linearizably and at one revision, and the revision at which each was written.
func keysOf(ctx context.Context, cl *clientv3.Client, prefix string, opts ...clientv3.OpOption) (map[string]int64, error) {
	have := map[string]int64{}
	end := clientv3.GetPrefixRangeEnd(prefix)
	var at int64
	for from := prefix; ; {
		resp, err := cl.Get(ctx, from, append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(5000), clientv3.WithRev(at), clientv3.WithKeysOnly()}, opts...)...)
		if err != nil {
			return nil, fmt.Errorf("read the keys of %s: %w", prefix, err)
		}
		if at == 0 {
			at = resp.Header.Revision // of a reply, that is the newest one, whatever was asked for
		}
		for _, kv := range resp.Kvs {
			have[string(kv.Key)] = kv.ModRevision
		}
		if !resp.More {
			return have, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
