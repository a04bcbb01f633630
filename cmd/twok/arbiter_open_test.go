package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func with(env map[string]string) secrets {
	return secretsFrom(func(name string) string { return env[name] })
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pemPair is a self-signed certificate and its key, in files.
func pemPair(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		write(t, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: kder})))
}

// One URL selects the store.
// Rules: none (configuration).
func TestOpenArbiter(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_PROFILE", "")
	cert, key := pemPair(t)
	password := write(t, "p\n")
	tls := map[string]string{envCA: cert, envCert: cert, envKey: key, envUser: "u", envPasswordFile: password}
	for url, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"http://host/pair":                    {nil, "*httpcas.Register http://host/pair"},
		"https://host:1/a/pair?x=y":           {tls, "*httpcas.Register https://host:1/a/pair"},
		"http://host/token":                   {map[string]string{envTokenFile: password}, "*httpcas.Register http://host/token"},
		"s3://bucket/key?region=r":            {nil, "*s3.Register s3://bucket/key"},
		"s3://bucket/a/b?endpoint=http://h:1": {nil, "*s3.Register s3://bucket/a/b"},
		"s3://bucket/k?endpoint=https%3A%2F%2Fh&path-style=true&region=r": {nil, "*s3.Register s3://bucket/k"},
		"etcd://h:1/key":             {nil, "*etcd.Register etcd://h:1/key"},
		"etcd://h:1,g:2,[::1]:3/a/b": {nil, "*etcd.Register etcd://h:1,g:2,[::1]:3/a/b"},
		"etcd://h:1//a%20b":          {nil, "*etcd.Register etcd://h:1//a b"},
		"etcd://h:1/tls":             {tls, "*etcd.Register etcd://h:1/tls"},
		"etcd://h:1/key?tls=true":    {nil, "*etcd.Register etcd://h:1/key"},
		"etcd://h:1/key?tls=false":   {map[string]string{envUser: "u", envPasswordFile: password}, "*etcd.Register etcd://h:1/key"},
	} {
		r, err := openArbiter(url, with(c.env))
		if got := fmt.Sprintf("%T %v", r, r); err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", url, got, err, c.want)
		}
	}
}

// Rules: none (configuration; secrets stay out of messages).
func TestOpenArbiterRefuses(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_PROFILE", "")
	cert, key := pemPair(t)
	for _, c := range []struct {
		url  string
		env  map[string]string
		says string
	}{
		{"", nil, "no scheme"},
		{"host/key", nil, "no scheme"},
		{"ftp://ns/name", nil, `scheme "ftp" is not supported`},
		{"redis://u:hunter2@h/k", nil, "credentials do not belong"},
		{"http://u:hunter2@h/k", nil, envPasswordFile},
		{"https://hunter2@h/k", nil, envPasswordFile},
		{"etcd://u:hunter2@h:1,g:2/k", nil, envPasswordFile},
		{"s3://AKID:hunter2@bucket/k", nil, "AWS_PROFILE"},
		{"http://h", nil, "no path"},
		{"s3://bucket", nil, "no key"},
		{"s3:///key", nil, "no bucket"},
		{"s3://bucket/key", nil, "region"},
		{"s3://bucket/key?regoin=r", nil, `no parameter "regoin"; known are region`},
		{"s3://bucket/key?region=r&region=q", nil, "given twice"},
		{"s3://bucket/key?region=r&path-style=yes", nil, "true or false"},
		{"s3://bucket/key?region=r&secret=hunter2", nil, "no parameter"},
		{"s3://bucket/key?region=r&endpoint=http://u:hunter2@h", nil, "AWS chain"},
		{"s3://bucket/key?region=r#x", nil, "fragment"},
		{"s3://bucket/key?region=r", map[string]string{envUser: "u"}, "AWS chain alone"},
		{"s3://bucket/key?region=r", map[string]string{envCA: cert}, "AWS chain alone"},
		{"etcd://h:1", nil, "no key"},
		{"etcd:///k", nil, "no endpoint"},
		{"etcd://h/k", nil, "HOST:PORT"},
		{"etcd://h:1,/k", nil, "HOST:PORT"},
		{"etcd://h:1/k?user=u", nil, `no parameter "user"`},
		{"etcd://h:1/k?tls=maybe", nil, "true or false"},
		{"etcd://h:1/k#x", nil, "%23"},
		{"etcd://h:1/%zz", nil, "%zz"},
		{"etcd://h:1/k", map[string]string{envToken: "hunter2"}, "is for http"},
		{"etcd://h:1/k?tls=false", map[string]string{envCA: cert}, "without TLS"},
		{"http://h/k", map[string]string{envCA: cert}, "without TLS"},
		{"http://h/k", map[string]string{envUser: "u", envPassword: "hunter2", envToken: "hunter2"}, "both a user"},
		{"http://h/k", map[string]string{envPassword: "hunter2"}, "without a user"},
		{"http://h/k", map[string]string{envUser: "u:v", envPassword: "hunter2"}, "colon"},
		{"http://h/k", map[string]string{envUser: "u"}, envPasswordFile},
		{"http://h/k", map[string]string{envUser: "u", envPassword: "hunter2", envPasswordFile: "x"}, "into a file and set " + envPasswordFile},
		{"etcd://h:1/k", map[string]string{envUser: "u", envPassword: "hunter2"}, "into a file and set " + envPasswordFile},
		{"http://h/k", map[string]string{envToken: "hunter2"}, "into a file and set " + envTokenFile},
		{"http://h/k", map[string]string{envUser: "u", envPasswordFile: "/nowhere/x"}, "no such file"},
		{"http://h/k", map[string]string{envTokenFile: write(t, "a\nb\n")}, "one line"},
		{"http://h/k", map[string]string{envTokenFile: write(t, "\n")}, "one line"},
		{"https://h/k", map[string]string{envCA: "/nowhere/ca"}, "no such file"},
		{"https://h/k", map[string]string{envCA: write(t, "x")}, "no certificate"},
		{"https://h/k", map[string]string{envCert: cert}, "belong together"},
		{"https://h/k", map[string]string{envCert: key, envKey: cert}, envCert},
	} {
		r, err := openArbiter(c.url, with(c.env))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %v: %v, %v; want %q", c.url, c.env, r, err, c.says)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the secret is in %v", c.url, err)
		}
	}
}

