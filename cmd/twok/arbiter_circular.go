package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"twok/arbiter"
	"twok/arbiter/configmap"
	"twok/arbiter/etcd"
	"twok/internal/agent"
)

// circular says whether the store of a scratch register stands on the guarded pair: an etcd that is the pair, or
// an apiserver that keeps its objects in it.
func circular(ctx context.Context, scratch arbiter.Register, g agent.Guarded) error {
	switch r := scratch.(type) {
	case *etcd.Register:
		id, err := r.ClusterID(ctx)
		if err != nil {
			return err
		}
		if id == g.Cluster {
			return fmt.Errorf("%w: %s is the cluster %s, which this agent guards", agent.ErrCircular, r, arbiter.FormatID(id))
		}
	case *configmap.Register:
		place, err := r.Mark(ctx)
		if err != nil {
			return err
		}
		found, err := g.Wrote(ctx, place.Revision, func(key []byte) bool { return place.Is(key, place.Revision) })
		if err != nil {
			return err
		}
		if found {
			return fmt.Errorf("%w: the apiserver of %s keeps it in the etcd that this agent guards", agent.ErrCircular, r)
		}
	}
	return nil
}

// storeHost is the host in an arbiter's URL, for the warning about a store beside a member; empty: none, or several.
func storeHost(raw string) string {
	scheme, _, _ := strings.Cut(raw, "://")
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	switch scheme {
	case "http", "https":
		return u.Hostname()
	case "etcd":
		if !strings.Contains(u.Host, ",") {
			return u.Hostname()
		}
	case "s3":
		if e, err := url.Parse(u.Query().Get("endpoint")); err == nil {
			return e.Hostname()
		}
	}
	return ""
}
