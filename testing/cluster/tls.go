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

// certificates writes an authority and its leaves into dir: one for both etcds, at these addresses, and one for
// the agents and the clients, whose name is root.
func certificates(dir string, hosts []string) (*lab.TLS, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var ips []net.IP
	for _, h := range hosts {
		ips = append(ips, net.ParseIP(h))
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	ca, caKey, err := certificate(file("ca"), 1, &x509.Certificate{
		Subject: pkix.Name{CommonName: "twok test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return nil, err
	}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	_, _, err = certificate(file("etcd"), 2, &x509.Certificate{ // no common name: etcd's gateway is nobody
		Subject: pkix.Name{Organization: []string{"twok"}}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: both, IPAddresses: ips,
	}, ca, caKey)
	_, _, err2 := certificate(file("root"), 3, &x509.Certificate{
		Subject: pkix.Name{CommonName: "root"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: both,
	}, ca, caKey)
	return &lab.TLS{
		CA: file("ca.crt"), Cert: file("etcd.crt"), Key: file("etcd.key"), AgentCert: file("root.crt"), AgentKey: file("root.key"),
	}, errors.Join(err, err2)
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
		if err := os.WriteFile(path+ext, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, nil, err
		}
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}
