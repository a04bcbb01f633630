package certfile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair makes a self-signed certificate with this serial number, and its key.
func pair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, Subject: pkix.Name{CommonName: big.NewInt(serial).String()}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kder})
}

func put(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func serial(t *testing.T, p *Pair) int64 {
	t.Helper()
	c, err := p.ForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.ForServer(nil)
	if err != nil || s != c {
		t.Fatalf("as a server %v, %v; as a client %v", s, err, c)
	}
	return c.Leaf.SerialNumber.Int64()
}

// A rotated pair is used from the next handshake on, in whichever way the files are replaced; a half-rotated
// one, and one that is away, leaves the last one in use and is told once.
//
// Rules: none (certificates); F12.
func TestPairFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert, key := pair(t, 1)
	put(t, certFile, cert)
	put(t, keyFile, key)
	var told []error
	p, err := NewPair(certFile, keyFile, func(err error) { told = append(told, err) })
	if err != nil || serial(t, p) != 1 {
		t.Fatal(err)
	}
	cert, key = pair(t, 2)
	put(t, certFile, cert) // in place, half
	for range 2 {
		if got := serial(t, p); got != 1 || len(told) != 1 {
			t.Errorf("half rotated: %d, told %v", got, told)
		}
	}
	put(t, keyFile, key)
	if serial(t, p) != 2 || len(told) != 1 {
		t.Errorf("rotated in place: %d, told %v", serial(t, p), told)
	}
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	if serial(t, p) != 2 || len(told) != 2 || !errors.Is(told[1], os.ErrNotExist) {
		t.Errorf("without the key: %d, told %v", serial(t, p), told)
	}

	// As a kubelet does it: names that lead through one symlink, which is renamed over.
	for i, s := range []int64{3, 4} {
		gen := filepath.Join(dir, "gen"+string(rune('0'+i)))
		if err := os.Mkdir(gen, 0o700); err != nil {
			t.Fatal(err)
		}
		cert, key := pair(t, s)
		put(t, filepath.Join(gen, "c"), cert)
		put(t, filepath.Join(gen, "k"), key)
		if err := errors.Join(os.Symlink(gen, filepath.Join(dir, "new")), os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data"))); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if p, err = NewPair(filepath.Join(dir, "data", "c"), filepath.Join(dir, "data", "k"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := serial(t, p); got != s {
			t.Errorf("through the symlink: %d, want %d", got, s)
		}
	}
}

// The first reading has to succeed, and files that did not change are not read again.
//
// Rules: none (certificates).
func TestPairFirstReading(t *testing.T) {
	dir := t.TempDir()
	cert, _ := pair(t, 1)
	_, key := pair(t, 2)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	put(t, a, cert)
	put(t, b, key)
	if _, err := NewPair(a, b, nil); err == nil {
		t.Error("a key of another certificate is taken")
	}
	if _, err := NewPair(a, filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no key: %v", err)
	}
	reads := 0
	f := files[int]{names: []string{a}, load: func() (int, error) { reads++; return reads, nil }}
	if err := f.first(); err != nil || f.now() != 1 || f.now() != 1 {
		t.Errorf("%v; %d readings of one file", err, reads)
	}
}

// A bundle that grew is used for the next connection; one that cannot be used leaves the last one.
//
// Rules: none (certificates); F12.
func TestAuthoritiesFollowTheirFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	one, _ := pair(t, 1)
	two, _ := pair(t, 2)
	put(t, file, one)
	var told []error
	a, err := NewAuthorities(file, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	trusts := func(b []byte) bool {
		block, _ := pem.Decode(b)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Verify(x509.VerifyOptions{Roots: a.Pool()})
		return err == nil
	}
	for _, step := range []struct {
		what     string
		file     []byte
		one, two bool
	}{
		{"the old one", one, true, false},
		{"both", append(append([]byte{}, one...), two...), true, true},
		{"neither", []byte("x"), true, true},
		{"the new one", two, false, true},
	} {
		put(t, file, step.file)
		if trusts(one) != step.one || trusts(two) != step.two {
			t.Errorf("%s: trusts %t and %t", step.what, trusts(one), trusts(two))
		}
	}
	// In place, of the same size and with the same mtime: the ctime tells.
	if pad := len(two) - len(one); pad > 0 {
		one = append(one, make([]byte, pad)...)
	} else {
		put(t, file, append(append([]byte{}, two...), make([]byte, -pad)...))
		if !trusts(two) {
			t.Error("padded")
		}
	}
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	put(t, file, one)
	if err := os.Chtimes(file, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	if !trusts(one) || trusts(two) {
		t.Error("a change with the old size and mtime was not noticed")
	}
	if len(told) != 1 || !errors.Is(told[0], ErrNoCertificate) {
		t.Errorf("told %v", told)
	}
	put(t, file, []byte("x"))
	if _, err := NewAuthorities(file, nil); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("no certificate at the beginning: %v", err)
	}
}
