package etcdapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	"google.golang.org/grpc/credentials"
)

// WithRoots is cfg with the authorities as they are now; cfg itself if it is nil, or roots is.
func WithRoots(cfg *tls.Config, roots func() *x509.CertPool) *tls.Config {
	if cfg == nil || roots == nil {
		return cfg
	}
	c := cfg.Clone()
	c.RootCAs = roots()
	return c
}

// handshakes are the credentials of a client that lives long: each handshake asks for the authorities.
type handshakes struct {
	cfg   *tls.Config
	roots func() *x509.CertPool
	credentials.TransportCredentials
}

func (h handshakes) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(WithRoots(h.cfg, h.roots)).ClientHandshake(ctx, authority, raw)
}

func (h handshakes) Clone() credentials.TransportCredentials { return h }
