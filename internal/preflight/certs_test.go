package preflight

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	p := a.make(t, "127.0.0.1", time.Now().Add(-time.Hour), time.Now().Add(1000*time.Hour))
	a.cert, a.key = p.Leaf, p.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) make(t *testing.T, ip string, from, to time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "x"}, NotBefore: from, NotAfter: to,
		IPAddresses: []net.IP{net.ParseIP(ip)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// serve answers TLS with a certificate; with clients it asks for one of theirs.
func serve(t *testing.T, c *tls.Certificate, clients *x509.CertPool, version uint16) string {
	t.Helper()
	cfg := &tls.Config{Certificates: []tls.Certificate{*c}, MinVersion: version, MaxVersion: version}
	if clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, clients
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				s := tls.Server(conn, cfg)
				if s.Handshake() == nil {
					_, _ = s.Read(make([]byte, 1)) // until the client goes
				}
				conn.Close()
			}()
		}
	}()
	return "https://" + l.Addr().String()
}

// What a port serves is seen though it would be refused, and judged: its time, whose it is, for what name.
//
// Rules: F12.
func TestLookServed(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	now := time.Now()
	day := 24 * time.Hour
	good := ca.make(t, "127.0.0.1", now.Add(-time.Minute), now.Add(90*day))
	client := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.pool, Certificates: []tls.Certificate{*ca.make(t, "127.0.0.1", now.Add(-time.Minute), now.Add(day))}}
	nobody := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.pool}
	for _, c := range []struct {
		what    string
		serves  *tls.Certificate
		cfg     *tls.Config
		asks    bool
		state   State
		invalid bool
		says    string
	}{
		{"right", good, client, true, OK, false, "valid for 89 days"},
		{"asks for a certificate that is not given", good, nobody, true, OK, false, "valid for"},
		{"short", ca.make(t, "127.0.0.1", now.Add(-time.Minute), now.Add(10*day)), client, false, Warning, false, "9 days left"},
		{"expired", ca.make(t, "127.0.0.1", now.Add(-2*day), now.Add(-time.Minute)), client, false, Refused, false, "expired on"},
		{"of tomorrow", ca.make(t, "127.0.0.1", now.Add(day), now.Add(90*day)), client, false, Refused, false, "not valid before"},
		{"a stranger's", stranger.make(t, "127.0.0.1", now.Add(-time.Minute), now.Add(90*day)), client, false, Refused, true, "unknown authority"},
		{"another name's", ca.make(t, "127.0.0.2", now.Add(-time.Minute), now.Add(90*day)), client, false, Refused, true, "127.0.0.2"},
	} {
		for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			var pool *x509.CertPool
			if c.asks {
				pool = ca.pool
			}
			url := serve(t, c.serves, pool, v)
			got := LookServed(t.Context(), c.cfg, url, now)
			if got.Err != nil || (got.Invalid != nil) != c.invalid || !got.NotAfter.Equal(c.serves.Leaf.NotAfter) || !got.NotBefore.Equal(c.serves.Leaf.NotBefore) {
				t.Errorf("%s, TLS %x: %+v", c.what, v, got)
			}
			f := fit()
			f.Now, f.Client = now, Certificates{TLS: true, Served: []Certificate{got}}
			if r := certificates(f, f.Client, "client"); r.State != c.state || !strings.Contains(r.Detail, c.says) {
				t.Errorf("%s, TLS %x: %+v", c.what, v, r)
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if got := LookServed(t.Context(), client, "https://"+l.Addr().String(), now); got.Err == nil {
		t.Errorf("nobody listens: %+v", got)
	}
}

// A port that does not take the client's certificate says so, with TLS 1.3 too, where the handshake is over by then.
//
// Rules: F12.
func TestLookPort(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	now := time.Now()
	good := ca.make(t, "127.0.0.1", now.Add(-time.Minute), now.Add(time.Hour))
	old := ca.make(t, "127.0.0.1", now.Add(-time.Hour), now.Add(-time.Minute))
	with := func(pool *x509.CertPool, c ...tls.Certificate) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: c}
	}
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		url := serve(t, good, ca.pool, v)
		for _, c := range []struct {
			what string
			cfg  *tls.Config
			says string
		}{
			{"right", with(ca.pool, *good), ""},
			{"expired", with(ca.pool, *old), "expired certificate"},
			{"none", with(ca.pool), "remote error: tls"},
			{"a stranger's port", with(stranger.pool, *good), "unknown authority"},
		} {
			err := LookPort(t.Context(), c.cfg, url)
			if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) || OfCertificates(err) != (err != nil) {
				t.Errorf("%s, TLS %x: %v", c.what, v, err)
			}
		}
		if err := LookPort(t.Context(), nil, strings.Replace(url, "https:", "http:", 1)); err != nil {
			t.Errorf("plain text: %v", err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := LookPort(t.Context(), nil, "https://"+l.Addr().String()); err == nil || OfCertificates(err) {
		t.Errorf("nobody listens: %v", err)
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // as an etcd that waits for a leader
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := LookPort(short, nil, "https://"+mute.Addr().String()); err == nil || OfCertificates(err) {
		t.Errorf("silent: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := LookPort(ctx, nil, "http://"+l.Addr().String()); err == nil {
		t.Error("the context has ended, and that is right")
	}
}

// The agent's own certificate, as it presents it.
//
// Rules: F12.
func TestLookOwn(t *testing.T) {
	c := newAuthority(t).make(t, "127.0.0.1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	boom := errors.New("boom")
	ask := func(c *tls.Certificate, err error) *tls.Config {
		return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, err }}
	}
	for what, cfg := range map[string]*tls.Config{"no TLS": nil, "none": {}} {
		if own := LookOwn(cfg, "f"); own != nil {
			t.Errorf("%s: %+v", what, own)
		}
	}
	for what, cfg := range map[string]*tls.Config{"asked": ask(c, nil), "fixed": {Certificates: []tls.Certificate{*c}}} {
		if own := LookOwn(cfg, "f"); own == nil || own.Err != nil || own.What != "f" || !own.NotAfter.Equal(c.Leaf.NotAfter) {
			t.Errorf("%s: %+v", what, own)
		}
	}
	if own := LookOwn(ask(nil, boom), "f"); own == nil || !errors.Is(own.Err, boom) {
		t.Errorf("%+v", own)
	}
	for what, cfg := range map[string]*tls.Config{"empty": ask(&tls.Certificate{}, nil), "garbage": ask(&tls.Certificate{Certificate: [][]byte{{1}}}, nil)} {
		if own := LookOwn(cfg, "f"); own == nil || own.Err == nil {
			t.Errorf("%s: %+v", what, own)
		}
	}
}
