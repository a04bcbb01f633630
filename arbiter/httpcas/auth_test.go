package httpcas

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// authority signs certificates for 127.0.0.1, or for at.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func (a *authority) sign(t *testing.T, valid time.Duration, at ...net.IP) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid), BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if len(at) > 0 {
		c.IPAddresses = at
	}
	parent, by := a.cert, a.key
	if parent == nil {
		c.IsCA, c.KeyUsage, parent, by = true, x509.KeyUsageCertSign, c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.cert == nil {
		a.cert, a.key, a.pool = c, key, x509.NewCertPool()
		a.pool.AddCert(c)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: c}
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	a.sign(t, time.Hour)
	return a
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// secured serves a directory over TLS to who has a certificate and an account.
func secured(t *testing.T, server *tls.Config, a *Accounts) (*Server, *httptest.Server) {
	t.Helper()
	s, err := NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.Require(a)
	hs := httptest.NewUnstartedServer(s)
	hs.Config = s.HTTPServer(log.New(io.Discard, "", 0))
	if server != nil {
		hs.TLS = server
		hs.StartTLS()
	} else {
		hs.Start()
	}
	t.Cleanup(func() { hs.Close(); s.Close() })
	return s, hs
}

// The embedded arbiter with TLS, client certificates and users keeps the
// contract, and so does one with tokens; the proxy in between speaks TLS too.
// Rules: P1, P3; F1, F2, F11, F13, F28, F29.
func TestSecuredConformance(t *testing.T) {
	ca := newAuthority(t)
	server := &tls.Config{Certificates: []tls.Certificate{ca.sign(t, time.Hour)}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert}
	client := &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.sign(t, time.Hour)}}
	accounts, err := NewAccounts(file(t, "# who\n\ntwok:right:with a colon\nother:x\n"), file(t, "a-token\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, header := range map[string]string{"users": Basic("twok", "right:with a colon"), "tokens": Bearer("a-token")} {
		t.Run(name, func(t *testing.T) {
			scheme, server, client := "https", server, client
			if name == "tokens" {
				scheme, server, client = "http", nil, nil
			}
			s, hs := secured(t, server.Clone(), accounts)
			n := 0
			arbitertest.Run(t, func(t *testing.T) arbitertest.Fixture {
				if server != nil && strings.HasSuffix(t.Name(), "storm") {
					t.Skip("thousands of TLS handshakes; the storms are for the store, which TestConformance has")
				}
				n++
				key := fmt.Sprintf("suite/%d", n)
				addr := hs.Listener.Addr().String()
				via := func(addr, header string) (arbiter.Register, error) {
					cfg := Config{URL: scheme + "://" + addr + "/" + key, TLS: client, Authorization: func() (string, error) { return header, nil }}
					if client != nil { // as a command with a file of authorities does
						cfg.TLS = client.Clone()
						cfg.TLS.RootCAs, cfg.Roots = nil, func() *x509.CertPool { return ca.pool }
					}
					return New(cfg)
				}
				return arbitertest.Fixture{
					Open:      func() (arbiter.Register, error) { return via(addr, header) },
					Forbidden: func() (arbiter.Register, error) { return via(addr, header+"x") },
					Disturbed: func() (arbiter.Register, arbitertest.Faults, error) {
						l, err := net.Listen("tcp", "127.0.0.1:0")
						if err != nil {
							return nil, nil, err
						}
						dial := func() (net.Conn, error) { return net.Dial("tcp", addr) }
						if server != nil {
							l = tls.NewListener(l, server)
							dial = func() (net.Conn, error) { return tls.Dial("tcp", addr, client) }
						}
						p := arbitertest.NewProxyOn(l, dial)
						r, err := via(p.Addr(), header)
						return r, p, err
					},
					Put: func(data []byte) error {
						_, _, err := s.store.put(key, data, func(value, bool) bool { return true })
						return err
					},
				}
			})
		})
	}
}

