package stores

import (
	"bufio"
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

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/arbiter/etcd"
	"twok/arbiter/httpcas"
	"twok/arbiter/s3"
	"twok/internal/lab"
	"twok/internal/probe"
)

// patience is how long a call may take on a busy machine.
const patience = 30 * time.Second

// opener returns a client of a key of one store.
type opener func(key string) (arbiter.Register, error)

// stores are the real ones: what starts each, and what the probe says of it.
var stores = []struct {
	name  string
	start func(t *testing.T) opener
	fault probe.Fault // "" passes
	class error       // of what is no verdict, with words
	words string
}{
	{name: "twok arbiter serve", start: serve},
	{name: "lighttpd", start: func(t *testing.T) opener { return web(arbitertest.StartLighttpd(t, "", nil)) }},
	{name: "versitygw", start: versitygw},
	{name: "etcd", start: etcdStore},
	{name: "nginx", start: func(t *testing.T) opener { return web(arbitertest.StartNginx(t)) },
		fault: probe.IgnoresVersion, words: "ignores If-Match"},
	{name: "s3rver", start: s3rver, fault: probe.IgnoresVersion, words: "ignores If-Match"},
	{name: "lighttpd of four processes", start: func(t *testing.T) opener {
		return web(arbitertest.StartLighttpd(t, "", edit(t, "server.max-worker = 0", "server.max-worker = 4")))
	}, fault: probe.TwoWinners, words: "checks the condition and writes in two steps"},
	{name: "lighttpd without ETags", start: func(t *testing.T) opener {
		return web(arbitertest.StartLighttpd(t, "", edit(t, "mimetype.assign = ", "# mimetype.assign = ")))
	}, class: arbiter.ErrMisconfigured, words: "set mimetype.assign and etag.use-*"},
}

// Each real store gets its verdict, on a scratch register that does not exist yet and
// on one that does.
//
// Rules: A1, P1, P11; F28.
func TestVerdicts(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			open := s.start(t)
			for i := range 2 {
				rep, err := try(t, open, "pair.probe.1", s.fault == probe.TwoWinners)
				switch {
				case s.class != nil:
					if !errors.Is(err, s.class) || rep.Problem != nil || !strings.Contains(err.Error(), s.words) {
						t.Errorf("probe %d: %v, %v", i+1, rep.Problem, err)
					}
				case err != nil:
					t.Errorf("probe %d: %v", i+1, err)
				case s.fault == "" && rep.Problem != nil:
					t.Errorf("probe %d: a right store is refused: %v", i+1, rep.Problem)
				case s.fault != "" && (rep.Problem == nil || rep.Problem.Fault != s.fault || !strings.Contains(rep.Problem.Remedy, s.words)):
					t.Errorf("probe %d: %v; want %s: %s", i+1, rep.Problem, s.fault, s.words)
				}
				t.Logf("%v: %v; read %v, swap %v", rep.Took.Round(time.Millisecond), rep.Problem, rep.Read, rep.Swap)
			}
			if s.fault != "" || s.class != nil {
				return
			}
			// The record itself was not touched.
			r, err := open("pair")
			if err != nil {
				t.Fatal(err)
			}
			if b, v, err := r.Read(t.Context()); err != nil || v.Exists() {
				t.Errorf("the record's own key: %q, %v", b, err)
			}
			closeRegister(t, r)
		})
	}
}

// try probes; up to ten times if what is looked for shows only by chance.
func try(t *testing.T, open opener, key string, chance bool) (rep probe.Report, err error) {
	for range 10 {
		rep, err = probe.Run(t.Context(), probe.Config{Open: func() (arbiter.Register, error) { return open(key) }, RunID: arbiter.NewNonce()})
		if !chance || err != nil || rep.Problem != nil {
			break
		}
	}
	return rep, err
}

func closeRegister(t *testing.T, r arbiter.Register) {
	t.Helper()
	if c, ok := r.(interface{ Close() error }); ok {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func edit(t *testing.T, old, now string) func(string) string {
	return func(config string) string {
		if strings.Count(config, old) != 1 {
			t.Fatalf("the configuration has %q %d times", old, strings.Count(config, old))
		}
		return strings.Replace(config, old, now, 1)
	}
}

func web(s *arbitertest.WebServer) opener {
	return func(key string) (arbiter.Register, error) {
		return httpcas.New(httpcas.Config{URL: "http://" + s.Addr + "/" + key, Timeout: patience, Authorization: func() (string, error) {
			return httpcas.Basic(arbitertest.WebUser, arbitertest.WebPassword), nil
		}})
	}
}

var built string // the directory with twok, if it was needed

// twok builds the program, once.
var twok = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "twok-stores-")
	if err != nil {
		return "", err
	}
	built = dir
	bin := filepath.Join(dir, "twok")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, "twok/cmd/twok").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build twok: %w\n%s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// serve is the embedded arbiter in a process of its own.
func serve(t *testing.T) opener {
	bin, err := twok()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "arbiter", "serve", "--listen", "127.0.0.1:0", "--dir", t.TempDir(), "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	run(t, cmd)
	var ready struct{ URL string }
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		t.Fatalf("twok arbiter serve: %q: %v", line, err)
	}
	return func(key string) (arbiter.Register, error) {
		return httpcas.New(httpcas.Config{URL: ready.URL + key, Timeout: patience})
	}
}

// run starts a process that ends with the test.
func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
}

func start(t *testing.T, kind string) *lab.Store {
	t.Helper()
	s, err := lab.StartStore(t.Context(), kind, t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func etcdStore(t *testing.T) opener {
	addr, _, _ := strings.Cut(strings.TrimPrefix(start(t, "etcd").URL, "etcd://"), "/")
	return func(key string) (arbiter.Register, error) {
		return etcd.New(etcd.Config{Endpoints: []string{addr}, Key: key, Timeout: patience})
	}
}

func versitygw(t *testing.T) opener {
	s := start(t, "s3")
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return bucket(u.Host, u.Query().Get("endpoint"))
}

func bucket(name, endpoint string) opener {
	return func(key string) (arbiter.Register, error) {
		return s3.New(s3.Config{Bucket: name, Key: key, Endpoint: endpoint, PathStyle: true, Region: "us-east-1", Timeout: patience})
	}
}

func s3rver(t *testing.T) opener {
	script, err := lab.S3rver(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(name, value)
	}
	run(t, exec.Command("node", "--no-deprecation", script, "-d", t.TempDir(), "-a", "127.0.0.1", "-p", fmt.Sprint(addr.Port),
		"--silent", "--configure-bucket", "arbiter"))
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr.String())
		if err == nil {
			conn.Close()
			return bucket("arbiter", "http://"+addr.String())
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
