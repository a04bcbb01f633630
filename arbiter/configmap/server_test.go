package configmap

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"twok/arbiter/arbitertest"
)

// kubernetes is set by make test-kubernetes: the apiserver takes long to build.
const kubernetes = "TWOK_KUBERNETES"

const (
	namespace  = "twok"
	adminToken = "admin-of-the-tests"
	issuer     = "https://kubernetes.invalid"
)

var binaries = sync.OnceValues(func() (bins [2]string, err error) {
	etcd, err := arbitertest.Tool("etcd", "3.7")
	if err != nil {
		return bins, err
	}
	apiserver, err := arbitertest.Tool("kube-apiserver")
	if err != nil {
		return bins, err
	}
	return [2]string{etcd[0], apiserver[0]}, nil
})

// TestMain takes the kubeconfig of the machine out of the tests.
func TestMain(m *testing.M) {
	os.Setenv("KUBECONFIG", os.DevNull)
	os.Unsetenv("KUBERNETES_SERVICE_HOST")
	status := m.Run()
	shared.stop()
	os.Exit(status)
}

// process is one server, which ends by its PID.
type process struct {
	cmd *exec.Cmd
	log string
}

func (p *process) start(t *testing.T, log string, argv ...string) {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p.log, p.cmd = log, exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (p *process) kill() {
	if p.cmd != nil && p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// cluster is a real kube-apiserver on a real etcd, with RBAC.
type cluster struct {
	dir             string
	etcd, apiserver process
	etcdURL, addr   string
	prefix          string
	argv            []string
	cert            tls.Certificate
	caPEM           []byte
	roots           *x509.CertPool
	saKey           *rsa.PrivateKey
}

// shared is started once, by the first test that needs it.
var shared cluster

func (c *cluster) stop() {
	c.apiserver.kill()
	c.etcd.kill()
	if c.dir != "" {
		os.RemoveAll(c.dir)
	}
}

// kube returns the shared cluster, and skips the test where it is not asked for.
func kube(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv(kubernetes) == "" {
		t.Skip("needs a real apiserver: make test-kubernetes")
	}
	if shared.dir == "" {
		dir, err := os.MkdirTemp("", "twok-configmap-")
		if err != nil {
			t.Fatal(err)
		}
		shared.dir = dir
		shared.up(t, "/registry")
	}
	if shared.addr == "" {
		t.Fatal("the apiserver did not start in an earlier test")
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(shared.apiserver.log); err == nil && t.Failed() {
			t.Logf("the apiserver says:\n%s", text[max(0, len(text)-2000):])
		}
	})
	return &shared
}

// up starts etcd, unless it runs, and an apiserver on it.
func (c *cluster) up(t *testing.T, prefix string) {
	t.Helper()
	bins, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	if c.etcdURL == "" {
		client, peer := arbitertest.FreePort(), arbitertest.FreePort()
		c.etcd.start(t, filepath.Join(c.dir, "etcd.log"), bins[0], "--data-dir", filepath.Join(c.dir, "etcd"),
			"--listen-client-urls", "http://"+client, "--advertise-client-urls", "http://"+client,
			"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
			"--initial-cluster", "default=http://"+peer, "--log-level", "error")
		c.etcdURL = "http://" + client
	}
	c.certificates(t)
	tokens := filepath.Join(c.dir, "tokens.csv")
	write(t, tokens, adminToken+",admin,1,system:masters\n")
	c.prefix = prefix
	addr := arbitertest.FreePort()
	host, port, _ := strings.Cut(addr, ":")
	c.argv = []string{bins[1],
		"--etcd-servers", c.etcdURL, "--etcd-prefix", prefix,
		"--bind-address", host, "--secure-port", port, "--advertise-address", host, "--endpoint-reconciler-type", "none",
		"--tls-cert-file", filepath.Join(c.dir, "server.pem"), "--tls-private-key-file", filepath.Join(c.dir, "server.key"),
		"--cert-dir", c.dir, "--authorization-mode", "Node,RBAC", "--token-auth-file", tokens, "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", issuer, "--service-account-key-file", filepath.Join(c.dir, "sa.pub"),
		"--service-account-signing-key-file", filepath.Join(c.dir, "sa.key"),
	}
	c.apiserver.start(t, filepath.Join(c.dir, "apiserver.log"), c.argv...)
	c.addr = c.ready(t, addr)
}

// again starts the apiserver after it was killed.
func (c *cluster) again(t *testing.T) {
	t.Helper()
	c.apiserver.start(t, c.apiserver.log, c.argv...)
	c.ready(t, c.addr)
}

func (c *cluster) ready(t *testing.T, addr string) string {
	t.Helper()
	begin := time.Now()
	for {
		code, body, err := c.try(addr, adminToken, "GET", "/readyz", "", "")
		if err == nil && code == 200 {
			t.Logf("the apiserver was ready after %.0f s", time.Since(begin).Seconds())
			return addr
		}
		if time.Since(begin) > 3*time.Minute {
			text, _ := os.ReadFile(c.apiserver.log)
			t.Fatalf("the apiserver is not ready: %d %s %v; it says:\n%s", code, body, err, text[max(0, len(text)-4000):])
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	// By rename, as whoever renews a token does.
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// certificates are a server's that signs itself, and the key pair of service accounts.
func (c *cluster) certificates(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err == nil {
		c.saKey, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "twok test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.roots = x509.NewCertPool()
	c.roots.AppendCertsFromPEM(c.caPEM)
	c.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	private := func(name string, key any) {
		b, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(c.dir, name), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b})))
	}
	private("server.key", key)
	private("sa.key", c.saKey)
	public, err := x509.MarshalPKIXPublicKey(&c.saKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(c.dir, "sa.pub"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	write(t, filepath.Join(c.dir, "server.pem"), string(c.caPEM))
}

// try makes a request as an administrator's tool does.
func (c *cluster) try(addr, token, method, path, contentType, body string) (code int, answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "https://"+addr+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: c.roots}}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// admin is a request of the administrator that must succeed.
func (c *cluster) admin(method, path, contentType, body string) (string, error) {
	code, answer, err := c.try(c.addr, adminToken, method, path, contentType, body)
	if err == nil && code/100 != 2 {
		err = fmt.Errorf("%d %s", code, answer)
	}
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", method, path, err)
	}
	return answer, nil
}

func (c *cluster) must(t *testing.T, method, path, contentType, body string) string {
	t.Helper()
	answer, err := c.admin(method, path, contentType, body)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

const yaml = "application/yaml"

func configMapPath(name string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps/" + name
}

// apply posts the documents of a manifest, as kubectl create does.
func (c *cluster) apply(t *testing.T, manifest string) {
	t.Helper()
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		kind := ""
		for line := range strings.Lines(doc) {
			if k, ok := strings.CutPrefix(line, "kind: "); ok {
				kind = strings.TrimSpace(k)
			}
		}
		api := map[string]string{
			"ConfigMap": "/api/v1", "ServiceAccount": "/api/v1",
			"Role": "/apis/rbac.authorization.k8s.io/v1", "RoleBinding": "/apis/rbac.authorization.k8s.io/v1",
		}[kind]
		c.must(t, "POST", api+"/namespaces/"+namespace+"/"+strings.ToLower(kind)+"s", yaml, doc)
	}
}

// token asks for one of the service account pair.
func (c *cluster) token(t *testing.T) string {
	t.Helper()
	answer := c.must(t, "POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts/pair/token", "application/json",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}}`)
	var out struct {
		Status struct{ Token string }
	}
	if err := json.Unmarshal([]byte(answer), &out); err != nil || out.Status.Token == "" {
		t.Fatalf("no token: %v", err)
	}
	return out.Status.Token
}

// expired is a token that the apiserver's own key has signed, and whose time is over.
func (c *cluster) expired(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&claims); err != nil {
		t.Fatal(err)
	}
	claims["exp"], claims["nbf"], claims["iat"] = time.Now().Add(-time.Minute).Unix(), time.Now().Add(-time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	raw, err = json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(raw)
	sum := sha256.Sum256([]byte(signed))
	sig, err := rsa.SignPKCS1v15(rand.Reader, c.saKey, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(sig)
}

// The shipped manifests.
const (
	wide  = "configmap-role.yaml"       // every ConfigMap of the namespace
	named = "configmap-role-named.yaml" // some by name, which it makes, and no create
)

// tenant is the namespace with what a shipped manifest makes. KUBECONFIG is
// for its service account, with the token in a file.
func (c *cluster) tenant(t *testing.T, file string) (tokenFile string) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join("..", "..", "deploy", "arbiters", file))
	if err != nil {
		t.Fatal(err)
	}
	c.must(t, "POST", "/api/v1/namespaces", yaml, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: "+namespace+"\n")
	t.Cleanup(func() { c.clean(t) })
	c.apply(t, string(manifest))
	tokenFile = filepath.Join(t.TempDir(), "token")
	write(t, tokenFile, c.token(t))
	t.Setenv("KUBECONFIG", c.kubeconfig(t, c.addr, "tokenFile: "+tokenFile))
	return tokenFile
}

// clean takes the namespace away: no controller runs that would.
func (c *cluster) clean(t *testing.T) {
	for _, kind := range []string{"/api/v1/namespaces/%s/configmaps", "/api/v1/namespaces/%s/serviceaccounts",
		"/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings", "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles"} {
		if _, err := c.admin("DELETE", fmt.Sprintf(kind, namespace), "", ""); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.admin("DELETE", "/api/v1/namespaces/"+namespace, "", ""); err != nil {
		t.Error(err)
	}
	if _, err := c.admin("PUT", "/api/v1/namespaces/"+namespace+"/finalize", "application/json",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"},"spec":{"finalizers":[]}}`); err != nil {
		t.Error(err)
	}
}

// kubeconfig writes one for addr with this user.
func (c *cluster) kubeconfig(t *testing.T, addr, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, kubeconfig("https://"+addr, "certificate-authority-data: "+base64.StdEncoding.EncodeToString(c.caPEM), user))
	return path
}

// kubeconfig has one context.
func kubeconfig(server, cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters:
- name: c
  cluster:
    server: %s
    %s
users:
- name: u
  user:
    %s
`, server, cluster, user)
}

func open(t *testing.T, cfg Config) *Register {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
