package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/arbiter/configmap"
	etcdstore "twok/arbiter/etcd"
	"twok/arbiter/httpcas"
	"twok/arbiter/s3"
	"twok/internal/lab"
)

// backing is a real store that asks for credentials, with a bad link in front of it. What
// the agents use expires and is renewed in files, as it is in the field.
type backing struct {
	kind string
	dir  string           // its data and log
	reg  arbiter.Register // of the test, past the link
	link *badLink
	// kill and start are the store's process.
	kill  func() error
	start func(context.Context) error
	// After expire the store refuses the agents, after renew it no longer does; nobody is started again.
	expire, renew func() error

	url string   // through the link
	env []string // of the agents
	k   *lab.Kubernetes
	// token is a file with that of the agents at it; with pod they are pods of that cluster instead.
	token string
	pod   *pod
	// admin is the etcd's administrator.
	admin *clientv3.Client
}

// backingKinds are those that need no long build.
var backingKinds = []string{"http", "s3", "etcd"}

// back starts a store of that kind.
func back(t *testing.T, kind string) *backing {
	t.Helper()
	dir, err := os.MkdirTemp("", "twok-e2e-store-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the store's data and log are kept in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b := &backing{kind: kind, dir: dir}
	map[string]func(*testing.T, string){"http": b.http, "s3": b.s3, "etcd": b.etcd, "configmap": b.configmap}[kind](t, dir)
	return b
}

// under is a pair on it, not started yet. The agents reach the store through the network too.
func (b *backing) under(t *testing.T, minor string, opts ...func(*lab.Config)) *pair {
	t.Helper()
	p := prepare(t, minor, append([]func(*lab.Config){func(c *lab.Config) {
		c.Arbiter, c.Register, c.CutArbiter, c.AgentEnv = b.url, b.reg, b.k == nil, b.env
		if b.pod != nil {
			c.Twok = b.pod.twok
		}
	}}, opts...)...)
	if b.k != nil { // its URL names no address: each site has a kubeconfig of its own, or a pod's environment
		for _, site := range lab.Sites {
			k, err := p.Network.Link(site, lab.ArbiterSite, b.link.l.Addr().String())
			p.must(err)
			env := b.pod.env(k.Addr())
			if b.pod == nil {
				env, err = b.k.Via(filepath.Join(p.Site(site).Dir, "kubeconfig"), b.token, func(string) (string, error) { return k.Addr(), nil })
				p.must(err)
			}
			p.Site(site).AgentEnv(env...)
		}
	}
	return p
}

// server is a store's process, killed with the test.
type server struct {
	argv  []string
	log   string
	ready func() error
	cmd   *exec.Cmd
}

func (s *server) kill() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
	return err
}

