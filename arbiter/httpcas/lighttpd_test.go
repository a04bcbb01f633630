package httpcas

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// webFixture is a key of its own on a web server.
func webFixture(s *arbitertest.WebServer, key string) arbitertest.Fixture {
	via := func(addr, password string) (arbiter.Register, error) {
		return New(Config{URL: "http://" + addr + "/" + key, Authorization: func() (string, error) { return Basic(arbitertest.WebUser, password), nil }})
	}
	return arbitertest.Fixture{
		Addr:      s.Addr,
		Open:      func() (arbiter.Register, error) { return via(s.Addr, arbitertest.WebPassword) },
		OpenVia:   func(addr string) (arbiter.Register, error) { return via(addr, arbitertest.WebPassword) },
		Forbidden: func() (arbiter.Register, error) { return via(s.Addr, "wrong") },
		Put: func(data []byte) error { // as an administrator's editor does
			tmp := filepath.Join(s.Values, key+"~")
			if err := os.WriteFile(tmp, data, 0o600); err != nil {
				return err
			}
			return os.Rename(tmp, filepath.Join(s.Values, key))
		},
	}
}

// The whole suite on a real lighttpd with the shipped configuration.
//
// Rules: P1, P3; F1, F2, F11, F13, F28, F29.
func TestConformanceOfLighttpd(t *testing.T) {
	s := arbitertest.StartLighttpd(t, "", nil)
	n := 0
	arbitertest.Run(t, func(t *testing.T) arbitertest.Fixture {
		n++
		return webFixture(s, fmt.Sprintf("suite-%d", n))
	})
}

// lighttpd killed under a storm of writers loses no acknowledged swap, and applies nothing
// that was refused; a swap in flight is unknown. (What a power cut undoes is another matter: it does not fsync.)
//
// Rules: P1.
func TestLighttpdKilledUnderStorm(t *testing.T) {
	const rounds = 5
	s := arbitertest.StartLighttpd(t, "", nil)
	client := func() arbiter.Register {
		r, err := webFixture(s, "pair").Open()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var clients []arbiter.Register
	for range 6 {
		clients = append(clients, client())
	}
	check := client()
	var storm arbitertest.Storm
	for round := range rounds {
		killed, goal := false, 40+rand.Intn(80)
		err := storm.Run(t.Context(), clients, func(n int) bool {
			if n >= goal && !killed {
				killed = true
				s.Kill()
			}
			return killed
		})
		if err != nil || !killed {
			t.Fatalf("round %d: %v, killed %v", round, err, killed)
		}
		s.Start(t)
		value, _, err := check.Read(t.Context())
		if err == nil {
			err = storm.Check(value)
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	if storm.Doubt() == 0 {
		t.Error("no swap was in flight at a kill")
	}
	t.Logf("%d acknowledged swaps, %d unknown, %d kills", storm.Acked(), storm.Doubt(), rounds)
}

// What the shipped configuration adds to a store: TLS, an account, nothing is deleted
// and nothing is written without a condition.
//
// Rules: P1; F11.
func TestLighttpdAsShipped(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	cert := ca.sign(t, time.Hour)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := arbitertest.StartLighttpd(t, dir, nil)
	url := "https://" + s.Addr + "/pair"
	secure := &tls.Config{RootCAs: ca.pool}
	with := func(password string) *Register {
		r, err := New(Config{URL: url, TLS: secure, Authorization: func() (string, error) { return Basic("twok", password), nil }})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := with("right")
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := with("wrong").Read(t.Context()); arbiter.Class(err) != arbiter.ErrForbidden {
		t.Errorf("a wrong password: %v", err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}}
	for _, method := range []string{http.MethodPut, http.MethodDelete, "MOVE", "COPY", "PROPPATCH", "MKCOL", "LOCK", http.MethodPost} {
		var body io.Reader
		if method == http.MethodPut {
			body = strings.NewReader("two")
		}
		req, err := http.NewRequestWithContext(t.Context(), method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("twok", "right")
		req.Header.Set("Destination", url+"2")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s without a condition: %s", method, resp.Status)
		}
	}
	if got, _, err := r.Read(t.Context()); err != nil || string(got) != "one" {
		t.Errorf("after all that: %q, %v", got, err)
	}
}

// Without a type for every name lighttpd sends no ETag: the register says so, and
// what to set.
//
// Rules: P1; F28.
func TestLighttpdWithoutETags(t *testing.T) {
	s := arbitertest.StartLighttpd(t, "", func(config string) string {
		return strings.Replace(config, "mimetype.assign = ", "# mimetype.assign = ", 1)
	})
	r, err := webFixture(s, "pair").Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("one")); err != nil {
		t.Fatal(err)
	}
	_, v, err := r.Read(t.Context())
	if arbiter.Class(err) != arbiter.ErrMisconfigured || v.Exists() ||
		!strings.Contains(err.Error(), "0 ETags; the store must send one strong ETag (for lighttpd: set mimetype.assign and etag.use-*)") {
		t.Errorf("%+v, %v", v, err)
	}
}

// nginx with its dav module answers 204 to a PUT whose condition does not hold: the
// suite refuses it, by the cases that are about conditions.
//
// Rules: P1; F28.
func TestNginxIsRefused(t *testing.T) {
	s := arbitertest.StartNginx(t)
	n := 0
	var failed []string
	for _, c := range arbitertest.Cases() {
		err := c.Run(func() (arbitertest.Fixture, error) {
			n++
			f := webFixture(s, fmt.Sprintf("suite-%d", n))
			f.Cannot = map[arbitertest.Ability]string{arbitertest.CanForbid: "it has no account"}
			return f, nil
		})
		var cannot *arbitertest.Cannot
		if err != nil && !errors.As(err, &cannot) {
			failed = append(failed, c.Name)
			t.Logf("%s: %v", c.Name, err)
		}
	}
	for _, want := range []string{
		"create and read", "stale version", "versions that match nothing", "ABA", "one creator of many", "one winner of many",
		"no lost update in a storm", "empty is not absent", "white space and garbage",
	} {
		if !slices.Contains(failed, want) {
			t.Errorf("not caught by %q, but by %q", want, failed)
		}
	}
	// What has nothing to do with conditions works: it is a server, not a ruin.
	for _, fine := range []string{"absent", "values byte for byte", "read your write from a second client", "deadline"} {
		if slices.Contains(failed, fine) {
			t.Errorf("%q failed too: is the server up?", fine)
		}
	}
}
