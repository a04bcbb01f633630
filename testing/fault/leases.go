package fault

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/internal/lab"
)

// The leases of expiry, which nobody keeps alive. The prefix is no client's: the checks of the history ask for no owner of what is below it.
const (
	expiryTTL    = 3 // seconds
	expiryLeases = 20
	expiryPrefix = "/expiry/"
)

// expiries are faults of what ends by time alone.
func expiries() []Fault {
	return []Fault{{
		Name: "lease-expiry", About: "leases that nobody keeps alive, granted right before the target is lost and right before it returns: no key goes before its time, all go in the end, at both members", Claims: 1, Roles: both,
		Run: func(ctx context.Context, s *Stage) error {
			before, err := s.expiring(ctx, s.Leader, "before")
			if err != nil {
				return err
			}
			if err := do(ctx, func(context.Context) error { return s.Kill(s.Target) }, s.Resumes); err != nil {
				return err
			}
			if err := s.expire(ctx, before, s.Other()); err != nil {
				return err
			}
			alone, err := s.expiring(ctx, s.Other(), "alone")
			if err != nil {
				return err
			}
			return do(ctx, func(context.Context) error { return s.Up(s.Target) }, func(ctx context.Context) error { return s.expire(ctx, alone, s.Other()) },
				func(ctx context.Context) error { _, err := s.Whole(ctx); return err },
				func(ctx context.Context) error { return s.expire(ctx, alone, lab.Sites[:]...) })
		},
	}}
}

// expiring grants leases at a site, each with a key, and returns the keys with the moment before which none of them may go.
func (s *Stage) expiring(ctx context.Context, site, name string) (map[string]time.Time, error) {
	keys := map[string]time.Time{}
	err := s.Client(site, func(cl *clientv3.Client) error {
		for i := range expiryLeases {
			asked := time.Now() // etcd's own clock of the lease begins later
			lease, err := cl.Grant(ctx, expiryTTL)
			if err != nil {
				return fmt.Errorf("grant a lease: %w", err)
			}
			key := fmt.Sprintf("%s%s/%d", expiryPrefix, name, i)
			if _, err := cl.Put(ctx, key, "", clientv3.WithLease(lease.ID)); err != nil {
				return fmt.Errorf("write %s: %w", key, err)
			}
			keys[key] = asked.Add(time.Duration(lease.TTL) * time.Second)
		}
		return nil
	})
	s.Note("%d leases of %d s at %s", len(keys), expiryTTL, site)
	return keys, err
}

// expire waits until none of the keys is there, as each of the sites says.
func (s *Stage) expire(ctx context.Context, keys map[string]time.Time, sites ...string) error {
	for _, site := range sites {
		err := s.Client(site, func(cl *clientv3.Client) error {
			for {
				try, cancel := context.WithTimeout(ctx, time.Second)
				resp, err := cl.Get(try, expiryPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
				cancel()
				if ctx.Err() != nil {
					return fmt.Errorf("wait for the leases to expire: %w: %w", ctx.Err(), err)
				}
				if err == nil {
					there := map[string]bool{}
					for _, kv := range resp.Kvs {
						there[string(kv.Key)] = true
					}
					left, err := early(keys, there, time.Now())
					if err != nil || left == 0 {
						return err
					}
				}
				pause(ctx, 100*time.Millisecond)
			}
		})
		if err != nil {
			return fmt.Errorf("%s: %w", site, err)
		}
		s.Note("all of them have expired, %s says", site)
	}
	return nil
}

// early is how many of the keys are there, as an answer that came by then shows. One that is gone before its time is an error.
func early(keys map[string]time.Time, there map[string]bool, by time.Time) (left int, err error) {
	for key, until := range keys {
		if there[key] {
			left++
		} else if by.Before(until) {
			return left, fmt.Errorf("%s is gone %s before its lease may expire", key, until.Sub(by))
		}
	}
	return left, nil
}
