package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrCircular: the arbiter's store is, or stands on, the pair that it is to decide about. With the
// pair's quorum it would lose the record.
var ErrCircular = errors.New("the arbiter stands on the pair itself")

// Guarded is the pair, for the question whether a store stands on it.
type Guarded struct {
	Cluster uint64
	// Wrote calls match with each key that the guarded etcd wrote at this revision, until it says
	// true. False: the etcd wrote nothing there that matches, or has not come so far.
	Wrote func(ctx context.Context, revision int64, match func(key []byte) bool) (bool, error)
}

// wrote looks with a watch from the revision on: a range over all keys would read them all.
func wrote(ctx context.Context, c *clientv3.Client, revision int64, match func(key []byte) bool) (bool, error) {
	const all = "\x00"
	get, err := c.Get(ctx, all) // linearizable, and of a key that nobody has
	if err != nil {
		return false, fmt.Errorf("the local etcd's revision: %w", err)
	}
	if get.Header.Revision < revision || revision <= 0 {
		return false, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range c.Watch(ctx, all, clientv3.WithFromKey(), clientv3.WithRev(revision)) {
		if err := resp.Err(); err != nil {
			return false, fmt.Errorf("the local etcd's revision %d: %w", revision, err)
		}
		for _, e := range resp.Events {
			if e.Kv.ModRevision != revision {
				return false, nil
			}
			if match(e.Kv.Key) {
				return true, nil
			}
		}
	}
	return false, fmt.Errorf("the local etcd's revision %d: %w", revision, context.Cause(ctx))
}

// circular asks Config.Circular about the store, with the scratch register that is named after this member ID.
func (a *Agent) circular(ctx context.Context, as, cluster uint64) error {
	if a.cfg.Circular == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 4*a.cfg.arbiterDeadline())
	defer cancel()
	r, err := a.cfg.Scratch(ScratchSuffix(as))
	if err != nil {
		return err
	}
	err = a.cfg.Circular(ctx, r, Guarded{Cluster: cluster, Wrote: func(ctx context.Context, revision int64, match func(key []byte) bool) (bool, error) {
		c, err := a.dialer.Client(a.cfg.ClientURL)
		if err != nil {
			return false, err
		}
		found, err := wrote(ctx, c, revision, match)
		return found, errors.Join(err, c.Close())
	}})
	if c, ok := r.(interface{ Close() error }); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// sharedHost says whose host the arbiter's store is on; empty: nobody's, as far as names tell, or all are on
// one machine, as in a test.
func (a *Agent) sharedHost() string {
	if a.cfg.ArbiterHost == "" {
		return ""
	}
	s := a.mem.site()
	ctx, cancel := context.WithTimeout(context.Background(), lookupDeadline)
	defer cancel()
	return sharedHost(a.cfg.ArbiterHost, append([]string{a.cfg.ClientURL, a.cfg.PeerURL}, s.PeerURLs...), others(s), func(host string) []string {
		addrs, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			return nil // for a warning the names have to do
		}
		return addrs
	})
}

// lookupDeadline is for all names together.
const lookupDeadline = 300 * time.Millisecond

func sharedHost(store string, own, other []string, lookup func(host string) []string) string {
	known := map[string][]string{}
	addrs := func(host string) []string {
		if net.ParseIP(host) != nil {
			return []string{host}
		}
		if _, ok := known[host]; !ok {
			known[host] = append(lookup(host), host)
		}
		return known[host]
	}
	loopback := func(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }
	far := false // somebody is reached from elsewhere
	for _, m := range []struct {
		name string
		urls []string
	}{{"this member", own}, {"the other member", other}} {
		for _, raw := range m.urls {
			u, err := url.Parse(raw)
			if err != nil || loopback(u.Hostname()) || u.Hostname() == "" {
				continue
			}
			far = true
			if loopback(store) {
				continue
			}
			for _, x := range addrs(u.Hostname()) {
				if slices.Contains(addrs(store), x) && !loopback(x) {
					return m.name
				}
			}
		}
	}
	if far && loopback(store) {
		return "this member"
	}
	return ""
}

func others(s siteInfo) (urls []string) {
	for _, m := range s.Other {
		urls = append(append(urls, m.PeerURLs...), m.ClientURLs...)
	}
	return urls
}
