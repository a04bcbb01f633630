package httpcas

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"twok/arbiter"
)

// do sends one request to h, with headers as "Name: value".
func do(h http.Handler, method, target, body string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func newServer(t *testing.T, dir string) *Server {
	t.Helper()
	s, err := NewServer(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// Rules: P1; F11.
func TestServerAnswers(t *testing.T) {
	s := newServer(t, t.TempDir())
	resp := do(s, "PUT", "/a/b", "one", "If-None-Match: *")
	if resp.StatusCode != 201 {
		t.Fatalf("create: %d", resp.StatusCode)
	}
	tag := resp.Header.Get("ETag")
	big := strings.Repeat("x", MaxValue+1)
	for _, c := range []struct {
		method, target, body string
		headers              []string
		status               int
	}{
		{"GET", "/a/b", "", nil, 200},
		{"HEAD", "/a/b", "", nil, 200},
		{"GET", "/a/c", "", nil, 404},
		{"HEAD", "/a/c", "", nil, 404},
		{"GET", "/a", "", nil, 404},
		{"GET", "/A/b", "", nil, 404},
		{"PUT", "/a/b", "x", nil, 428},
		{"PUT", "/a/c", "x", nil, 428},
		{"PUT", "/a/b", "x", []string{"If-None-Match: *"}, 412},
		{"PUT", "/a/b", "x", []string{`If-Match: "other"`}, 412},
		{"PUT", "/a/c", "x", []string{"If-Match: " + tag}, 412},
		{"PUT", "/a/b", "x", []string{"If-Match: *"}, 400},
		{"PUT", "/a/b", "x", []string{"If-Match: "}, 400},
		{"PUT", "/a/b", "x", []string{"If-Match: W/" + tag}, 400},
		{"PUT", "/a/b", "x", []string{"If-Match: " + strings.Trim(tag, `"`)}, 400},
		{"PUT", "/a/b", "x", []string{`If-Match: "other", ` + tag}, 400},
		{"PUT", "/a/b", "x", []string{`If-Match: "other"`, "If-Match: " + tag}, 400},
		{"PUT", "/a/b", "x", []string{"If-Match: " + tag, "If-None-Match: *"}, 400},
		{"PUT", "/a/b", "x", []string{"If-None-Match: " + tag}, 400},
		{"PUT", "/a/b", "x", []string{"If-Match: " + tag, "Content-Range: bytes 0-0/3"}, 400},
		{"PUT", "/a/b", "x", []string{"If-Match: " + tag, "Content-Encoding: gzip"}, 400},
		{"PUT", "/a/b", big, []string{"If-Match: " + tag}, 413},
		{"PUT", "/a/b?x", "x", []string{"If-Match: " + tag}, 400},
		{"DELETE", "/a/b", "", []string{"If-Match: " + tag}, 405},
		{"POST", "/a/b", "x", []string{"If-Match: " + tag}, 405},
		{"PATCH", "/a/b", "x", []string{"If-Match: " + tag}, 405},
		{"MOVE", "/a/b", "", nil, 405},
		{"GET", "/", "", nil, 400},
		{"GET", "/a//b", "", nil, 400},
		{"GET", "/a/b/", "", nil, 400},
		{"GET", "/a/./b", "", nil, 400},
		{"GET", "/../lock", "", nil, 400},
		{"GET", "/a/../../lock", "", nil, 400},
		{"GET", "/%2e%2e/lock", "", nil, 400},
		{"GET", "/..%2flock", "", nil, 400},
		{"GET", "/a%2fb", "", nil, 400},
		{"GET", "/%61/b", "", nil, 400},
		{"GET", "/a%00b", "", nil, 400},
		{"GET", "/a%20b", "", nil, 400},
		{"GET", "/a%5cb", "", nil, 400},
		{"GET", "/" + strings.Repeat("k", maxKey+1), "", nil, 400},
		{"GET", "/lock", "", nil, 404},
		{"GET", "/v.a%252Fb", "", nil, 400},
		{"GET", "/healthz", "", nil, 200},
		{"PUT", "/healthz", "x", []string{"If-None-Match: *"}, 405},
	} {
		if resp := do(s, c.method, c.target, c.body, c.headers...); resp.StatusCode != c.status {
			text, _ := io.ReadAll(resp.Body)
			t.Errorf("%s %.40s %q: %d, want %d (%s)", c.method, c.target, c.headers, resp.StatusCode, c.status, text)
		}
	}
	resp = do(s, "GET", "/a/b", "")
	if body, _ := io.ReadAll(resp.Body); string(body) != "one" || resp.Header.Get("ETag") != tag {
		t.Errorf("after all refusals: %q %s, want \"one\" %s", body, resp.Header.Get("ETag"), tag)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) != 2 {
		t.Errorf("refused requests left files: %v", entries)
	}
	resp = do(s, "HEAD", "/a/b", "")
	if body, _ := io.ReadAll(resp.Body); len(body) != 0 || resp.Header.Get("ETag") != tag || resp.Header.Get("Content-Length") != "3" {
		t.Errorf("HEAD: %q %v", body, resp.Header)
	}
	if resp = do(s, "PUT", "/a/b", strings.Repeat("x", MaxValue), "If-Match: "+tag); resp.StatusCode != 204 {
		t.Errorf("the largest value: %d", resp.StatusCode)
	}
}

// Equal bytes never give an earlier tag again.
// Rules: P1.
func TestServerABA(t *testing.T) {
	s := newServer(t, t.TempDir())
	tags := map[string]bool{}
	precondition := "If-None-Match: *"
	for i := range 6 {
		resp := do(s, "PUT", "/k", fmt.Sprint(i%2), precondition)
		if resp.StatusCode/100 != 2 {
			t.Fatal(resp.StatusCode)
		}
		tag := resp.Header.Get("ETag")
		if tags[tag] || arbiter.StrongETag(tag) != nil {
			t.Errorf("tag %s", tag)
		}
		tags[tag] = true
		precondition = "If-Match: " + tag
	}
}

// A request that breaks off is not applied.
// Rules: P1.
func TestServerTruncatedBody(t *testing.T) {
	s, hs := serve(t, t.TempDir(), nil)
	c, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "PUT /k HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\nContent-Length: 10\r\n\r\nhalf")
	c.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("%q %v", answer, err)
	}
	if _, err := s.store.get("k"); !errors.Is(err, errNoValue) {
		t.Errorf("a value is there: %v", err)
	}
}

// Rules: P1.
func TestServerLock(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, dir)
	if _, err := NewServer(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("second server: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := newServer(t, dir)
	if resp := do(s, "PUT", "/k", "x", "If-None-Match: *"); resp.StatusCode != 503 || resp.Header.Get(HeaderApplied) != "no" {
		t.Errorf("PUT to a closed server: %d", resp.StatusCode)
	}
	if resp := do(s, "GET", "/k", ""); resp.StatusCode != 500 {
		t.Errorf("GET from a closed server: %d", resp.StatusCode)
	}
	if resp := do(s, "GET", "/healthz", ""); resp.StatusCode != 503 {
		t.Errorf("health of a closed server: %d", resp.StatusCode)
	}
	if resp := do(again, "PUT", "/k", "x", "If-None-Match: *"); resp.StatusCode != 201 {
		t.Errorf("PUT to the next server: %d", resp.StatusCode)
	}
}

// Rules: P1, P11; F11.
func TestServerLeftoversAndDamage(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, dir)
	for _, key := range []string{"good", "cut", "flipped", "swapped", "empty"} {
		if resp := do(s, "PUT", "/"+key, "value of "+key, "If-None-Match: *"); resp.StatusCode != 201 {
			t.Fatal(resp.StatusCode)
		}
	}
	s.Close()
	path := func(name string) string { return filepath.Join(dir, name) }
	change := func(name string, f func([]byte) []byte) {
		b, err := os.ReadFile(path(name))
		if err == nil {
			err = os.WriteFile(path(name), f(b), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change("v.cut", func(b []byte) []byte { return b[:len(b)-1] })
	change("v.flipped", func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	change("v.swapped", func([]byte) []byte { b, _ := os.ReadFile(path("v.good")); return b })
	change("v.empty", func([]byte) []byte { return nil })
	for _, name := range []string{"t.good", "t.new", "README", "v.a%2fb", "v...%2Flock"} {
		if err := os.WriteFile(path(name), []byte("half a val"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	s = newServer(t, dir)
	if got, want := s.Leftovers(), []string{"README", "t.good", "t.new", "v...%2Flock", "v.a%2fb"}; !slices.Equal(got, want) {
		t.Errorf("leftovers %q, want %q", got, want)
	}
	damaged := strings.Join(s.Damaged(), "\n")
	for _, name := range []string{"v.cut", "v.flipped", "v.swapped", "v.empty"} {
		if strings.Count(damaged, name) != 1 {
			t.Errorf("%s is not among the damaged:\n%s", name, damaged)
		}
		before, _ := os.ReadFile(path(name))
		key := "/" + name[2:]
		if resp := do(s, "GET", key, ""); resp.StatusCode != 500 {
			t.Errorf("GET %s: %d", key, resp.StatusCode)
		}
		for _, precondition := range []string{"If-None-Match: *", `If-Match: "x"`} {
			if resp := do(s, "PUT", key, "new", precondition); resp.StatusCode != 503 {
				t.Errorf("PUT %s %s: %d", key, precondition, resp.StatusCode)
			}
		}
		if after, _ := os.ReadFile(path(name)); string(after) != string(before) {
			t.Errorf("%s was overwritten", name)
		}
	}
	if len(s.Damaged()) != 4 {
		t.Errorf("damaged:\n%s", damaged)
	}
	if resp := do(s, "GET", "/new", ""); resp.StatusCode != 404 {
		t.Errorf("an unfinished write is read: %d", resp.StatusCode)
	}
	resp := do(s, "GET", "/good", "")
	if body, _ := io.ReadAll(resp.Body); string(body) != "value of good" {
		t.Errorf("good: %q", body)
	}
	if resp := do(s, "PUT", "/good", "new", "If-Match: "+resp.Header.Get("ETag")); resp.StatusCode != 204 {
		t.Errorf("a write over a leftover: %d", resp.StatusCode)
	}
}

// A directory that cannot be written says unavailable, and means it.
// Rules: P1; F31.
func TestServerCannotWrite(t *testing.T) {
	s, hs := serve(t, t.TempDir(), nil)
	if err := os.Mkdir(filepath.Join(s.dir, "t.k"), 0o700); err != nil { // in the place of the unfinished file
		t.Fatal(err)
	}
	r := open(t, hs.URL+"/k")
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); arbiter.Class(err) != arbiter.ErrUnavailable {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(s.dir, "t.k")); err != nil {
		t.Fatal(err)
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
		t.Errorf("when it can write again: %v", err)
	}
}

// Rules: none (configuration).
func TestServerDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if s, err := NewServer(dir); err == nil {
			s.Close()
			t.Errorf("%s: no error", dir)
		}
	}
}
