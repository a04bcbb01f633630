package etcd

import (
	"context"
	"fmt"
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

	"twok/arbiter/arbitertest"
)

var binaries = map[string]func() ([]string, error){}

func init() {
	for _, minor := range []string{"3.5", "3.7"} {
		binaries[minor] = sync.OnceValues(func() ([]string, error) { return arbitertest.Tool("etcd", minor) })
	}
}

// member is one etcd process.
type member struct {
	name, client, peer string // host:port
	dir                string
	args               []string
	bin                string
	cmd                *exec.Cmd
}

// start runs the member, again on its data after a stop.
func (m *member) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.cmd = exec.Command(m.bin, m.args...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (m *member) kill(t *testing.T) {
	t.Helper()
	if err := m.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	m.cmd.Wait()
}

// url is the client URL.
func (m *member) url() string { return "http://" + m.client }

// cluster is real etcds on loopback, which end with the test.
type cluster struct{ members []*member }

// startCluster starts n members of a release and waits until each answers.
func startCluster(t *testing.T, minor string, n int, args ...string) *cluster {
	t.Helper()
	bin, err := binaries[minor]()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{}
	var initial []string
	for i := range n {
		m := &member{name: fmt.Sprintf("a%d", i), client: arbitertest.FreePort(), peer: arbitertest.FreePort(), dir: t.TempDir(), bin: bin[0]}
		initial = append(initial, m.name+"=http://"+m.peer)
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		m.args = append([]string{
			"--name", m.name, "--data-dir", filepath.Join(m.dir, "data"),
			"--listen-client-urls", m.url(), "--advertise-client-urls", m.url(),
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", t.Name(),
			"--heartbeat-interval", "20", "--election-timeout", "200", "--bcrypt-cost", "4", "--log-level", "error",
		}, args...)
		m.start(t)
		t.Cleanup(func() {
			m.kill(t)
			if t.Failed() {
				if log, err := os.ReadFile(filepath.Join(m.dir, "log")); err == nil && len(log) > 0 {
					t.Logf("%s says:\n%s", m.name, log[max(0, len(log)-4000):])
				}
			}
		})
	}
	for _, m := range c.members {
		c.await(t, m)
	}
	return c
}

// await waits until a member answers a linearizable read.
func (c *cluster) await(t *testing.T, m *member) {
	t.Helper()
	cl := client(t, m.url())
	for end := time.Now().Add(30 * time.Second); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := cl.Get(ctx, "none")
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not answer: %v", m.name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *cluster) endpoints() (es []string) {
	for _, m := range c.members {
		es = append(es, m.client)
	}
	return es
}

// client is etcd's own, for what an administrator or a stray tool does.
func client(t *testing.T, urls ...string) *clientv3.Client {
	t.Helper()
	return clientAs(t, "", "", urls...)
}

func clientAs(t *testing.T, user, password string, urls ...string) *clientv3.Client {
	t.Helper()
	cl, err := clientv3.New(clientv3.Config{Endpoints: urls, Logger: zap.NewNop(), Username: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// must ends the test at the first error of what an administrator does.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// enableAuth makes the users root, twok (readwrite on the prefix pair/) and
// stranger (no role), each with its name as password, and asks for one from now on.
func enableAuth(t *testing.T, c *cluster) {
	t.Helper()
	cl := client(t, c.members[0].url())
	ctx := t.Context()
	for _, user := range []string{"root", "twok", "stranger"} {
		must[*clientv3.AuthUserAddResponse](t)(cl.UserAdd(ctx, user, user))
	}
	must[*clientv3.AuthRoleAddResponse](t)(cl.RoleAdd(ctx, "root"))
	must[*clientv3.AuthUserGrantRoleResponse](t)(cl.UserGrantRole(ctx, "root", "root"))
	must[*clientv3.AuthRoleAddResponse](t)(cl.RoleAdd(ctx, "arbiter"))
	must[*clientv3.AuthRoleGrantPermissionResponse](t)(cl.RoleGrantPermission(ctx, "arbiter", "pair/", clientv3.GetPrefixRangeEnd("pair/"),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	must[*clientv3.AuthUserGrantRoleResponse](t)(cl.UserGrantRole(ctx, "twok", "arbiter"))
	must[*clientv3.AuthEnableResponse](t)(cl.AuthEnable(ctx))
}

func loginAs(user, password string) func() (string, string, error) {
	return func() (string, string, error) { return user, password, nil }
}

func open(t *testing.T, cfg Config) *Register {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
