package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"twok/internal/freeport"
)

// StoreKinds are the real stores that StartStore knows.
var StoreKinds = []string{"s3", "etcd"}

// Store is a real arbiter store on loopback: versitygw, or an etcd of one member.
// It may be killed and started again on its data.
type Store struct {
	// URL of the record "pair", for --arbiter.
	URL string
	// Env is what a process needs besides ("NAME=value").
	Env []string
	// Log is the store's log file.
	Log string

	kind, addr, health string
	argv, env          []string
	procs              *procs
	proc               *proc
}

// StartStore starts a store with its data in dir, which is created if needed. Tools
// that are missing are built, which log tells.
func StartStore(ctx context.Context, kind, dir string, log io.Writer) (*Store, error) {
	return StartStoreAt(ctx, kind, dir, log, nil)
}

// StartStoreAt is StartStore in the place's ArbiterSite; nil: on loopback.
func StartStoreAt(ctx context.Context, kind, dir string, log io.Writer, place *Place) (*Store, error) {
	fail := func(err error) (*Store, error) {
		return nil, fmt.Errorf("start the %s store in %s: %w", kind, dir, err)
	}
	if !slices.Contains(StoreKinds, kind) {
		return fail(fmt.Errorf("no such store; choose one of %s", strings.Join(StoreKinds, ", ")))
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	ports, err := freeport.Ports(2)
	if err != nil {
		return fail(err)
	}
	addr, peer := joinPort(place.host(ArbiterSite), ports[0]), joinPort("127.0.0.1", ports[1])
	s := &Store{kind: kind, addr: addr, Log: filepath.Join(dir, "store.log")}
	data := filepath.Join(dir, "store")
	switch kind {
	case "s3":
		const bucket, key, secret = "arbiter", "twok", "a secret of the lab"
		bin, err := Versitygw(ctx, log)
		if err != nil {
			return fail(err)
		}
		if err := os.MkdirAll(filepath.Join(data, bucket), 0o700); err != nil { // a directory is a bucket
			return fail(err)
		}
		s.argv = []string{bin, "--port", addr, "--quiet", "--health", "/health", "posix", data}
		s.env = []string{"ROOT_ACCESS_KEY=" + key, "ROOT_SECRET_KEY=" + secret}
		s.Env = []string{"AWS_ACCESS_KEY_ID=" + key, "AWS_SECRET_ACCESS_KEY=" + secret, "AWS_EC2_METADATA_DISABLED=true"}
		s.URL = "s3://" + bucket + "/pair?" + url.Values{"endpoint": {"http://" + addr}, "path-style": {"true"}}.Encode()
	case "etcd":
		b, err := Etcd(ctx, Minors[len(Minors)-1], log)
		if err != nil {
			return fail(err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fail(err)
		}
		s.argv = []string{
			b.Etcd, "--name", "arbiter", "--data-dir", data, "--initial-cluster", "arbiter=http://" + peer, "--initial-cluster-token", "arbiter " + dir,
			"--listen-client-urls", "http://" + addr, "--advertise-client-urls", "http://" + addr,
			"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
		}
		s.URL = "etcd://" + addr + "/pair"
	}
	s.health = "http://" + addr + "/health"
	if s.procs, err = newProcs(place); err != nil {
		return fail(err)
	}
	if err := s.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Start starts the store after Kill and waits until it serves.
func (s *Store) Start(ctx context.Context) error {
	var err error
	if s.proc, err = s.procs.start(ArbiterSite, s.Log, s.env, s.argv...); err != nil {
		return err
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.health, nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-s.proc.done:
			return fmt.Errorf("the %s store ended at once; see %s", s.kind, s.Log)
		case <-ctx.Done():
			return fmt.Errorf("wait for the %s store: %w; see %s", s.kind, ctx.Err(), s.Log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the store by SIGKILL.
func (s *Store) Kill() error {
	if err := s.procs.kill(ArbiterSite); err != nil {
		return err
	}
	s.proc.reaped()
	return nil
}

// Signal sends sig to the store.
func (s *Store) Signal(sig syscall.Signal) error {
	if !s.proc.alive() {
		return fmt.Errorf("send %s to the %s store: it does not run", sig, s.kind)
	}
	return s.proc.cmd.Process.Signal(sig)
}

// Close ends the store. Its data stay.
func (s *Store) Close() error { return s.procs.close() }

// ArbiterVia returns the arbiter's URL with its address replaced by what link
// returns for it: an http URL's host, an s3 URL's endpoint, each host of an etcd URL. A ConfigMap's names no
// address: Kubernetes.Via.
func ArbiterVia(raw string, link func(target string) (string, error)) (string, error) {
	bad := fmt.Errorf("arbiter %q: CutArbiter needs http://HOST:PORT/…, s3://…?endpoint=http://HOST:PORT or etcd://HOST:PORT/…", raw)
	if rest, ok := strings.CutPrefix(raw, "etcd://"); ok {
		authority, path, _ := strings.Cut(rest, "/")
		hosts := strings.Split(authority, ",")
		for i, h := range hosts {
			if _, _, err := net.SplitHostPort(h); err != nil {
				return "", bad
			}
			var err error
			if hosts[i], err = link(h); err != nil {
				return "", err
			}
		}
		return "etcd://" + strings.Join(hosts, ",") + "/" + path, nil
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", bad
	}
	via, q := u, u.Query()
	if u.Scheme == "s3" {
		if via, err = url.Parse(q.Get("endpoint")); err != nil {
			return "", bad
		}
	}
	if via.Scheme != "http" || via.Port() == "" {
		return "", bad
	}
	if via.Host, err = link(via.Host); err != nil {
		return "", err
	}
	if u.Scheme == "s3" {
		q.Set("endpoint", via.String())
		u.RawQuery = q.Encode()
	}
	return u.String(), nil
}
