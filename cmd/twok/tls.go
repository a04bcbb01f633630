package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"twok/internal/certfile"
)

// tlsConfig reads --KIND-cert, --KIND-key and --KIND-ca. The files are read again when they changed: the key pair at
// each handshake, the authorities (roots, nil without --KIND-ca) when a connection asks, so that a rotation needs no
// restart (F12). tell is certfile's.
func tlsConfig(c *cli.Context, kind string, tell func(error)) (cfg *tls.Config, roots func() *x509.CertPool, err error) {
	cert, key, ca := c.String(kind+"-cert"), c.String(kind+"-key"), c.String(kind+"-ca")
	if cert == "" && key == "" && ca == "" {
		if strings.HasPrefix(c.String(kind+"-url"), "https:") {
			return &tls.Config{MinVersion: tls.VersionTLS12}, nil, nil
		}
		return nil, nil, nil
	}
	if (cert == "") != (key == "") {
		return nil, nil, usageError("--%s-cert and --%s-key belong together", kind, kind)
	}
	cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	if cert != "" {
		pair, err := certfile.NewPair(cert, key, tell)
		if err != nil {
			return nil, nil, hint(fmt.Errorf("the %s certificate: %w", kind, err), "give a PEM certificate and its key")
		}
		cfg.GetClientCertificate = pair.ForClient
	}
	if ca != "" {
		a, err := certfile.NewAuthorities(ca, tell)
		switch {
		case errors.Is(err, certfile.ErrNoCertificate):
			return nil, nil, hint(fmt.Errorf("the %s CA: %w", kind, err), "give a PEM file")
		case err != nil:
			return nil, nil, fmt.Errorf("the %s CA: %w", kind, err)
		}
		roots, cfg.RootCAs = a.Pool, a.Pool()
	}
	return cfg, roots, nil
}
