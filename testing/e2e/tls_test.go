package e2e

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/internal/lab"
)

// authority is a CA with its files.
type authority struct {
	*testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64

	pem   []byte        // the CA's certificate
	valid time.Duration // of what is made; zero: a day
}

func newAuthority(t *testing.T) *authority { t.Helper(); return namedAuthority(t, "twok test CA") }

func namedAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{T: t, dir: t.TempDir()}
	a.cert, a.key = a.make("ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
	var err error
	if a.pem, err = os.ReadFile(a.path("ca", ".crt")); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) path(name, ext string) string { return filepath.Join(a.dir, name+ext) }

// make writes NAME.crt and NAME.key, replacing what is there; valid for a day if c does not say for how long.
func (a *authority) make(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	a.n++
	c.SerialNumber = big.NewInt(a.n)
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(cmp.Or(a.valid, 24*time.Hour))
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		tmp := a.path(name, ext+".new")
		if err := os.WriteFile(tmp, pem.EncodeToMemory(block), 0o600); err != nil {
			a.Fatal(err)
		}
		if err := os.Rename(tmp, a.path(name, ext)); err != nil {
			a.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.Fatal(err)
	}
	return made, key
}

// leaves makes the certificates of the etcds and of the agents anew.
func (a *authority) leaves() {
	a.Helper()
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	a.make("etcd", &x509.Certificate{ // no common name: etcd's gateway is nobody
		Subject: pkix.Name{Organization: []string{"twok"}}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: both, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	a.make("root", &x509.Certificate{
		Subject: pkix.Name{CommonName: "root"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: both,
	})
}

func (a *authority) tls() *lab.TLS {
	return &lab.TLS{
		CA: a.path("ca", ".crt"), Cert: a.path("etcd", ".crt"), Key: a.path("etcd", ".key"),
		AgentCert: a.path("root", ".crt"), AgentKey: a.path("root", ".key"),
	}
}

// TestTLSAndAuth: certificates on all ports and auth by their common name. A failover, a
// return, and new leaf certificates, after which another failover works.
//
// Rules: P7, P12, P14; F12, F25.
func TestTLSAndAuth(t *testing.T) {
	t.Parallel()
	for _, minor := range lab.Minors {
		if !full && minor != "3.6" {
			continue
		}
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			ca := newAuthority(t)
			ca.leaves()
			p := start(t, minor, func(c *lab.Config) { c.TLS = ca.tls(); c.ClaimAfter = 1500 * time.Millisecond })
			enableAuth(p, ca)
			p.whole()
			p.failover(lab.CutLink)

			before := p.record()
			a, b := p.pids()
			ca.leaves()
			p.written("a write after the rotation")
			p.steady("the rotation changes nothing", 2*time.Second, func(context.Context) error {
				if a2, b2 := p.pids(); a2 != a || b2 != b {
					return fmt.Errorf("the etcds were %d and %d, are %d and %d", a, b, a2, b2)
				}
				return nil
			})
			if rec := p.whole(); rec.Generation != before.Generation {
				t.Errorf("generation %d became %d", before.Generation, rec.Generation)
			}
			p.failover(lab.CutKillLeader)
		})
	}
}

func enableAuth(p *pair, ca *authority) {
	p.Helper()
	cl := p.client("a")
	ctx := p.within()
	_, err := cl.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true})
	p.must(err)
	_, err = cl.UserGrantRole(ctx, "root", "root")
	if err != nil { // etcd before 3.6 wants the role to be there
		_, err = cl.RoleAdd(ctx, "root")
		p.must(err)
		_, err = cl.UserGrantRole(ctx, "root", "root")
	}
	p.must(err)
	_, err = cl.AuthEnable(ctx)
	p.must(err)

	// It bites: another name is refused, on the same ports.
	ca.make("nobody", &x509.Certificate{
		Subject: pkix.Name{CommonName: "nobody"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	files := ca.tls()
	files.AgentCert, files.AgentKey = ca.path("nobody", ".crt"), ca.path("nobody", ".key")
	cfg, err := files.Client()
	p.must(err)
	other, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Site("a").ClientURL}, TLS: cfg, Logger: zap.NewNop()})
	p.must(err)
	defer other.Close()
	p.until("auth refuses an unknown name", func(ctx context.Context) error {
		_, err := other.Put(ctx, "/nobody", "x")
		if errors.Is(err, rpctypes.ErrPermissionDenied) {
			return nil
		}
		return fmt.Errorf("the answer is %v", err)
	})
}