// What is wrong with certificates is told from an arbiter that is away.
// Rules: P1; F11.
func TestCertificatesClassed(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	good := ca.sign(t, time.Hour)
	server := &tls.Config{Certificates: []tls.Certificate{good}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert}
	_, hs := secured(t, server, nil)
	_, expired := secured(t, &tls.Config{Certificates: []tls.Certificate{ca.sign(t, -time.Hour)}}, nil)
	_, plain := secured(t, nil, nil)
	try := func(what, addr string, cfg *tls.Config, class error, words string) {
		t.Helper()
		r, err := New(Config{URL: "https://" + addr + "/pair", TLS: cfg})
		if err != nil {
			t.Fatal(err)
		}
		// TLS 1.3 tells a client of its certificate's end after the handshake: the
		// connection may be found broken before the alert is read.
		for end := time.Now().Add(20 * time.Second); ; {
			_, _, err := r.Read(t.Context())
			err2 := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x"))
			ok := true
			for _, err := range []error{err, err2} {
				ok = ok && arbiter.Class(err) == class && (err == nil || strings.Contains(err.Error(), words))
			}
			if ok {
				return
			}
			if class != arbiter.ErrForbidden || time.Now().After(end) {
				t.Errorf("%s: read %v; swap %v; want %v, %q", what, err, err2, class, words)
				return
			}
		}
	}
	addr := hs.Listener.Addr().String()
	try("no client certificate", addr, &tls.Config{RootCAs: ca.pool}, arbiter.ErrForbidden, "client certificate")
	try("an expired one", addr, &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.sign(t, -time.Hour)}}, arbiter.ErrForbidden, "client certificate")
	try("a stranger's", addr, &tls.Config{RootCAs: ca.pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		c := stranger.sign(t, time.Hour)
		return &c, nil
	}}, arbiter.ErrForbidden, "client certificate")
	try("another authority", addr, &tls.Config{RootCAs: stranger.pool}, arbiter.ErrMisconfigured, "TWOK_ARBITER_CA_FILE")
	try("an expired server", expired.Listener.Addr().String(), &tls.Config{RootCAs: ca.pool}, arbiter.ErrMisconfigured, "expired")
	try("a server without TLS", plain.Listener.Addr().String(), &tls.Config{RootCAs: ca.pool}, arbiter.ErrMisconfigured, "no TLS")
	try("nobody", refusedAddr(t), &tls.Config{RootCAs: ca.pool}, arbiter.ErrUnavailable, "")
	if _, err := New(Config{URL: "http://" + addr + "/pair", TLS: &tls.Config{}}); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("certificates without https: %v", err)
	}
}

