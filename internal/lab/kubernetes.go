package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"twok/internal/freeport"
)

// Kubernetes is a real kube-apiserver on loopback, with RBAC and the namespace "twok":
// an arbiter store, or with the pair's etcd behind it a mistake.
type Kubernetes struct {
	// URL of the record "pair", for --arbiter.
	URL string
	// Env is what a process needs besides: KUBECONFIG, for an administrator.
	Env []string
	// TokenFile is read by whoever uses that kubeconfig, Token what it holds at first.
	TokenFile, Token string
	// Log is the apiserver's log file.
	Log string

	store *Store // nil: the etcd is somebody else's
	argv  []string
	base  string
	roots *x509.CertPool
	procs *procs
	proc  *proc
}

// StartKubernetes starts an apiserver with its files in dir, which is created if
// needed, on the etcd with this client URL, or on one of its own if it is empty. Tools that are
// missing are built, which log tells: the apiserver takes ten minutes and more.
func StartKubernetes(ctx context.Context, dir, etcd string, log io.Writer) (k *Kubernetes, err error) {
	fail := func(err error) (*Kubernetes, error) {
		return nil, fmt.Errorf("start a kube-apiserver in %s: %w", dir, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	bin, err := KubeAPIServer(ctx, log)
	if err != nil {
		return fail(err)
	}
	ports, err := freeport.Ports(1)
	if err != nil {
		return fail(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	k = &Kubernetes{
		URL: "configmap://twok/pair", Env: []string{"KUBECONFIG=" + in("kubeconfig")}, TokenFile: in("token"), Token: "admin-of-the-lab",
		Log: in("apiserver.log"), base: fmt.Sprintf("https://127.0.0.1:%d", ports[0]),
	}
	if k.roots, err = selfSigned(in("server.pem"), in("server.key")); err != nil {
		return fail(err)
	}
	for name, text := range map[string]string{
		"token": k.Token, "tokens.csv": k.Token + ",admin,1,system:masters\n",
		"kubeconfig": fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: admin}}]
clusters: [{name: lab, cluster: {server: "%s", certificate-authority: %q}}]
users: [{name: admin, user: {tokenFile: %q}}]
`, k.base, in("server.pem"), k.TokenFile),
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			return fail(err)
		}
	}
	if etcd == "" {
		if k.store, err = StartStore(ctx, "etcd", in("etcd"), log); err != nil {
			return fail(err)
		}
		etcd = "http://" + k.store.addr
	}
	// The key of service accounts is the server's: nobody uses one here.
	k.argv = []string{
		bin, "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(ports[0]), "--advertise-address", "127.0.0.1",
		"--endpoint-reconciler-type", "none", "--tls-cert-file", in("server.pem"), "--tls-private-key-file", in("server.key"), "--cert-dir", dir,
		"--authorization-mode", "Node,RBAC", "--token-auth-file", in("tokens.csv"), "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://kubernetes.invalid", "--service-account-key-file", in("server.pem"), "--service-account-signing-key-file", in("server.key"),
	}
	if k.procs, err = newProcs(nil); err == nil {
		err = k.Start(ctx)
	}
	if err != nil {
		_, err = fail(err)
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Start starts the apiserver after Kill, waits until it serves, and sees to the namespace.
func (k *Kubernetes) Start(ctx context.Context) error {
	var err error
	if k.proc, err = k.procs.start("kube-apiserver", k.Log, nil, k.argv...); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: k.roots}}}
	ask := func(method, path, body string) (int, error) {
		req, err := http.NewRequestWithContext(ctx, method, k.base+path, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+k.Token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	for {
		code, err := ask(http.MethodGet, "/readyz", "")
		if err == nil && code == http.StatusOK {
			break
		}
		select {
		case <-k.proc.done:
			return fmt.Errorf("the apiserver ended at once; see %s", k.Log)
		case <-ctx.Done():
			return fmt.Errorf("wait for the apiserver: %w; see %s", ctx.Err(), k.Log)
		case <-time.After(100 * time.Millisecond):
		}
	}
	code, err := ask(http.MethodPost, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"twok"}}`)
	if err == nil && code != http.StatusCreated && code != http.StatusConflict {
		err = fmt.Errorf("the apiserver answered %d", code)
	}
	if err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	return nil
}

// Addr is the apiserver's host and port.
func (k *Kubernetes) Addr() string { return strings.TrimPrefix(k.base, "https://") }

// Kill ends the apiserver by SIGKILL; its etcd goes on.
func (k *Kubernetes) Kill() error { return k.procs.kill("kube-apiserver") }

// Close ends the apiserver and its own etcd. The data stay.
func (k *Kubernetes) Close() (err error) {
	if k.procs != nil {
		err = k.procs.close()
	}
	if k.store != nil {
		err = errors.Join(err, k.store.Close())
	}
	return err
}

// selfSigned writes a server's certificate for 127.0.0.1, which is its own authority.
func selfSigned(certFile, keyFile string) (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "twok lab"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool, errors.Join(os.WriteFile(certFile, cert, 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}
