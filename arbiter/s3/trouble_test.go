package s3

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// Rules: P1; F29.
func TestCutAtEveryByte(t *testing.T) {
	g := startGateway(t)
	f := g.fixture(g.makeBucket(t), "pair")
	seen, err := arbitertest.Sweep(f, 17)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%v", seen)
}

// A server killed under a storm of writers loses no acknowledged swap, and
// applies nothing that was refused.
// Rules: P1.
func TestKillUnderStorm(t *testing.T) {
	g := startGateway(t)
	g.makeBucket(t)
	var clients []arbiter.Register
	for range 6 {
		clients = append(clients, open(t, g.config(g.addr, "pair")))
	}
	check := open(t, g.config(g.addr, "pair"))
	var storm arbitertest.Storm
	for round := range 4 {
		killed := false
		err := storm.Run(t.Context(), clients, func(n int) bool {
			if n >= 40 && !killed {
				killed = true
				if err := g.cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				g.cmd.Wait()
			}
			return killed
		})
		if err != nil || !killed {
			t.Fatalf("round %d: %v, killed %v", round, err, killed)
		}
		g.start(t)
		value, _, err := check.Read(t.Context())
		if err == nil {
			err = storm.Check(value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged swaps, %d unknown, 4 kills", storm.Acked(), storm.Doubt())
}

// A secret that the chain renews is used at the next call, also under the same key ID.
//
// Rules: P1; F11.
func TestSecretIsRenewed(t *testing.T) {
	g := startGateway(t)
	g.makeBucket(t)
	now := g.secret
	cfg := g.config(g.addr, "pair")
	cfg.credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: g.key, SecretAccessKey: now, CanExpire: true, Expires: time.Now()}, nil
	})
	r := open(t, cfg)
	for i, c := range []struct {
		secret string
		want   error
	}{{g.secret, nil}, {"revoked", arbiter.ErrForbidden}, {g.secret, nil}, {"revoked", arbiter.ErrForbidden}} {
		now = c.secret
		_, v, err := r.Read(t.Context())
		if arbiter.Class(err) != c.want {
			t.Errorf("read %d: %v", i, err)
		}
		if err := r.CompareAndSwap(t.Context(), v, []byte("x")); arbiter.Class(err) != c.want {
			t.Errorf("swap %d: %v", i, err)
		}
	}
}

// What an administrator gets wrong, on a real server, and what the words say.
// Rules: P1; F11.
func TestConfiguredWrong(t *testing.T) {
	g := startGateway(t)
	g.makeBucket(t)
	ok := g.config(g.addr, "pair")
	r := open(t, ok)
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
		t.Fatal(err)
	}
	_, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*Config)
		class  error
		words  []string
	}{
		{"no such bucket", func(c *Config) { c.Bucket = "none" }, arbiter.ErrMisconfigured, []string{"NoSuchBucket", "create the bucket"}},
		{"wrong region", func(c *Config) { c.Region = "eu-central-1" }, arbiter.ErrMisconfigured, []string{"AuthorizationHeaderMalformed", "us-east-1", "region"}},
		{"wrong key", func(c *Config) { c.credentials = keys("nobody", g.secret) }, arbiter.ErrForbidden, []string{"XAdminUserNotFound", "access key"}},
		{"wrong secret", func(c *Config) { c.credentials = keys(g.key, "wrong") }, arbiter.ErrForbidden, []string{"SignatureDoesNotMatch", "secret"}},
	} {
		cfg := ok
		c.change(&cfg)
		bad := open(t, cfg)
		_, _, rerr := bad.Read(t.Context())
		for what, err := range map[string]error{
			"read": rerr, "swap": bad.CompareAndSwap(t.Context(), v, []byte("y")), "create": bad.CompareAndSwap(t.Context(), arbiter.Absent, []byte("y")),
		} {
			if arbiter.Class(err) != c.class {
				t.Errorf("%s, %s: %v, want %v", c.name, what, err, c.class)
				continue
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s, %s: %v does not say %q", c.name, what, err, w)
				}
			}
		}
	}
	if value, now, err := r.Read(t.Context()); err != nil || string(value) != "x" || now != v {
		t.Errorf("at the end: %q %v", value, err)
	}
	// A clock that is wrong by an hour.
	o := r.client.Options()
	o.HTTPSignerV4, o.AuthSchemes = late{o.HTTPSignerV4}, nil
	skewed := *r
	skewed.client = awss3.New(o)
	_, _, err = skewed.Read(t.Context())
	for what, err := range map[string]error{"read": err, "swap": skewed.CompareAndSwap(t.Context(), v, []byte("y"))} {
		if arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "RequestTimeTooSkewed") || !strings.Contains(err.Error(), "clock") {
			t.Errorf("a wrong clock, %s: %v", what, err)
		}
	}
}

