package fault

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"twok/internal/lab"
)

// What many has.
const (
	watchers  = 1000
	leases    = 10_000
	watchKeys = 100
)

// each runs f for 0 to n-1, some at a time, and returns the first error.
func each(ctx context.Context, n int, f func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(64)
	for i := range n {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// many has watches at both members, and leases with a key each. Every watch has to see every version of its key, in order;
// at the end both members have to know all leases, and a key goes with its lease.
func many(ctx context.Context, s *Stage) error {
	var clients []*clientv3.Client
	for _, site := range lab.Sites {
		cl, err := s.Site(site).Client()
		if err != nil {
			return err
		}
		defer cl.Close()
		clients = append(clients, cl)
	}
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &seen{newest: make([]int64, watchers), ended: map[string]int{}}
	for i := range watchers {
		w.group.Go(func() { w.follow(wctx, i, clients[i%2]) })
	}
	s.Note("%d watches", watchers)
	ids := make([]clientv3.LeaseID, leases)
	err := each(ctx, leases, func(ctx context.Context, i int) error {
		g, err := clients[i%2].Grant(ctx, 24*3600)
		if err == nil {
			ids[i] = g.ID
			_, err = clients[i%2].Put(ctx, leaseKey(i), "x", clientv3.WithLease(g.ID))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("grant %d leases: %w", leases, err)
	}
	s.Note("%d leases, each with a key", leases)
	round := func(ctx context.Context) error {
		return each(ctx, watchKeys, func(ctx context.Context, i int) error {
			return s.Until(ctx, "write "+watchKey(i), func(ctx context.Context) error {
				try, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_, err := clients[s.siteOf(s.Other())].Put(try, watchKey(i), "x")
				return err
			})
		})
	}
	err = do(ctx, round, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes, round, func(context.Context) error { return s.Up(s.Target) },
		func(ctx context.Context) error { _, err := s.Whole(ctx); return err }, round)
	if err != nil {
		return err
	}
	if err := w.complete(ctx, s, clients[0]); err != nil {
		return err
	}
	w.mu.Lock()
	for why, n := range w.ended {
		s.Note("%d watches were ended by etcd and begun again: %s", n, why)
	}
	w.mu.Unlock()
	s.Note("each watch saw each version of its key, in order, %d events in all", w.events.Load())
	for i, cl := range clients {
		resp, err := cl.Leases(ctx)
		if err != nil {
			return err
		}
		have := map[clientv3.LeaseID]bool{}
		for _, l := range resp.Leases {
			have[l.ID] = true
		}
		for _, id := range ids {
			if !have[id] {
				return fmt.Errorf("%s does not know the lease %x, one of %d that it has", lab.Sites[i], id, len(have))
			}
		}
	}
	if err := each(ctx, leases/2, func(ctx context.Context, i int) error {
		_, err := clients[i%2].Revoke(ctx, ids[i])
		return err
	}); err != nil {
		return fmt.Errorf("revoke half of the leases: %w", err)
	}
	for i, cl := range clients {
		n, err := cl.Get(ctx, "/lease/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && n.Count != leases/2 {
			err = fmt.Errorf("%d keys are left of %d whose leases live on", n.Count, leases/2)
		}
		if err != nil {
			return fmt.Errorf("after the revocation, at %s: %w", lab.Sites[i], err)
		}
	}
	s.Note("both members know all leases; half of them are revoked, their keys are gone")
	return nil
}

func (s *Stage) siteOf(site string) int { return slices.Index(lab.Sites[:], site) }

func watchKey(i int) string { return fmt.Sprintf("/watch/%03d", i) }
func leaseKey(i int) string { return fmt.Sprintf("/lease/%05d", i) }

// seen is what the watches saw.
type seen struct {
	group  sync.WaitGroup
	events atomic.Int64

	mu     sync.Mutex
	newest []int64 // by watch: the key's version
	wrong  error   // the first one
	ended  map[string]int
}

// follow goes on where it was when etcd ends the watch, as it does at a member that is a learner for a moment.
func (w *seen) follow(ctx context.Context, i int, cl *clientv3.Client) {
	for next := int64(1); ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		for resp := range cl.Watch(ctx, watchKey(i/2%watchKeys), clientv3.WithRev(next)) {
			w.mu.Lock()
			if err := resp.Err(); err != nil && ctx.Err() == nil {
				w.ended[err.Error()]++
			}
			for _, e := range resp.Events {
				w.events.Add(1)
				if want := w.newest[i] + 1; e.Kv.Version != want && w.wrong == nil {
					w.wrong = fmt.Errorf("watch %d of %s saw version %d, not %d", i, e.Kv.Key, e.Kv.Version, want)
				}
				w.newest[i], next = e.Kv.Version, e.Kv.ModRevision+1
			}
			w.mu.Unlock()
		}
	}
}

// complete waits until each watch has seen the last version of its key.
func (w *seen) complete(ctx context.Context, s *Stage, cl *clientv3.Client) error {
	all, err := cl.Get(ctx, "/watch/", clientv3.WithPrefix())
	if err != nil {
		return err
	}
	if len(all.Kvs) != watchKeys {
		return fmt.Errorf("%d keys are watched, not %d", len(all.Kvs), watchKeys)
	}
	last := map[string]int64{}
	for _, kv := range all.Kvs {
		last[string(kv.Key)] = kv.Version
	}
	return s.Until(ctx, "each watch sees all", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.wrong != nil {
			return w.wrong
		}
		for i, v := range w.newest {
			if want := last[watchKey(i/2%watchKeys)]; v != want {
				return fmt.Errorf("watch %d saw version %d of %d", i, v, want)
			}
		}
		return nil
	})
}