// Accounts: who is refused, what a changed, damaged or lost file does.
// Rules: P1; F11.
func TestAccounts(t *testing.T) {
	users := file(t, "u:p\n")
	a, err := NewAccounts(users, "")
	if err != nil {
		t.Fatal(err)
	}
	s, hs := secured(t, nil, a)
	ask := func(method, path, header string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, hs.URL+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		req.Header.Set("If-None-Match", "*")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	for _, header := range []string{"", "Basic", Basic("u", ""), Basic("u", "P"), Basic("", "p"), Bearer("u:p"), "basic u:p", Basic("u", "p") + " "} {
		want := 401
		if strings.TrimSpace(header) == Basic("u", "p") {
			want = 404 // a header's value has no white space around it
		}
		if resp := ask("GET", "/k", header); resp.StatusCode != want || want == 401 && len(resp.Header.Values("WWW-Authenticate")) != 2 {
			t.Errorf("%q: %d %v", header, resp.StatusCode, resp.Header)
		}
	}
	if resp := ask("PUT", "/k", ""); resp.StatusCode != 401 {
		t.Errorf("a PUT of nobody: %d", resp.StatusCode)
	}
	if resp := ask("GET", "/../etc", ""); resp.StatusCode != 401 && resp.StatusCode != 301 {
		t.Errorf("a strange path of nobody: %d", resp.StatusCode)
	}
	if _, err := s.store.get("k"); err == nil {
		t.Error("nobody wrote k")
	}
	if resp := ask("GET", "/healthz", ""); resp.StatusCode != 200 {
		t.Errorf("/healthz: %d", resp.StatusCode)
	}
	if resp := ask("PUT", "/k", Basic("u", "p")); resp.StatusCode != 201 {
		t.Errorf("a PUT of u: %d", resp.StatusCode)
	}
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("u:another\n")
	if old, now := ask("GET", "/k", Basic("u", "p")).StatusCode, ask("GET", "/k", Basic("u", "another")).StatusCode; old != 401 || now != 200 {
		t.Errorf("a changed password: the old one %d, the new one %d", old, now)
	}
	broken := func(what string) {
		t.Helper()
		resp := ask("PUT", "/k2", Basic("u", "another"))
		if resp.StatusCode != 503 || resp.Header.Get(HeaderApplied) != "no" {
			t.Errorf("%s: %d", what, resp.StatusCode)
		}
	}
	put("no colon here\n")
	broken("a damaged file")
	put("# nobody\n")
	broken("an empty file")
	if err := os.Remove(users); err != nil {
		t.Fatal(err)
	}
	broken("a lost file")
	put("u:p\n")
	if resp := ask("GET", "/k", Basic("u", "p")); resp.StatusCode != 200 {
		t.Errorf("the file is back: %d", resp.StatusCode)
	}
	for _, c := range [][2]string{{file(t, "x"), ""}, {file(t, ":p"), ""}, {file(t, "u:"), ""}, {file(t, ""), ""}, {"", file(t, "#")}, {"/nowhere", ""}, {"", "/nowhere"}, {"", ""}} {
		if _, err := NewAccounts(c[0], c[1]); err == nil || strings.Contains(err.Error(), "x is not") {
			t.Errorf("%q: %v", c, err)
		}
	}
}

// The authorities are asked for each connection: the old one, both, the new one, while the server's certificate goes
// from the old one to the new one. A certificate for another address is refused whoever signed it.
// Rules: P1; F11, F12.
func TestRootsForEachConnection(t *testing.T) {
	old, next := newAuthority(t), newAuthority(t)
	both := x509.NewCertPool()
	both.AddCert(old.cert)
	both.AddCert(next.cert)
	var server atomic.Pointer[tls.Certificate]
	_, hs := secured(t, &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*server.Load()}}, nil
	}}, nil)
	var roots atomic.Pointer[x509.CertPool]
	r, err := New(Config{URL: hs.URL + "/pair", Roots: roots.Load})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := next.sign(t, time.Hour, net.IPv4(127, 0, 0, 2))
	oldCert, nextCert := old.sign(t, time.Hour), next.sign(t, time.Hour)
	for _, step := range []struct {
		what string
		cert *tls.Certificate
		pool *x509.CertPool
		want error
	}{
		{"the old authority", &oldCert, old.pool, nil},
		{"a server that is ahead", &nextCert, old.pool, arbiter.ErrMisconfigured},
		{"both authorities", &nextCert, both, nil},
		{"both, the old server", &oldCert, both, nil},
		{"the new authority", &nextCert, next.pool, nil},
		{"a server that is behind", &oldCert, next.pool, arbiter.ErrMisconfigured},
		{"another address", &elsewhere, next.pool, arbiter.ErrMisconfigured},
		{"at the end", &nextCert, next.pool, nil},
	} {
		server.Store(step.cert)
		roots.Store(step.pool)
		if _, _, err := r.Read(t.Context()); arbiter.Class(err) != step.want {
			t.Errorf("%s: read: %v", step.what, err)
		}
		_, v, err := r.Read(t.Context())
		if err == nil {
			err = r.CompareAndSwap(t.Context(), v, []byte(step.what))
		}
		if arbiter.Class(err) != step.want {
			t.Errorf("%s: swap: %v", step.what, err)
		}
	}
}
