package rejoin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"testing"
	"time"

	"twok/internal/etcdapi"
	"twok/internal/lab"
)

// A large key space takes its time to hash, longer than a nudge: the comparison waits for it, and
// says that it was the hash that did not end in time. One etcd stands for both members,
// behind a proxy that holds each hash back.
//
// Rules: P12; F24.
func TestCompareSlowHash(t *testing.T) {
	bin, err := lab.Etcd(t.Context(), "3.6", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	client, peer := "http://"+free(t), "http://"+free(t)
	etcd := exec.Command(bin.Etcd, "--name", "a", "--data-dir", t.TempDir(), "--log-level", "error",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "a="+peer)
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = etcd.Wait() // killed
	})
	target, err := url.Parse(peer)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(1500 * time.Millisecond)
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(slow.Close)
	s := &Survivor{Dialer: &etcdapi.Dialer{}, ClientURLs: []string{client}, PeerURLs: []string{slow.URL}}
	site := Site{PeerURL: peer}

	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s.Dialer.Probe(ready, peer) != nil {
		if ready.Err() != nil {
			t.Fatal("etcd does not start")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if equal, err := s.Compare(ready, site); err != nil || !equal {
		t.Errorf("with time: equal %v, %v", equal, err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.Compare(short, site); !errors.Is(err, ErrNotCaughtUp) || !errors.Is(err, ErrHashTime) {
		t.Errorf("without: %v", err)
	}
}

// free is an address on loopback that nobody uses.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr())
}
