package configmap

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// fixture is the ConfigMap pair, fresh, and clients of the service account that
// the shipped manifest makes. With made it exists without the key, and the account may not
// create one; otherwise it does not exist.
func (c *cluster) fixture(t *testing.T, tokenFile string, made bool) arbitertest.Fixture {
	t.Helper()
	path := configMapPath("pair")
	if code, answer, err := c.try(c.addr, adminToken, "DELETE", path, "", ""); err != nil || code != 200 && code != 404 {
		t.Fatal(code, answer, err)
	}
	const empty = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"pair"}}`
	if made {
		c.must(t, "POST", configMapPath(""), "application/json", empty)
	}
	user := "tokenFile: " + tokenFile
	cfg := Config{Namespace: namespace, Name: "pair"}
	via := func(addr, user string) (arbiter.Register, error) {
		cfg := cfg
		cfg.kubeconfig = c.kubeconfig(t, addr, user)
		return New(cfg)
	}
	return arbitertest.Fixture{
		Addr:    c.addr,
		Open:    func() (arbiter.Register, error) { return New(cfg) },
		OpenVia: func(addr string) (arbiter.Register, error) { return via(addr, user) },
		Disturbed: func() (arbiter.Register, arbitertest.Faults, error) {
			l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{c.cert}, NextProtos: []string{"http/1.1"}})
			if err != nil {
				return nil, nil, err
			}
			p := arbitertest.NewProxyOn(l, func() (net.Conn, error) {
				return tls.Dial("tcp", c.addr, &tls.Config{RootCAs: c.roots, NextProtos: []string{"http/1.1"}})
			})
			r, err := via(p.Addr(), user)
			if err != nil {
				p.Close()
				return nil, nil, err
			}
			return r, p, nil
		},
		Forbidden: func() (arbiter.Register, error) { return via(c.addr, "token: nobody") },
		Put: func(value []byte) error {
			body := map[string]any{"data": map[string]any{DefaultKey: string(value)}, "binaryData": map[string]any{DefaultKey: nil}}
			if !utf8.Valid(value) {
				body = map[string]any{"data": map[string]any{DefaultKey: nil}, "binaryData": map[string]any{DefaultKey: base64.StdEncoding.EncodeToString(value)}}
			}
			b, err := json.Marshal(body)
			if err != nil {
				return err
			}
			if code, _, err := c.try(c.addr, adminToken, "GET", path, "", ""); err == nil && code == 404 {
				if _, err := c.admin("POST", configMapPath(""), "application/json", empty); err != nil {
					return err
				}
			}
			_, err = c.admin("PATCH", path, "application/merge-patch+json", string(b))
			return err
		},
	}
}

// The shipped Role with names and its ConfigMaps, and no right to create one.
//
// Rules: P1, P3; F1, F2, F11, F13, F28, F29.
func TestConformanceNamed(t *testing.T) {
	c := kube(t)
	token := c.tenant(t, named)
	arbitertest.Run(t, func(t *testing.T) arbitertest.Fixture { return c.fixture(t, token, true) })
}

// The shipped Role with create, and no ConfigMap.
//
// Rules: P1, P3; F1, F2, F11, F13, F28, F29.
func TestConformance(t *testing.T) {
	c := kube(t)
	token := c.tenant(t, wide)
	arbitertest.Run(t, func(t *testing.T) arbitertest.Fixture { return c.fixture(t, token, false) })
}

// Every connection is cut after every so many bytes.
//
// Rules: P1; F29.
func TestCutAtEveryByte(t *testing.T) {
	c := kube(t)
	f := c.fixture(t, c.tenant(t, named), true)
	seen, err := arbitertest.Sweep(f, 41)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%v", seen)
}

// The apiserver killed under a storm of writers loses no acknowledged swap, and
// applies nothing that was refused.
//
// Rules: P1.
func TestKillUnderStorm(t *testing.T) {
	c := kube(t)
	c.fixture(t, c.tenant(t, named), true)
	cfg := Config{Namespace: namespace, Name: "pair"}
	var clients []arbiter.Register
	for range 4 {
		clients = append(clients, open(t, cfg))
	}
	check := open(t, cfg)
	if err := check.CompareAndSwap(t.Context(), arbiter.Absent, nil); err != nil {
		t.Fatal(err)
	}
	var storm arbitertest.Storm
	for _, p := range []*process{&c.apiserver, &c.apiserver, &c.etcd} {
		killed := false
		err := storm.Run(t.Context(), clients, func(n int) bool {
			if n >= 40 && !killed {
				killed = true
				p.kill()
			}
			return killed
		})
		if err != nil || !killed {
			t.Fatalf("%v, killed %v", err, killed)
		}
		if p == &c.etcd {
			c.etcd.start(t, c.etcd.log, p.cmd.Args...)
		} else {
			c.again(t)
		}
		var value []byte
		for ctx, err := context.WithoutCancel(t.Context()), error(arbiter.ErrUnavailable); err != nil; {
			if value, _, err = check.Read(ctx); err != nil && arbiter.Class(err) != arbiter.ErrUnavailable {
				t.Fatal(err)
			}
		}
		if err := storm.Check(value); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged swaps, %d unknown", storm.Acked(), storm.Doubt())
}

// What an operator reads in a ConfigMap is text.
//
// Rules: none (readability).
func TestValueIsText(t *testing.T) {
	c := kube(t)
	c.tenant(t, named)
	r := open(t, Config{Namespace: namespace, Name: "pair"})
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("{\n\"format\":\"twok-record\"}\n")); err != nil {
		t.Fatal(err)
	}
	if text := c.must(t, "GET", configMapPath("pair"), "", ""); !strings.Contains(text, `"record":"{\n\"format\":\"twok-record\"}\n"`) {
		t.Errorf("%s", text)
	}
}
