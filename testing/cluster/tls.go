package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"twok/internal/lab"
)

// Rotate replaces every certificate but the authority's.
func (c *Cluster) Rotate() error { return leaves(c.pki) }

// pki is an authority, its directory and the addresses of the etcds.
type pki struct {
	dir    string
	ips    []net.IP
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// certificates writes an authority and its leaves into dir: one for both etcds, at these addresses, and one for
// the agents and the clients, whose name is root.
func certificates(dir string, hosts []string) (*pki, *lab.TLS, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	p := &pki{dir: dir, serial: 1}
	for _, h := range hosts {
		p.ips = append(p.ips, net.ParseIP(h))
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	var err error
	p.ca, p.key, err = certificate(file("ca"), 1, &x509.Certificate{
		Subject: pkix.Name{CommonName: "twok test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	return p, &lab.TLS{
		CA: file("ca.crt"), Cert: file("etcd.crt"), Key: file("etcd.key"), AgentCert: file("root.crt"), AgentKey: file("root.key"),
	}, leaves(p)
}

func leaves(p *pki) error {
	if p == nil {
		return errors.New("the pair has no certificates")
	}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	p.serial += 2
	_, _, err := certificate(filepath.Join(p.dir, "etcd"), p.serial, &x509.Certificate{ // no common name: etcd's gateway is nobody
		Subject: pkix.Name{Organization: []string{"twok"}}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: both, IPAddresses: p.ips,
	}, p.ca, p.key)
	_, _, err2 := certificate(filepath.Join(p.dir, "root"), p.serial+1, &x509.Certificate{
		Subject: pkix.Name{CommonName: "root"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: both,
	}, p.ca, p.key)
	return errors.Join(err, err2)
}

func certificate(path string, serial int64, c, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	c.SerialNumber = big.NewInt(serial)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(7*24*time.Hour)
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		tmp := path + ext + ".new"
		if err := os.WriteFile(tmp, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, nil, err
		}
		if err := os.Rename(tmp, path+ext); err != nil {
			return nil, nil, err
		}
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}