// late signs as a machine does whose clock is an hour behind.
type late struct{ awss3.HTTPSignerV4 }

func (l late) SignHTTP(ctx context.Context, c aws.Credentials, r *http.Request, hash, service, region string, at time.Time, opts ...func(*v4.SignerOptions)) error {
	return l.HTTPSignerV4.SignHTTP(ctx, c, r, hash, service, region, at.Add(-time.Hour), opts...)
}

// Over TLS the SDK would frame the body and append a checksum; the stored bytes
// are the record's. The authority comes from AWS_CA_BUNDLE.
// Rules: P1; F28.
func TestTLS(t *testing.T) {
	cert, key := selfSigned(t, time.Hour)
	t.Setenv("AWS_CA_BUNDLE", cert)
	g := startGateway(t, "--cert", cert, "--key", key)
	r := open(t, g.config(g.addr, "pair"))
	o := r.client.Options()
	chain, err := config.LoadDefaultConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.HTTPClient = chain.HTTPClient
	admin := awss3.New(o)
	if _, err := admin.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
	prev := arbiter.Absent
	for _, value := range []string{"{}", "0\r\n\r\n", strings.Repeat("x", 5000), ""} {
		if err := r.CompareAndSwap(t.Context(), prev, []byte(value)); err != nil {
			t.Fatal(err)
		}
		got, v, err := r.Read(t.Context())
		if err != nil || string(got) != value {
			t.Fatalf("%d bytes, %.40q, %v; want %.40q", len(got), got, err, value)
		}
		prev = v
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("y")); arbiter.Class(err) != arbiter.ErrConflict {
		t.Errorf("create over a value: %v", err)
	}
	// Another authority; and an expired certificate.
	other, _ := selfSigned(t, time.Hour)
	t.Setenv("AWS_CA_BUNDLE", other)
	if _, _, err := open(t, g.config(g.addr, "pair")).Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "AWS_CA_BUNDLE") {
		t.Errorf("another authority: %v", err)
	}
	old, oldKey := selfSigned(t, -time.Hour)
	t.Setenv("AWS_CA_BUNDLE", old)
	expired := startGateway(t, "--cert", old, "--key", oldKey)
	if _, _, err := open(t, expired.config(expired.addr, "pair")).Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired certificate: %v", err)
	}
}

// A hundred pairs share one bucket and do not notice each other.
// Rules: none (costs).
func TestHundredPairs(t *testing.T) {
	g := startGateway(t)
	g.makeBucket(t)
	var wg sync.WaitGroup
	for i := range 100 {
		r := open(t, g.config(g.addr, fmt.Sprintf("pair/%d", i)))
		wg.Go(func() {
			prev := arbiter.Absent
			for n := range 5 {
				want := fmt.Sprintf("pair %d, %d", i, n)
				if err := r.CompareAndSwap(t.Context(), prev, []byte(want)); err != nil {
					t.Errorf("pair %d: %v", i, err)
					return
				}
				value, v, err := r.Read(t.Context())
				if err != nil || string(value) != want {
					t.Errorf("pair %d: %q %v", i, value, err)
					return
				}
				prev = v
			}
		})
	}
	wg.Wait()
}

// selfSigned writes a certificate for 127.0.0.1 that is its own authority.
func selfSigned(t *testing.T, valid time.Duration) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "store"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
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
	return write("cert", "CERTIFICATE", der), write("key", "EC PRIVATE KEY", kder)
}
