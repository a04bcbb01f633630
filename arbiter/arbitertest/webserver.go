package arbitertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// WebServer is a real HTTP server on loopback that ends with the test.
type WebServer struct {
	Addr   string // host:port
	Values string // its directory of values

	argv []string
	log  string
	cmd  *exec.Cmd
}

var webTools = map[string]func() ([]string, error){
	"lighttpd": sync.OnceValues(func() ([]string, error) { return Tool("lighttpd") }),
	"nginx":    sync.OnceValues(func() ([]string, error) { return Tool("nginx") }),
}

// The account of StartLighttpd.
const (
	WebUser     = "twok"
	WebPassword = "right"
)

// source reads a file of the module, below whose root the test runs.
func source(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || dir == filepath.Dir(dir) {
			break
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// startWeb starts a server from its shipped or documented configuration, in which
// each of replace must occur.
func startWeb(t testing.TB, name, config string, replace map[string]string, args func(conf string) []string) *WebServer {
	t.Helper()
	bin, err := webTools[name]()
	if err != nil {
		t.Fatal(err)
	}
	for old, now := range replace {
		if strings.Count(config, old) != 1 {
			t.Fatalf("the configuration has %q %d times", old, strings.Count(config, old))
		}
		config = strings.Replace(config, old, now, 1)
	}
	dir := t.TempDir()
	s := &WebServer{Addr: FreePort(), Values: filepath.Join(dir, "values")}
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	config = strings.NewReplacer("ADDR", s.Addr, "PORT", port, "DIR", dir).Replace(config)
	for _, d := range []string{s.Values, filepath.Join(dir, "tmp")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	conf, log := filepath.Join(dir, "conf"), filepath.Join(dir, "log")
	for file, text := range map[string]string{conf: config, filepath.Join(dir, "users"): WebUser + ":" + WebPassword + "\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.argv, s.log = append([]string{bin[0]}, args(conf)...), log
	s.Start(t)
	t.Cleanup(func() {
		s.Kill()
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("%s says:\n%s", name, text[max(0, len(text)-2000):])
		}
	})
	return s
}

// Kill ends the server and its workers by SIGKILL.
func (s *WebServer) Kill() {
	syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	s.cmd.Wait()
}

// Start starts the server on its values, again after Kill. It calls t.Fatal if it cannot.
func (s *WebServer) Start(t testing.TB) {
	t.Helper()
	out, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s.cmd = exec.Command(s.argv[0], s.argv[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = out, out
	// A group of its own: lighttpd may have workers.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// StartLighttpd starts one from the configuration that is shipped, after edit (which may
// be nil): with TLS if tlsDir holds cert.pem and key.pem, without if it is empty. Its only user is
// WebUser with WebPassword. It calls t.Fatal if it cannot.
func StartLighttpd(t testing.TB, tlsDir string, edit func(string) string) *WebServer {
	t.Helper()
	config := source(t, "deploy/arbiters/lighttpd.conf")
	replace := map[string]string{
		`server.bind = "0.0.0.0"`: `server.bind = "127.0.0.1"`, "7380": "PORT", `"/srv/arbiter"`: `"DIR/values"`, `"/srv/arbiter.tmp"`: `"DIR/tmp"`,
		`"/etc/lighttpd/arbiter.users"`: `"DIR/users"`, `"/var/log/lighttpd/arbiter.log"`: `"/dev/stderr"`,
		"server.username = \"www-data\"\n": "", "server.groupname = \"www-data\"\n": "",
	}
	if tlsDir == "" {
		head, rest, ok := strings.Cut(config, "# begin TLS")
		_, tail, ok2 := strings.Cut(rest, "# end TLS")
		if !ok || !ok2 {
			t.Fatal("the configuration has lost its marks")
		}
		config = head + tail
	} else {
		replace["/etc/lighttpd/arbiter.pem"], replace["/etc/lighttpd/arbiter.key"] = tlsDir+"/cert.pem", tlsDir+"/key.pem"
	}
	if edit != nil {
		config = edit(config)
	}
	return startWeb(t, "lighttpd", config, replace, func(conf string) []string { return []string{"-D", "-f", conf} })
}

// StartNginx starts one from the configuration that docs/arbiters/http.md warns of: it ignores
// conditions, and takes every user. It calls t.Fatal if it cannot.
func StartNginx(t testing.TB) *WebServer {
	t.Helper()
	_, rest, ok := strings.Cut(source(t, "docs/arbiters/http.md"), "```nginx\n")
	server, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("http.md has lost its nginx block")
	}
	// What a package's nginx.conf has around a server.
	return startWeb(t, "nginx", `daemon off; master_process off; pid DIR/pid; error_log stderr;
events {}
http { access_log off; proxy_temp_path DIR/a; fastcgi_temp_path DIR/b; uwsgi_temp_path DIR/c; scgi_temp_path DIR/d;
`+server+"}\n", map[string]string{"7380": "127.0.0.1:PORT", "/srv/arbiter;": "DIR/values;", "/srv/arbiter.tmp;": "DIR/tmp;"},
		func(conf string) []string { return []string{"-c", conf, "-e", "stderr"} })
}
