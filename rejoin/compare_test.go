package rejoin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
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
	client, peer := startOne(t)
	target, err := url.Parse(peer)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.ErrorLog = log.New(io.Discard, "", 0) // the hash that is given up
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(1500 * time.Millisecond)
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(slow.Close)
	s := &Survivor{Dialer: &etcdapi.Dialer{}, ClientURLs: []string{client}, PeerURLs: []string{slow.URL}}
	site := Site{PeerURL: peer}
	long, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if equal, err := s.Compare(long, site); err != nil || !equal {
		t.Errorf("with time: equal %v, %v", equal, err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := s.Compare(short, site); !errors.Is(err, ErrNotCaughtUp) || !errors.Is(err, ErrHashTime) {
		t.Errorf("without: %v", err)
	}
}

// A survivor of two peer URLs of which the first leads into the dark is reached by the second.
//
// Rules: P12; F24.
func TestDarkPeerURL(t *testing.T) {
	client, peer := startOne(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // connects, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &Survivor{Dialer: &etcdapi.Dialer{}, ClientURLs: []string{client}, PeerURLs: []string{"http://" + l.Addr().String(), peer}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if list, err := s.List(ctx, Site{ID: 1}); err != nil || !list.OK {
		t.Errorf("list: %+v, %v", list, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if equal, err := s.Compare(ctx, Site{PeerURL: peer}); err != nil || !equal {
		t.Errorf("compare: equal %v, %v", equal, err)
	}
}

// startOne starts an etcd of one member and returns its URLs once it has published itself.
func startOne(t *testing.T) (client, peer string) {
	t.Helper()
	bin, err := lab.Etcd(t.Context(), "3.6", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	client, peer = "http://"+free(t), "http://"+free(t)
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
	d := &etcdapi.Dialer{}
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, v, err := d.PeerVersion(ready, peer); err == nil && v != "not_decided" {
			return client, peer
		}
		if ready.Err() != nil {
			t.Fatal("etcd does not start")
		}
		time.Sleep(20 * time.Millisecond)
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
