package httpcas

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// serve runs the embedded arbiter on loopback, behind wrap if there is one.
func serve(t *testing.T, dir string, wrap func(http.Handler) http.Handler) (*Server, *httptest.Server) {
	t.Helper()
	s, err := NewServer(dir)
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = s
	if wrap != nil {
		h = wrap(s)
	}
	hs := httptest.NewServer(h)
	t.Cleanup(func() {
		hs.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, hs
}

func open(t *testing.T, url string) *Register {
	t.Helper()
	r, err := New(Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkPassword is what an operator would put in front of the arbiter.
func checkPassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if subtle.ConstantTimeCompare([]byte(password), []byte("right")) != 1 {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fixtureOf is a key of its own in a served directory.
func fixtureOf(t *testing.T, s *Server, hs *httptest.Server, key string) arbitertest.Fixture {
	addr := hs.Listener.Addr().String()
	via := func(addr, password string) (arbiter.Register, error) {
		u := url.URL{Scheme: "http", Host: addr, Path: "/" + key}
		return New(Config{URL: u.String(), Authorization: func() (string, error) { return Basic("twok", password), nil }})
	}
	return arbitertest.Fixture{
		Addr:      addr,
		Open:      func() (arbiter.Register, error) { return via(addr, "right") },
		OpenVia:   func(addr string) (arbiter.Register, error) { return via(addr, "right") },
		Forbidden: func() (arbiter.Register, error) { return via(addr, "wrong") },
		Put: func(data []byte) error {
			_, _, err := s.store.put(key, data, func(value, bool) bool { return true })
			return err
		},
	}
}

// Rules: P1, P3; F1, F2, F11, F13, F28, F29.
func TestConformance(t *testing.T) {
	s, hs := serve(t, t.TempDir(), checkPassword)
	n := 0
	arbitertest.Run(t, func(t *testing.T) arbitertest.Fixture {
		n++
		return fixtureOf(t, s, hs, "suite/"+string(rune('a'+n/26%26))+string(rune('a'+n%26)))
	})
}

// Rules: P1.
func TestRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "deep")
	s, err := NewServer(dir)
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(s)
	r := open(t, hs.URL+"/a/pair")
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("one")); err != nil {
		t.Fatal(err)
	}
	_, v, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hs.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, hs = serve(t, dir, nil)
	r = open(t, hs.URL+"/a/pair")
	got, v2, err := r.Read(t.Context())
	if err != nil || string(got) != "one" || v2 != v {
		t.Fatalf("after the restart: %q %+v %v, want \"one\" %+v", got, v2, err, v)
	}
	if err := r.CompareAndSwap(t.Context(), v, []byte("two")); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("files %v, %v; want the lock and one value", entries, err)
	}
}

// refusedAddr is an address where nobody listens.
func refusedAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
