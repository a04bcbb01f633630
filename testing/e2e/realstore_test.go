package e2e

import (
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
	etcdstore "twok/arbiter/etcd"
	"twok/arbiter/s3"
	"twok/internal/lab"
)

// realStore starts a store and returns how a pair uses it.
func realStore(t *testing.T, kind string) (*lab.Store, func(*lab.Config)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "twok-e2e-store-")
	if err != nil {
		t.Fatal(err)
	}
	s, err := lab.StartStore(t.Context(), kind, dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the store's data and log are kept in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	var reg arbiter.Register
	switch rest := strings.TrimPrefix(s.URL, kind+"://"); kind {
	case "s3":
		u, perr := url.Parse(s.URL)
		if perr != nil {
			t.Fatal(perr)
		}
		reg, err = s3.New(s3.Config{Bucket: u.Host, Key: strings.TrimPrefix(u.Path, "/"), Endpoint: u.Query().Get("endpoint"), PathStyle: true})
	case "etcd":
		addr, key, _ := strings.Cut(rest, "/")
		reg, err = etcdstore.New(etcdstore.Config{Endpoints: []string{addr}, Key: key})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, func(c *lab.Config) { c.Arbiter, c.Register = s.URL, reg }
}

// On each real store: a cut and a return; a cut while the store is down, in which
// nobody writes until it is back; and a cut in which only one member, not the
// leader, reaches the store, and survives.
//
// Rules: A1, P1, P2, P4, P7, P8, P12; F37.
func TestRealStores(t *testing.T) {
	for i, kind := range lab.StoreKinds {
		t.Run(kind, func(t *testing.T) {
			store, use := realStore(t, kind)
			p := start(t, lab.Minors[i%len(lab.Minors)], use)
			p.CutLink()
			p.written("a write by the survivor")
			p.HealLink()
			first := p.wholeAndAudited()
			if first.Generation < 2 {
				t.Errorf("generation %d", first.Generation)
			}

			p.must(store.Kill())
			for _, name := range lab.Sites {
				p.reason(name, "arbiter-unavailable")
			}
			p.written("a write without the arbiter")
			p.CutLink()
			for _, name := range lab.Sites {
				p.role(name, "leaderless")
			}
			p.silent("a cut pair without an arbiter", 3*time.Second)
			p.must(store.Start(p.within()))
			p.written("a write after the arbiter came back")
			p.HealLink()
			second := p.wholeAndAudited()
			if second.Generation <= first.Generation {
				t.Errorf("generation %d, it was %d", second.Generation, first.Generation)
			}

			leader := p.leader()
			other := lab.Other(leader)
			p.Network.Cut(leader, lab.ArbiterSite)
			p.Network.Cut(lab.ArbiterSite, leader)
			p.CutLink()
			p.written("a write by the member that reaches the arbiter")
			p.role(other, "alone")
			p.Network.HealAll()
			if third := p.wholeAndAudited(); third.Survivor.Name != other || third.Generation <= second.Generation {
				t.Errorf("survivor %s, generation %d; want %s and more than %d", third.Survivor.Name, third.Generation, other, second.Generation)
			}
		})
	}
}
