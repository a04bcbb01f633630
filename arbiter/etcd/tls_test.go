package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
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

	clientv3 "go.etcd.io/etcd/client/v3"

	"twok/arbiter"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{}
	a.cert, a.key = a.sign(t, "authority", time.Hour)
	return a
}

func (a authority) sign(t *testing.T, name string, valid time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
	}
	parent, by := a.cert, a.key
	if a.cert == nil {
		c.IsCA, c.KeyUsage, parent, by = true, x509.KeyUsageCertSign, c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}

// files writes a signed certificate and its key, and the authority's certificate.
func (a authority) files(t *testing.T, name string, valid time.Duration) (cert, key, ca string) {
	t.Helper()
	c, k := a.sign(t, name, valid)
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(file, kind string, der []byte) string {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert", "CERTIFICATE", c.Raw), write("key", "EC PRIVATE KEY", der), write("ca", "CERTIFICATE", a.cert.Raw)
}

func (a authority) config(t *testing.T, client string, valid time.Duration) *tls.Config {
	t.Helper()
	cfg := &tls.Config{RootCAs: x509.NewCertPool()}
	cfg.RootCAs.AddCert(a.cert)
	if client != "" {
		c, k := a.sign(t, client, valid)
		cfg.Certificates = []tls.Certificate{{Certificate: [][]byte{c.Raw}, PrivateKey: k}}
	}
	return cfg
}

// TLS with client certificates whose common name is the user, and each way in
// which it goes wrong, with words that say what to do.
// Rules: P1; F11, F12.
func TestTLS(t *testing.T) {
	good, stranger := newAuthority(t), newAuthority(t)
	cert, key, ca := good.files(t, "server", time.Hour)
	c := startTLS(t, cert, key, ca)
	addr := c.members[0].client
	with := func(cfg *tls.Config) *Register {
		return open(t, Config{Endpoints: []string{addr}, Key: "pair/1", TLS: cfg})
	}
	r := with(good.config(t, "twok", time.Hour))
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
		t.Fatal(err)
	}
	_, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	both := func(what string, r *Register, class error, words ...string) {
		t.Helper()
		_, _, err := r.Read(t.Context())
		refused(t, what+", read", err, class, words...)
		refused(t, what+", swap", r.CompareAndSwap(t.Context(), v, []byte("y")), class, words...)
	}
	both("a user without the role", with(good.config(t, "stranger", time.Hour)), arbiter.ErrForbidden, "permission denied", "grant")
	both("a name that is no user", with(good.config(t, "nobody", time.Hour)), arbiter.ErrForbidden)
	// TLS 1.3 tells a client of its certificate's end after the handshake: the
	// connection may be found broken before the alert is read.
	alert := func(what string, r *Register) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; {
			_, _, err := r.Read(t.Context())
			err2 := r.CompareAndSwap(t.Context(), v, []byte("y"))
			if arbiter.Class(err) == arbiter.ErrForbidden && arbiter.Class(err2) == arbiter.ErrForbidden {
				refused(t, what+", read", err, arbiter.ErrForbidden, "client certificate")
				return
			}
			for _, err := range []error{err, err2} {
				if c := arbiter.Class(err); c != arbiter.ErrForbidden && c != arbiter.ErrUnavailable || time.Now().After(end) {
					t.Fatalf("%s: %v", what, err)
				}
			}
		}
	}
	alert("no client certificate", with(good.config(t, "", 0)))
	alert("an expired client certificate", with(good.config(t, "twok", -time.Hour)))
	alert("a stranger's client certificate", with(&tls.Config{RootCAs: good.config(t, "", 0).RootCAs, Certificates: stranger.config(t, "twok", time.Hour).Certificates}))
	both("another authority", with(stranger.config(t, "", 0)), arbiter.ErrMisconfigured, "CA file")
	var roots atomic.Pointer[x509.CertPool]
	late := good.config(t, "twok", time.Hour)
	trusted := late.RootCAs
	late.RootCAs = trusted.Clone() // TLS has its own, which do not count
	roots.Store(stranger.config(t, "", 0).RootCAs)
	asked := open(t, Config{Endpoints: []string{addr}, Key: "pair/1", TLS: late, Roots: roots.Load})
	both("authorities that are asked for", asked, arbiter.ErrMisconfigured, "CA file")
	roots.Store(trusted) // F12: a changed file
	if value, _, err := asked.Read(t.Context()); err != nil || string(value) != "x" {
		t.Errorf("with the authorities changed: %q, %v", value, err)
	}
	both("no TLS", open(t, Config{Endpoints: []string{addr}, Key: "k"}), arbiter.ErrUnavailable, "TLS")
	if value, now, err := r.Read(t.Context()); err != nil || string(value) != "x" || now != v {
		t.Errorf("at the end: %q %v", value, err)
	}

	old, oldKey, _ := good.files(t, "server", -time.Hour)
	pair, err := tls.LoadX509KeyPair(old, oldKey)
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewUnstartedServer(http.NotFoundHandler())
	hs.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	hs.EnableHTTP2 = true
	hs.Config.ErrorLog = log.New(io.Discard, "", 0)
	hs.StartTLS()
	defer hs.Close()
	addr = hs.Listener.Addr().String()
	both("an expired server certificate", with(good.config(t, "", 0)), arbiter.ErrMisconfigured, "renew")
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	addr = web.Listener.Addr().String()
	both("TLS to a server without", with(good.config(t, "", 0)), arbiter.ErrMisconfigured, "no TLS")
	both("a web server", with(nil), arbiter.ErrMisconfigured, "HTTP/1")
}

