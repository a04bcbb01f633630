package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"twok/arbiter/httpcas"
	"twok/internal/lab"
)

// arbiterTLS is an embedded arbiter that asks for client certificates and remembers whose it saw last.
type arbiterTLS struct {
	url string

	mu     sync.Mutex
	issuer string // of the newest client certificate
	seen   int    // handshakes since forget
}

func (a *arbiterTLS) saw(cs tls.ConnectionState) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.issuer = cs.PeerCertificates[0].Issuer.CommonName
	a.seen++
	return nil
}

func (a *arbiterTLS) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.issuer, a.seen = "", 0
}

func (a *arbiterTLS) last() (issuer string, seen int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.issuer, a.seen
}

// serveTLS serves with the files of dir, read at each handshake.
func serveTLS(t *testing.T, files *lab.TLS) *arbiterTLS {
	t.Helper()
	s, err := httpcas.NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &arbiterTLS{}
	hs := httptest.NewUnstartedServer(s)
	hs.Config = s.HTTPServer(log.New(io.Discard, "", 0))
	hs.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		cfg, err := files.Client() // as a client; the pool and the pair are what is wanted
		if err != nil {
			return nil, err
		}
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		return &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: cfg.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert, VerifyConnection: a.saw,
		}, err
	}}
	hs.StartTLS()
	a.url = hs.URL + "/pair"
	t.Cleanup(func() { hs.Close(); s.Close() })
	return a
}

// bundle puts these authorities into the one CA file.
func bundle(t *testing.T, file string, cas ...*authority) {
	t.Helper()
	var all []byte
	for _, ca := range cas {
		all = append(all, ca.pem...)
	}
	if err := errors.Join(os.WriteFile(file+".new", all, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// TestCertificatesRotated: everything is rotated from one authority to another in a running pair: the CA file holds both, then the
// leaves of clients, peers and the arbiter's client and server are new, then the CA file holds the new one alone, then the
// old leaves expire. No agent is restarted; etcd is, once for each CA file, since it reads that at its start only. No role and no
// generation changes, and then a cut fails over.
//
// Rules: P1, P7, P14; F12.
func TestCertificatesRotated(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			rotated(t, minor)
		})
	}
}

func rotated(t *testing.T, minor string) {
	old, next := namedAuthority(t, "old CA"), namedAuthority(t, "new CA")
	files := old.tls()
	next.dir = old.dir // from now on it writes there
	old.valid = 90 * time.Second
	old.leaves()
	expire := time.Now().Add(old.valid)
	bundle(t, files.CA, old)
	server := serveTLS(t, files)
	reg, err := httpcas.New(httpcas.Config{URL: server.url, TLS: &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(files.AgentCert, files.AgentKey)
		return &pair, err
	}}, Roots: func() *x509.CertPool {
		cfg, err := files.Client()
		if err != nil {
			t.Error(err)
			return nil
		}
		return cfg.RootCAs
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := prepare(t, minor, external, calm, func(c *lab.Config) {
		c.TLS, c.Arbiter, c.Register, c.CutArbiter = files, server.url, reg, false
		c.ClaimAfter = 15 * time.Second // longer than a restart of etcd
		c.AgentEnv = []string{"TWOK_ARBITER_CA_FILE=" + files.CA, "TWOK_ARBITER_CERT_FILE=" + files.AgentCert, "TWOK_ARBITER_KEY_FILE=" + files.AgentKey}
	})
	p.untraced = "each etcd is restarted twice, one right after the other: the search for the elections in between takes minutes"
	p.must(p.Start(p.within()))
	first := p.whole()
	agents := [2]int{p.Site("a").AgentPID(), p.Site("b").AgentPID()}
	fresh := func() { // the test's own clients read no file again
		t.Helper()
		for name, cl := range p.clients {
			cl.Close()
			delete(p.clients, name)
		}
		p.tls, err = files.Client()
		p.must(err)
		p.load(p.Site("a").ClientURL, p.Site("b").ClientURL)
	}
	fresh()
	unchanged := func(what string) {
		t.Helper()
		rec := p.whole()
		if rec.ID != first.ID || rec.Generation != first.Generation || rec.Survivor != first.Survivor || rec.WholeMembers != first.WholeMembers {
			t.Errorf("%s: the record was %+v, is %+v", what, first, rec)
		}
		if now := [2]int{p.Site("a").AgentPID(), p.Site("b").AgentPID()}; now != agents {
			t.Errorf("%s: the agents were %v, are %v", what, agents, now)
		}
		for _, name := range lab.Sites {
			if n := p.did(name, "stop"); n != 0 {
				t.Errorf("%s: the agent of %s stopped etcd %d times", what, name, n)
			}
		}
	}
	// asked waits until the agents have asked the arbiter again, with certificates of that authority.
	asked := func(what, issuer string) {
		t.Helper()
		server.forget()
		p.until(what+": the agents ask the arbiter", func(context.Context) error {
			who, n := server.last()
			if n < 6 { // every second each, in these tests, and the test itself
				return fmt.Errorf("%d times", n)
			}
			if who != issuer {
				return fmt.Errorf("with a certificate of %s", who)
			}
			return nil
		})
	}
	restart := func(what string) {
		t.Helper()
		for _, name := range []string{lab.Other(p.leader()), p.leader()} {
			pid := p.etcdPID(name)
			p.must(p.Site(name).StopEtcd())
			p.until(what+": etcd runs again", func(context.Context) error {
				if now := p.etcdPID(name); now == 0 || now == pid {
					return errors.New("not yet")
				}
				return nil
			})
			p.must(p.Site(name).WaitServing(p.within()))
			p.whole()
		}
	}

	bundle(t, files.CA, old, next)
	asked("both authorities", "old CA")
	restart("both authorities")
	unchanged("both authorities")

	was := [2]etcdLife{p.life("a"), p.life("b")}
	next.leaves()
	asked("new leaves", "new CA")
	fresh()
	p.undisturbed("new leaves", was)
	unchanged("new leaves")
	if left := time.Until(expire); left <= 0 {
		t.Logf("the old leaves had expired %s before they were replaced: this machine is slow", -left)
	}

	bundle(t, files.CA, next)
	asked("the new authority", "new CA")
	restart("the new authority")
	fresh()
	unchanged("the new authority")

	was = [2]etcdLife{p.life("a"), p.life("b")}
	time.Sleep(time.Until(expire.Add(time.Second)))
	p.undisturbed("the old leaves expired", was)
	unchanged("the old leaves expired")
	p.w.Stop()
	p.Log(p.audit())
	p.write()
	p.failover(lab.CutLink)
	for _, name := range lab.Sites {
		if l := p.logLines(p.Site(name).AgentLog, "cannot be read again"); len(l) > 0 && !strings.Contains(l[0], "does not match") {
			t.Errorf("%s: %q", name, l)
		}
	}
}