func (s *server) start(ctx context.Context) error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	for {
		err := s.ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w; see %s", s.argv[0], err, s.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// serve starts a server.
func (b *backing) serve(t *testing.T, s *server) {
	t.Helper()
	b.kill, b.start = s.kill, s.start
	t.Cleanup(func() {
		if err := s.kill(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.start(ctx); err != nil {
		t.Fatal(err)
	}
}

// file writes one with a secret and returns its path.
// withEnv calls f with these in the environment. t.Setenv would keep the test from running beside others; what
// they start meanwhile has the like of them set, or asks for none.
func withEnv(env []string, f func() error) error {
	environ.Lock()
	defer environ.Unlock()
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		old, was := os.LookupEnv(name)
		if err := os.Setenv(name, value); err != nil {
			return err
		}
		defer func() {
			if was {
				os.Setenv(name, old)
			} else {
				os.Unsetenv(name)
			}
		}()
	}
	return f()
}

var environ sync.Mutex

func file(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := replace(path, text); err != nil {
		t.Fatal(err)
	}
	return path
}

// via leads the URL through the bad link.
func (b *backing) via(t *testing.T, direct string) {
	t.Helper()
	var err error
	b.url, err = lab.ArbiterVia(direct, func(target string) (string, error) {
		b.link = newBadLink(t, target)
		return b.link.l.Addr().String(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// http is `twok arbiter serve` with tokens: the server takes another one, and the agents get it later.
func (b *backing) http(t *testing.T, dir string) {
	addr := arbitertest.FreePort()
	theirs, ours := file(t, dir, "server-tokens", "first\n"), file(t, dir, "token", "first\n")
	b.serve(t, &server{
		argv: []string{twok(t), "arbiter", "serve", "--listen", addr, "--dir", filepath.Join(dir, "data"), "--tokens-file", theirs},
		log:  filepath.Join(dir, "log"),
		ready: func() error {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				err = c.Close()
			}
			return err
		},
	})
	reg, err := httpcas.New(httpcas.Config{URL: "http://" + addr + "/pair", Authorization: func() (string, error) {
		token, err := os.ReadFile(theirs)
		return httpcas.Bearer(strings.TrimSpace(string(token))), err
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.reg, b.env = reg, []string{"TWOK_ARBITER_TOKEN_FILE=" + ours}
	b.expire = func() error { return replace(theirs, "the second\n") }
	b.renew = func() error { return replace(ours, "the second\n") }
	b.via(t, "http://"+addr+"/pair")
}

// s3 is versitygw, and a profile whose process gives credentials that have to be asked for anew each time.
func (b *backing) s3(t *testing.T, dir string) {
	s, err := lab.StartStore(t.Context(), "s3", dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	b.kill, b.start = s.Kill, s.Start
	var key, secret string
	for _, kv := range s.Env {
		switch name, value, _ := strings.Cut(kv, "="); name {
		case "AWS_ACCESS_KEY_ID":
			key = value
		case "AWS_SECRET_ACCESS_KEY":
			secret = value
		}
	}
	keys := func(secret string) string {
		text, err := json.Marshal(map[string]any{"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret, "Expiration": time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ours, always := file(t, dir, "keys", keys(secret)), file(t, dir, "keys-of-the-test", keys(secret))
	config := file(t, dir, "config", "[profile agents]\ncredential_process = cat "+ours+"\n[profile test]\ncredential_process = cat "+always+"\n")
	env := []string{
		"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_CONFIG_FILE=" + config, "AWS_EC2_METADATA_DISABLED=true", "AWS_REGION=us-east-1",
	}
	u, err := url.Parse(s.URL)
	if err == nil {
		err = withEnv(append([]string{"AWS_PROFILE=test"}, env...), func() error {
			b.reg, err = s3.New(s3.Config{Bucket: u.Host, Key: strings.TrimPrefix(u.Path, "/"), Endpoint: u.Query().Get("endpoint"), PathStyle: true})
			return err
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.env = append([]string{"AWS_PROFILE=agents"}, env...)
	b.expire = func() error { return replace(ours, keys("expired")) }
	b.renew = func() error { return replace(ours, keys(secret)) }
	b.via(t, s.URL)
}

// etcd is one with users. The agents' user may use what grant gave it.
func (b *backing) etcd(t *testing.T, dir string) {
	client, peer := arbitertest.FreePort(), arbitertest.FreePort()
	var err error
	b.admin, err = clientv3.New(clientv3.Config{Endpoints: []string{client}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	admin := func() *clientv3.Client { return b.admin }
	t.Cleanup(func() {
		if err := b.admin.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	b.serve(t, &server{
		argv: []string{
			etcd(t, lab.Minors[len(lab.Minors)-1]).Etcd, "--name", "arbiter", "--data-dir", filepath.Join(dir, "data"), "--initial-cluster", "arbiter=http://" + peer,
			"--listen-client-urls", "http://" + client, "--advertise-client-urls", "http://" + client, "--initial-cluster-token", dir,
			"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer, "--bcrypt-cost", "4", "--log-level", "error",
		},
		log: filepath.Join(dir, "log"),
		ready: func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := admin().Get(ctx, "none")
			return err
		},
	})
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	must(b.admin.UserAdd(ctx, "root", "root"))
	must(b.admin.UserGrantRole(ctx, "root", "root"))
	must(b.admin.UserAdd(ctx, "agents", "first"))
	must(b.admin.RoleAdd(ctx, "agents"))
	must(b.admin.UserGrantRole(ctx, "agents", "agents"))
	must(nil, b.grant(ctx, "pair", clientv3.GetPrefixRangeEnd("pair")))
	must(b.admin.AuthEnable(ctx))
	must(nil, b.admin.Close())
	b.admin, err = clientv3.New(clientv3.Config{Endpoints: []string{client}, Logger: zap.NewNop(), Username: "root", Password: "root"})
	must(nil, err)
	ours := file(t, dir, "password", "first\n")
	b.reg, err = etcdstore.New(etcdstore.Config{Endpoints: []string{client}, Key: "pair", Login: func() (string, string, error) { return "root", "root", nil }})
	must(nil, err)
	b.env = []string{"TWOK_ARBITER_USER=agents", "TWOK_ARBITER_PASSWORD_FILE=" + ours}
	b.expire = func() error {
		_, err := b.admin.UserChangePassword(ctx, "agents", "the second")
		return err
	}
	b.renew = func() error { return replace(ours, "the second\n") }
	b.via(t, "etcd://"+client+"/pair")
}

// grant lets the agents' user read and write these keys; end is empty for one key.
func (b *backing) grant(ctx context.Context, key, end string) error {
	_, err := b.admin.RoleGrantPermission(ctx, "agents", key, end, clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

// configmap is a kube-apiserver; the agents' token ends and is renewed.
func (b *backing) configmap(t *testing.T, _ string) {
	b.k = kubernetes(t, "")
	b.url, b.kill, b.start = b.k.URL, b.k.Kill, b.k.Start
	b.token = b.k.TokenFile
	b.expire = func() error { return replace(b.k.TokenFile, "expired") }
	b.renew = func() error { return replace(b.k.TokenFile, b.k.Token) }
	// The test reads the record with a token of its own.
	own := file(t, t.TempDir(), "token", b.k.Token)
	config := filepath.Join(t.TempDir(), "kubeconfig")
	env, err := b.k.Via(config, own, func(target string) (string, error) {
		b.link = newBadLink(t, target)
		b.link.request, b.link.answer = 4000, 6000 // with TLS
		return target, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	name, value, _ := strings.Cut(env[0], "=")
	t.Setenv(name, value)
	if b.reg, err = configmap.New(configmap.Config{Namespace: "twok", Name: "pair"}); err != nil {
		t.Fatal(err)
	}
}
