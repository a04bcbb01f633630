package lab

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS are the PEM files of a pair with certificates on all of etcd's ports, which
// ask for one in turn. All are read when they are needed, so that they can be
// replaced in a run.
type TLS struct {
	CA string // of all certificates
	// Cert and Key of both etcds, client and peer ports: for 127.0.0.1, server and
	// client authentication, no common name.
	Cert, Key string
	// AgentCert and AgentKey of the agents and of the laboratory's own clients
	// towards client ports. With auth the common name is the user.
	AgentCert, AgentKey string
}

func (t *TLS) scheme() string {
	if t == nil {
		return "http"
	}
	return "https"
}

// Client is the configuration of the laboratory's clients; nil for a nil TLS.
func (t *TLS) Client() (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.AgentCert, t.AgentKey)
	if err != nil {
		return nil, fmt.Errorf("the laboratory's certificate: %w", err)
	}
	ca, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("the laboratory's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("the laboratory's CA %s holds no certificate", t.CA)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: pool}, nil
}

func (t *TLS) etcdFlags() []string {
	if t == nil {
		return nil
	}
	return []string{
		"--cert-file", t.Cert, "--key-file", t.Key, "--trusted-ca-file", t.CA, "--client-cert-auth",
		"--peer-cert-file", t.Cert, "--peer-key-file", t.Key, "--peer-trusted-ca-file", t.CA, "--peer-client-cert-auth",
	}
}

func (t *TLS) agentFlags() []string {
	if t == nil {
		return nil
	}
	return []string{
		"--client-cert", t.AgentCert, "--client-key", t.AgentKey, "--client-ca", t.CA,
		"--peer-cert", t.Cert, "--peer-key", t.Key, "--peer-ca", t.CA,
	}
}
