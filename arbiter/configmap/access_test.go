package configmap

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
)

// Rules: none (configuration).
func TestNewRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, file, kubeconfig("http://127.0.0.1:1", "", "token: a-secret"))
	good := Config{Namespace: "ns", Name: "my.pair-1", Key: "the_Record.1", kubeconfig: file}
	if r := open(t, good); r.String() != "configmap://ns/my.pair-1" {
		t.Errorf("%v", r)
	}
	for name, change := range map[string]func(*Config){
		"no namespace":         func(c *Config) { c.Namespace = "" },
		"namespace with a dot": func(c *Config) { c.Namespace = "a.b" },
		"long namespace":       func(c *Config) { c.Namespace = strings.Repeat("n", 64) },
		"no name":              func(c *Config) { c.Name = "" },
		"name with a slash":    func(c *Config) { c.Name = "a/b" },
		"name in upper case":   func(c *Config) { c.Name = "Pair" },
		"name that climbs":     func(c *Config) { c.Name = ".." },
		"hyphen at the end":    func(c *Config) { c.Name = "pair-" },
		"long name":            func(c *Config) { c.Name = strings.Repeat("n", 254) },
		"key with a slash":     func(c *Config) { c.Key = "a/b" },
		"key that climbs":      func(c *Config) { c.Key = "..a" },
		"timeout":              func(c *Config) { c.Timeout = -1 },
		"no such kubeconfig":   func(c *Config) { c.kubeconfig = file + ".none" },
		"an empty kubeconfig":  func(c *Config) { c.kubeconfig = os.DevNull },
	} {
		cfg := good
		change(&cfg)
		if r, err := New(cfg); arbiter.Class(err) != arbiter.ErrMisconfigured || r != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{
		"no YAML":              "\t",
		"no such context":      strings.Replace(kubeconfig("http://h", "", "token: a-secret"), "current-context: c", "current-context: d", 1),
		"user in the server":   kubeconfig("http://u:a-secret@h", "", "{}"),
		"no server":            kubeconfig("", "", "token: a-secret"),
		"no such CA":           kubeconfig("https://h", "certificate-authority: /nonexistent", "token: a-secret"),
		"CA is none":           kubeconfig("https://h", "certificate-authority-data: YQ==", "token: a-secret"),
		"no such token file":   kubeconfig("https://h", "", "tokenFile: /nonexistent"),
		"certificate, no key":  kubeconfig("https://h", "", "client-certificate: /nonexistent"),
		"auth provider":        kubeconfig("https://h", "", "auth-provider: {name: gcp}"),
		"proxy without TLS":    kubeconfig("http://h", "proxy-url: http://p", "token: a-secret"),
		"plugin of no version": kubeconfig("https://h", "", "exec: {command: x}"),
	} {
		write(t, file, text)
		if _, err := New(good); arbiter.Class(err) != arbiter.ErrMisconfigured || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where the environment says that there is a kubeconfig there must be one: the pod's
// service account may belong to another cluster.
//
// Rules: P1.
func TestEnvironment(t *testing.T) {
	cfg := Config{Namespace: "ns", Name: "pair"}
	missing := filepath.Join(t.TempDir(), "none")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, file, kubeconfig("http://127.0.0.1:1", "", "token: t"))
	t.Setenv("KUBECONFIG", missing)
	if _, err := New(cfg); arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is missing: %v", err)
	}
	t.Setenv("KUBECONFIG", missing+string(filepath.ListSeparator)+file)
	if _, err := New(cfg); err != nil {
		t.Errorf("one of two: %v", err)
	}
	t.Setenv("KUBECONFIG", os.DevNull)
	if _, err := New(cfg); arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "KUBECONFIG") {
		t.Errorf("an empty one: %v", err)
	}
}

// What was renewed is noticed at the next call, and another cluster is refused.
//
// Rules: P1; F11.
func TestKubeconfigIsReadAnew(t *testing.T) {
	var auth string
	hs := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth = r.Header.Get("Authorization")
		io.WriteString(w, configMap("7", `"record":"x"`))
	}))
	defer hs.Close()
	other := httptest.NewTLSServer(hs.Config.Handler)
	defer other.Close()
	token := readableFile(t, "one\n")
	r := at(t, hs.URL, serverCA(hs), "tokenFile: "+token)
	read := func(want string) error {
		t.Helper()
		auth = ""
		_, _, err := r.Read(t.Context())
		if auth != want {
			t.Errorf("authorization %q, want %q; %v", auth, want, err)
		}
		return err
	}
	if err := read("Bearer one"); err != nil {
		t.Error(err)
	}
	write(t, token, "two\n")
	if err := read("Bearer two"); err != nil {
		t.Error(err)
	}
	write(t, r.kubeconfig, kubeconfig(hs.URL, serverCA(hs), "token: three"))
	if err := read("Bearer three"); err != nil {
		t.Error(err)
	}
	write(t, r.kubeconfig, kubeconfig(other.URL, serverCA(hs), "token: three"))
	if err := read(""); arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "another arbiter") {
		t.Errorf("another server: %v", err)
	}
	write(t, r.kubeconfig, "half of a kubecon")
	if err := read(""); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("a torn kubeconfig: %v", err)
	}
	write(t, r.kubeconfig, kubeconfig(hs.URL, serverCA(hs), "token: four"))
	if err := read("Bearer four"); err != nil {
		t.Error(err)
	}
}

// A credential plugin gives the token; one that fails or hangs costs the call, not
// the agent, and nothing is sent afterwards.
//
// Rules: P1, P7; F13.
func TestCredentialPlugin(t *testing.T) {
	var requests []string
	hs := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Header.Get("Authorization"))
		io.WriteString(w, configMap("7", `"record":"x"`))
	}))
	defer hs.Close()
	plugin := func(script string) *Register {
		file := readableFile(t, script+"\n")
		return at(t, hs.URL, serverCA(hs), "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: ["+file+"]}")
	}
	r := plugin(`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-the-plugin"}}'`)
	if _, _, err := r.Read(t.Context()); err != nil || len(requests) != 1 || requests[0] != "Bearer from-the-plugin" {
		t.Errorf("%v, %q", err, requests)
	}
	requests = nil
	fails := plugin("exit 3")
	_, _, err := fails.Read(t.Context())
	err2 := fails.CompareAndSwap(t.Context(), arbiter.At("1@u"), []byte("x"))
	if className(err) != "unavailable" || className(err2) != "unavailable" || !strings.Contains(err2.Error(), "plugin") || len(requests) > 0 {
		t.Errorf("a plugin that fails: %v; %v; %q", err, err2, requests)
	}

	gate := filepath.Join(t.TempDir(), "go")
	hangs := plugin("while [ ! -e " + gate + " ]; do sleep 0.05; done\n" +
		`echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"late"}}'`)
	hangs.timeout = 200 * time.Millisecond
	for i := range waiting + 2 {
		err := hangs.CompareAndSwap(context.Background(), arbiter.At("1@u"), []byte("x"))
		if className(err) != "unavailable" || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "plugin") {
			t.Errorf("a plugin that hangs: %v", err)
		}
		if strings.Contains(err.Error(), "earlier calls") != (i >= waiting) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	write(t, gate, "")
	hangs.timeout = 20 * time.Second
	if _, _, err := hangs.Read(t.Context()); err != nil {
		t.Error(err)
	}
	if len(requests) != 1 || requests[0] != "Bearer late" {
		t.Errorf("abandoned calls were sent: %q", requests)
	}
}
