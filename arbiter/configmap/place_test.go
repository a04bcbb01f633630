package configmap

import (
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/arbiter"

	"twok/arbiter/arbitertest"
)

// Rules: none (circularity).
func TestPlace(t *testing.T) {
	p := Place{Suffix: "configmaps/ns/pair.probe.1", Revision: 7}
	if p.Key("/registry") != "/registry/configmaps/ns/pair.probe.1" || p.Key("/a/b/") != "/a/b/configmaps/ns/pair.probe.1" {
		t.Errorf("%s", p.Key("/registry"))
	}
	for _, c := range []struct {
		key      string
		revision int64
		want     bool
	}{
		{"/registry/configmaps/ns/pair.probe.1", 7, true},
		{"/any/where/configmaps/ns/pair.probe.1", 7, true},
		{"/registry/configmaps/ns/pair.probe.1", 8, false},
		{"/registry/configmaps/ns/pair.probe.12", 7, false},
		{"/registry/configmaps/ns/pair", 7, false},
		{"/registry/otherconfigmaps/ns/pair.probe.1", 7, false},
		{"configmaps/ns/pair.probe.1", 7, false},
	} {
		if got := p.Is([]byte(c.key), c.revision); got != c.want {
			t.Errorf("%s at %d: %v", c.key, c.revision, got)
		}
	}
	if (Place{}).Is([]byte("/"), 0) {
		t.Error("no place is everywhere")
	}
	r := at(t, "http://"+arbitertest.FreePort(), "", "{}")
	if _, err := r.Mark(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("a record is written over: %v", err)
	}
}

// The key that Mark tells is in the apiserver's etcd, at that revision, under the
// usual prefix and under another.
//
// Rules: none (circularity).
func TestPlaceOnRealEtcd(t *testing.T) {
	c := kube(t)
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcdURL}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// found are the places in the whole etcd, as an agent that knows no prefix looks.
	found := func(p Place) (keys []string) {
		resp, err := cl.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			if p.Is(kv.Key, kv.ModRevision) {
				keys = append(keys, string(kv.Key))
			}
		}
		return keys
	}
	c.tenant(t, wide)
	r := open(t, Config{Namespace: namespace, Name: "pair.probe.8e9e05c52164694d"})
	old, err := r.Mark(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if keys := found(old); len(keys) != 1 || keys[0] != old.Key("/registry") {
		t.Errorf("%+v is at %q", old, keys)
	}
	p, err := r.Mark(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if keys := found(p); len(keys) != 1 || p.Revision <= old.Revision {
		t.Errorf("%+v after %+v is at %q", p, old, keys)
	}
	if keys := found(old); len(keys) != 0 {
		t.Errorf("the place from before is at %q", keys)
	}
	if _, err := open(t, Config{Namespace: namespace, Name: "pair"}).Mark(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("the record was marked: %v", err)
	}

	// Another apiserver on the same etcd, under another prefix, with the same names.
	second := &cluster{dir: t.TempDir(), etcdURL: c.etcdURL}
	t.Cleanup(second.apiserver.kill)
	second.up(t, "/else/where")
	second.must(t, "POST", "/api/v1/namespaces", yaml, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: "+namespace+"\n")
	q, err := open(t, second.adminConfig(t, namespace, "pair.probe.8e9e05c52164694d")).Mark(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if keys := found(q); len(keys) != 1 || !strings.HasPrefix(keys[0], "/else/where/") || keys[0] != q.Key("/else/where") {
		t.Errorf("%+v is at %q", q, keys)
	}
}
