package lab

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// WriterConfig describes a load.
type WriterConfig struct {
	// Endpoints are the members' real client URLs. A client writes to one of
	// them, and after an error to the next, as a client with a list of members does.
	Endpoints []string
	// Clients write at the same time, each one key at a time. Default 8.
	Clients int
	// Deadline of one write. Default 1 s.
	Deadline time.Duration
	// Pause of each client after a write. Default none.
	Pause time.Duration
	// Size of a value in bytes, at least 16. Default 16.
	Size int
	// Prefix of every key. Default "/lab/". Two writers on one cluster need two.
	Prefix string
	// TLS towards https endpoints. Nil: none, or etcd's defaults.
	TLS *tls.Config
}

// Writer writes unique keys, each once, and remembers the outcome of each: 8
// bytes a write. A key is Prefix + client + "/" + sequence, both in decimal.
type Writer struct {
	cfg     WriterConfig
	clients []*clientv3.Client
	start   time.Time

	acked, unknown atomic.Int64
	lastAck        atomic.Int64 // nanoseconds since start

	mu    sync.Mutex
	log   [][]int64 // per client and sequence: the revision; 0: unknown
	watch []watcher

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

type watcher struct {
	since time.Time
	ch    chan time.Time
}

// StartWriter starts the load. Stop ends it.
func StartWriter(cfg WriterConfig) (*Writer, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("writer: no endpoints")
	}
	if cfg.Clients <= 0 {
		cfg.Clients = 8
	}
	if cfg.Deadline <= 0 {
		cfg.Deadline = time.Second
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "/lab/"
	}
	cfg.Size = max(cfg.Size, 16)
	w := &Writer{cfg: cfg, start: time.Now(), log: make([][]int64, cfg.Clients)}
	for _, e := range cfg.Endpoints {
		c, err := dialEtcd(e, cfg.TLS)
		if err != nil {
			for _, c := range w.clients {
				c.Close()
			}
			return nil, fmt.Errorf("writer: client of %s: %w", e, err)
		}
		w.clients = append(w.clients, c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	for i := range cfg.Clients {
		w.wg.Go(func() { w.run(ctx, i) })
	}
	return w, nil
}

// Stop ends the load and waits. A write that was under way is unknown. It may be
// called more than once.
func (w *Writer) Stop() {
	w.cancel()
	w.wg.Wait()
	for _, c := range w.clients {
		c.Close()
	}
}

func (w *Writer) run(ctx context.Context, client int) {
	member := client % len(w.clients)
	for seq := 0; ctx.Err() == nil; seq++ {
		key := w.key(client, seq)
		w.mu.Lock()
		w.log[client] = append(w.log[client], 0)
		w.mu.Unlock()
		begun := time.Now()
		wctx, cancel := context.WithTimeout(ctx, w.cfg.Deadline)
		resp, err := w.clients[member].Put(wctx, key, value(key, w.cfg.Size))
		cancel()
		pause := w.cfg.Pause
		if err != nil {
			w.unknown.Add(1)
			member = (member + 1) % len(w.clients)
			pause = max(pause, 10*time.Millisecond) // both may refuse at once
		} else {
			w.acknowledged(client, seq, resp.Header.Revision, begun)
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

func (w *Writer) acknowledged(client, seq int, revision int64, begun time.Time) {
	now := time.Now()
	w.acked.Add(1)
	w.lastAck.Store(int64(now.Sub(w.start)))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log[client][seq] = revision
	w.watch = slices.DeleteFunc(w.watch, func(x watcher) bool {
		if begun.Before(x.since) {
			return false
		}
		x.ch <- now
		return true
	})
}

func (w *Writer) key(client, seq int) string {
	return w.cfg.Prefix + strconv.Itoa(client) + "/" + strconv.Itoa(seq)
}

// parse is key's inverse.
func (w *Writer) parse(key string) (client, seq int, ok bool) {
	rest, ok := strings.CutPrefix(key, w.cfg.Prefix)
	if !ok {
		return 0, 0, false
	}
	c, s, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, false
	}
	client, err1 := strconv.Atoi(c)
	seq, err2 := strconv.Atoi(s)
	return client, seq, err1 == nil && err2 == nil && key == w.key(client, seq)
}

// value follows from the key, so that nothing has to be remembered.
func value(key string, size int) string {
	h := fnv.New64a()
	h.Write([]byte(key))
	word := hex.EncodeToString(binary.BigEndian.AppendUint64(nil, h.Sum64()))
	return strings.Repeat(word, size/len(word)+1)[:size]
}

// Acked and Unknown are how many writes had that outcome so far.
func (w *Writer) Acked() int64   { return w.acked.Load() }
func (w *Writer) Unknown() int64 { return w.unknown.Load() }

// LastAck is when the newest acknowledgement came; zero if none did.
func (w *Writer) LastAck() time.Time {
	if d := w.lastAck.Load(); d != 0 {
		return w.start.Add(time.Duration(d))
	}
	return time.Time{}
}

// NextAck receives the time of the first acknowledgement of a write that began
// after this call. (One that began before may have been committed before, and
// be answered only now.)
func (w *Writer) NextAck() <-chan time.Time {
	ch := make(chan time.Time, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watch = append(w.watch, watcher{time.Now(), ch})
	return ch
}

// outcomes is the log so far; entry 0 is unknown as of now.
func (w *Writer) outcomes() [][]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([][]int64, len(w.log))
	for i, l := range w.log {
		out[i] = append([]int64(nil), l...)
	}
	return out
}
