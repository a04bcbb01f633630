package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"
)

// Whom the workload's clients log in as, with Options.Tokens. The user may read and write every key and nothing else.
const (
	clientUser     = "clients"
	clientPassword = "only of this pair"
)

// tokens are etcd's flags for a kind of tokens; JWT's keys are written into dir.
func tokens(dir, kind string) ([]string, error) {
	// A hash of a password takes 60 ms otherwise, at each of two members.
	cheap := []string{"--bcrypt-cost", "4"}
	switch kind {
	case "simple":
		return append(cheap, "--auth-token", "simple"), nil
	case "jwt":
	default:
		return nil, fmt.Errorf("no kind of tokens %q", kind)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, err
	}
	path := func(ext string) string { return filepath.Join(dir, "jwt."+ext) }
	for ext, block := range map[string]*pem.Block{"key": {Type: "EC PRIVATE KEY", Bytes: private}, "pub": {Type: "PUBLIC KEY", Bytes: public}} {
		if err := os.WriteFile(path(ext), pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	return append(cheap, "--auth-token", fmt.Sprintf("jwt,pub-key=%s,priv-key=%s,sign-method=ES256,ttl=1h", path("pub"), path("key"))), nil
}

// enableAuth turns authentication on.
func (c *Cluster) enableAuth(ctx context.Context) error {
	cl, err := c.Site("a").Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, err := cl.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true}); err != nil {
		return err
	}
	if _, err := cl.UserGrantRole(ctx, "root", "root"); err != nil { // etcd before 3.6 wants the role to be there
		if _, err := cl.RoleAdd(ctx, "root"); err != nil {
			return err
		}
		if _, err := cl.UserGrantRole(ctx, "root", "root"); err != nil {
			return err
		}
	}
	if c.Options.Tokens != "" {
		if _, err := cl.UserAdd(ctx, clientUser, clientPassword); err != nil {
			return err
		}
		if _, err := cl.RoleAdd(ctx, clientUser); err != nil {
			return err
		}
		// From the first key to the last one.
		if _, err := cl.RoleGrantPermission(ctx, clientUser, "\x00", "\x00", clientv3.PermissionType(clientv3.PermReadWrite)); err != nil {
			return err
		}
		if _, err := cl.UserGrantRole(ctx, clientUser, clientUser); err != nil {
			return err
		}
	}
	_, err = cl.AuthEnable(ctx)
	return err
}

// clientTLS are the certificates of the workload's clients.
func (c *Cluster) clientTLS() (*tls.Config, error) {
	if c.Options.Tokens == "" {
		return c.tls.Client()
	}
	nobody := *c.tls
	nobody.AgentCert, nobody.AgentKey = c.tls.Cert, c.tls.Key // it has no common name
	return nobody.Client()
}

// nobody is a client of a site with the workload's certificate and without a password.
func (c *Cluster) nobody(site string) (*clientv3.Client, error) {
	tc, err := c.clientTLS()
	if err != nil {
		return nil, err
	}
	// The library tries a refused token a hundred times.
	return clientv3.New(clientv3.Config{Endpoints: []string{c.Site(site).ClientURL}, TLS: tc, Logger: zap.NewNop(), MaxUnaryRetries: 2})
}

// LogIn is a token from the member of a site. That the same certificate gets in without one is an error.
func (c *Cluster) LogIn(ctx context.Context, site string) (token string, err error) {
	cl, err := c.nobody(site)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	if _, err := cl.Get(ctx, "u/"); !errors.Is(err, rpctypes.ErrPermissionDenied) { // the certificate's user has no name
		return "", fmt.Errorf("a read at %s without a token: %v, want %q", site, err, rpctypes.ErrPermissionDenied)
	}
	resp, err := cl.Authenticate(ctx, clientUser, clientPassword)
	if err != nil {
		return "", fmt.Errorf("log in at %s: %w", site, err)
	}
	return resp.Token, nil
}

// Takes asks the member of a site for a linearizable read with this very token.
func (c *Cluster) Takes(ctx context.Context, site, token string) error {
	cl, err := c.nobody(site)
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = cl.Get(metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token), "u/")
	if err != nil {
		return fmt.Errorf("a read at %s with a token: %w", site, err)
	}
	return nil
}