// startTLS starts an etcd that wants client certificates and has the users of enableAuth.
func startTLS(t *testing.T, cert, key, ca string) *cluster {
	t.Helper()
	c := startCluster(t, "3.7", 1)
	enableAuth(t, c)
	m := c.members[0]
	m.kill(t)
	for i, arg := range m.args {
		if arg == m.url() {
			m.args[i] = "https://" + m.client
		}
	}
	m.args = append(m.args, "--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth")
	m.start(t)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", m.client)
		if err == nil {
			conn.Close()
			return c
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// Logins: wrong ones, one that a restart of etcd made invalid, a password that
// is changed in the middle, a role that is taken away.
// Rules: P1; F11.
func TestLogin(t *testing.T) {
	c := startCluster(t, "3.7", 1)
	m := c.members[0]
	secret := "twok"
	cfg := Config{Endpoints: c.endpoints(), Key: "pair/1", Login: func() (string, string, error) {
		if secret == "" {
			return "", "", &fs.PathError{Op: "open", Path: "secret", Err: fs.ErrNotExist}
		}
		return "twok", secret, nil
	}}
	r := open(t, cfg)
	// etcd asks nobody yet: a login is not needed and does no harm.
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("1")); err != nil {
		t.Fatal(err)
	}
	enableAuth(t, c)
	swap := func(what string, r *Register) {
		t.Helper()
		value, v, err := r.Read(t.Context())
		if err == nil {
			err = r.CompareAndSwap(t.Context(), v, append(value, '1'))
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	swap("after etcd began to ask", r)
	both := func(what string, r *Register, class error, words ...string) {
		t.Helper()
		_, _, err := r.Read(t.Context())
		refused(t, what+", read", err, class, words...)
		refused(t, what+", swap", r.CompareAndSwap(t.Context(), arbiter.Absent, nil), class, words...)
	}
	without := cfg
	without.Login = nil
	both("no user", open(t, without), arbiter.ErrForbidden, "TWOK_ARBITER_USER")
	without.Login = loginAs("twok", "wrong")
	both("a wrong password", open(t, without), arbiter.ErrForbidden, "password")
	without.Login = loginAs("nobody", "nobody")
	both("no such user", open(t, without), arbiter.ErrForbidden, "password")

	m.kill(t)
	m.start(t)
	c.awaitPort(t, m)
	swap("after a restart, which forgets logins", r)

	root := clientAs(t, "root", "root", m.url())
	must[*clientv3.AuthUserChangePasswordResponse](t)(root.UserChangePassword(t.Context(), "twok", "new"))
	both("the password was changed", r, arbiter.ErrForbidden, "password")
	secret = "new"
	swap("with the new password", r)
	must[*clientv3.AuthUserRevokeRoleResponse](t)(root.UserRevokeRole(t.Context(), "twok", "arbiter"))
	both("the role was taken away", r, arbiter.ErrForbidden, "permission denied")
	must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(t.Context(), "twok", "arbiter"))
	swap("the role is back", r)

	secret = ""
	fresh := open(t, cfg)
	_, _, err := fresh.Read(t.Context())
	refused(t, "no password file", err, arbiter.ErrMisconfigured, "secret")
	if !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "new") {
		t.Errorf("%v", err)
	}
}

// awaitPort waits until a member that asks for users listens and has a leader.
func (c *cluster) awaitPort(t *testing.T, m *member) {
	t.Helper()
	r := open(t, Config{Endpoints: []string{m.client}, Key: "none"})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, _, err := r.Read(t.Context())
		if err == nil || arbiter.Class(err) == arbiter.ErrForbidden {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