// What is wrong with the credentials has no hint about URLs.
//
// Rules: none (command line).
func TestHintOfCredentials(t *testing.T) {
	t.Setenv(envTokenFile, filepath.Join(t.TempDir(), "none"))
	_, err := arbiterRegister("http://127.0.0.1:1/pair")
	if codeOf(err) != exitUsage || !strings.Contains(hintOf(err), "twok arbiter --help") || strings.Contains(hintOf(err), "supported") {
		t.Errorf("%v, hint %q", err, hintOf(err))
	}
	if _, err := arbiterRegister("ftp://127.0.0.1:1/pair"); !strings.HasPrefix(hintOf(err), "supported are ") {
		t.Errorf("%v, hint %q", err, hintOf(err))
	}
}

// A secret's file is read for each request: a changed one is noticed.
// Rules: none (configuration).
func TestSecretIsReadEachTime(t *testing.T) {
	var got string
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer hs.Close()
	file := write(t, "one\n")
	r, err := openArbiter(hs.URL+"/pair", with(map[string]string{envTokenFile: file}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Read(t.Context()) // the answer is no store's
		if got != "Bearer "+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The embedded arbiter with TLS, client certificates and users; an agent's part
// comes from the environment.
// Rules: P1; F11, F12.
func TestServeSecured(t *testing.T) {
	for listen, everywhere := range map[string]bool{"127.0.0.1:7379": false, "0.0.0.0:7379": true, "[::]:7379": true, "10.0.0.1:7379": false} {
		addr, err := net.ResolveTCPAddr("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		if got := usage("http://x/", addr); strings.Contains(got, "in place of 127.0.0.1") != everywhere {
			t.Errorf("%s: %s", listen, got)
		}
	}
	cert, key := pemPair(t)
	first, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	authorities, users := write(t, string(first)), write(t, "twok:right\n")
	ctx, stop := context.WithCancel(t.Context())
	out := make(lineWriter, 10)
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"twok", "arbiter", "serve", "--listen", "127.0.0.1:0", "--dir", t.TempDir(), "--json",
			"--cert", cert, "--key", key, "--client-ca", authorities, "--users-file", users}, out, &errs)
	}()
	var ready struct{ URL string }
	select {
	case line := <-out:
		if err := json.Unmarshal([]byte(line), &ready); err != nil || !strings.HasPrefix(ready.URL, "https://") {
			t.Fatalf("%v: %s", err, line)
		}
	case code := <-done:
		t.Fatalf("exit %d: %s", code, errs.String())
	case <-time.After(30 * time.Second):
		t.Fatal("the arbiter does not start")
	}
	show := func(want int) {
		t.Helper()
		var stderr string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			var code int
			_, stderr, code = twok(t, "arbiter", "show", "--arbiter", ready.URL+"pair")
			if code == want {
				return
			}
			if want != exitForbidden { // TLS 1.3 may break the connection before its alert is read
				break
			}
		}
		t.Errorf("want exit %d: %s", want, stderr)
	}
	show(exitMisconfigured) // nobody vouches for the certificate
	t.Setenv(envCA, write(t, string(first)))
	show(exitForbidden) // no client certificate
	t.Setenv(envCert, write(t, string(first)))
	firstKey, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(envKey, write(t, string(firstKey)))
	show(exitForbidden) // no user
	t.Setenv(envUser, "twok")
	t.Setenv(envPasswordFile, write(t, "wrong\n"))
	show(exitForbidden)
	t.Setenv(envPasswordFile, write(t, "right\n"))
	show(exitAbsent)

	// Everything is rotated in place, and the arbiter goes on (F12).
	rotate := func(file string, from ...string) {
		t.Helper()
		var all []byte
		for _, f := range from {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		if err := os.WriteFile(file, all, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newCert, newKey := pemPair(t)
	clientCert, clientKey := pemPair(t)
	t.Setenv(envCert, clientCert)
	t.Setenv(envKey, clientKey)
	show(exitForbidden) // signed by nobody whom the arbiter knows
	rotate(authorities, cert, clientCert)
	show(exitAbsent)
	rotate(key, newKey)
	rotate(cert, newCert)
	show(exitMisconfigured) // the client has the old authority
	t.Setenv(envCA, newCert)
	show(exitAbsent)
	rotate(authorities, newCert)
	show(exitForbidden)
	stop()
	if code := <-done; code != 0 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
	for args, says := range map[string]string{
		"--cert x": "--cert and --key", "--client-ca " + cert: "--cert and --key", "--cert /nowhere --key /nowhere": "no such file",
		"--users-file /nowhere": "no such file", "--users-file " + key: "USER:PASSWORD",
		"--cert " + cert + " --key " + key + " --client-ca " + key: "no certificate",
	} {
		_, stderr, code := twok(t, append([]string{"arbiter", "serve", "--listen", "127.0.0.1:0", "--dir", t.TempDir()}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}
