package httpcas

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"twok/arbiter"
)

// class names for messages.
func className(err error) string {
	switch {
	case err == nil:
		return "applied"
	case errors.Is(err, errAbsent):
		return "absent"
	}
	switch arbiter.Class(err) {
	case arbiter.ErrConflict:
		return "conflict"
	case arbiter.ErrUnavailable:
		return "unavailable"
	case arbiter.ErrForbidden:
		return "forbidden"
	case arbiter.ErrMisconfigured:
		return "misconfigured"
	}
	return "unknown"
}

var errAbsent = errors.New("absent")

// answering is a store that gives one answer to everything, and counts.
func answering(t *testing.T, status int, header http.Header, body string) (*Register, *atomic.Int64) {
	var n atomic.Int64
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		io.Copy(io.Discard, r.Body)
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(hs.Close)
	return open(t, hs.URL+"/pair"), &n
}

// Every status has its class, as the table of the package documentation says, and
// is one request.
// Rules: P1; F11, F29, F30.
func TestStatusTable(t *testing.T) {
	const table = `
		200 applied       applied       value
		201 applied       applied       misconfigured
		202 unknown       unknown       misconfigured
		203 unknown       unknown       misconfigured
		204 applied       applied       misconfigured
		206 unknown       unknown       misconfigured
		300 misconfigured misconfigured misconfigured
		301 misconfigured misconfigured misconfigured
		302 misconfigured misconfigured misconfigured
		303 unknown       unknown       misconfigured
		304 misconfigured misconfigured misconfigured
		307 misconfigured misconfigured misconfigured
		308 misconfigured misconfigured misconfigured
		400 misconfigured misconfigured misconfigured
		401 forbidden     forbidden     forbidden
		403 forbidden     forbidden     forbidden
		404 conflict      misconfigured absent
		405 misconfigured misconfigured misconfigured
		407 misconfigured misconfigured misconfigured
		408 unknown       unknown       unavailable
		409 conflict      conflict      misconfigured
		410 conflict      misconfigured absent
		411 misconfigured misconfigured misconfigured
		412 conflict      conflict      misconfigured
		413 misconfigured misconfigured misconfigured
		423 unavailable   unavailable   unavailable
		428 misconfigured misconfigured misconfigured
		429 unavailable   unavailable   unavailable
		500 unknown       unknown       unavailable
		501 misconfigured misconfigured misconfigured
		502 unknown       unknown       unavailable
		503 unknown       unknown       unavailable
		504 unknown       unknown       unavailable
		505 misconfigured misconfigured misconfigured
		507 unknown       unknown       unavailable
		599 unknown       unknown       unavailable`
	for line := range strings.Lines(strings.TrimSpace(table)) {
		var status int
		var update, create, read string
		if _, err := fmt.Sscan(line, &status, &update, &create, &read); err != nil {
			t.Fatal(err)
		}
		body := "text"
		if status == 204 || status == 304 {
			body = ""
		}
		r, n := answering(t, status, http.Header{"Etag": {`"t"`}, "Location": {"/elsewhere"}}, body)
		check := func(what, want string, err error) {
			t.Helper()
			if got := className(err); got != want {
				t.Errorf("%d: %s is %s, want %s (%v)", status, what, got, want, err)
			}
			if n.Swap(0) != 1 {
				t.Errorf("%d: %s was not one request", status, what)
			}
			if err != nil && !errors.Is(err, errAbsent) && !strings.Contains(err.Error(), fmt.Sprint(status)) {
				t.Errorf("%d: %s does not name the status: %v", status, what, err)
			}
		}
		check("update", update, r.CompareAndSwap(t.Context(), arbiter.At(`"t"`), []byte("x")))
		check("create", create, r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")))
		value, v, err := r.Read(t.Context())
		switch {
		case err == nil && !v.Exists():
			err = errAbsent
		case err == nil && string(value) == body:
			read = strings.Replace(read, "value", "applied", 1)
		}
		check("read", read, err)
	}
}

// Rules: P1.
func TestNotAppliedMarker(t *testing.T) {
	r, _ := answering(t, 503, http.Header{HeaderApplied: {"no"}}, "")
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, nil); arbiter.Class(err) != arbiter.ErrUnavailable {
		t.Errorf("503 that did nothing: %v", err)
	}
	r, _ = answering(t, 500, http.Header{HeaderApplied: {"no"}}, "")
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, nil); arbiter.Class(err) != arbiter.ErrUnknown {
		t.Errorf("500: %v", err)
	}
}

// Rules: P1; F28.
func TestReadRefusesWhatItCannotTrust(t *testing.T) {
	for _, c := range []struct {
		name   string
		header http.Header
		words  string
	}{
		{"no ETag", http.Header{}, "0 ETags"},
		{"two ETags", http.Header{"Etag": {`"a"`, `"b"`}}, "2 ETags"},
		{"weak ETag", http.Header{"Etag": {`W/"a"`}}, "weak"},
		{"empty ETag", http.Header{"Etag": {`""`}}, "empty"},
		{"bare ETag", http.Header{"Etag": {`a`}}, "not quoted"},
		{"list of ETags", http.Header{"Etag": {`"a", "b"`}}, "contains"},
		{"from a cache", http.Header{"Etag": {`"a"`}, "Age": {"0"}}, "cache"},
	} {
		r, _ := answering(t, 200, c.header, "x")
		value, v, err := r.Read(t.Context())
		if arbiter.Class(err) != arbiter.ErrMisconfigured || value != nil || v.Exists() {
			t.Errorf("%s: %q %v %v", c.name, value, v, err)
		} else if !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v does not say %q", c.name, err, c.words)
		}
	}
	r, _ := answering(t, 404, http.Header{"Age": {"3"}}, "")
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("absent, from a cache: %v", err)
	}
	r, _ = answering(t, 200, http.Header{"Etag": {`"a"`}}, strings.Repeat("x", MaxValue+1))
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("too large: %v", err)
	}
	r, _ = answering(t, 200, http.Header{"Etag": {`"a"`}}, strings.Repeat("x", MaxValue))
	if value, _, err := r.Read(t.Context()); err != nil || len(value) != MaxValue {
		t.Errorf("largest: %d bytes, %v", len(value), err)
	}
}

// raw is a server that speaks bytes: each connection gets one answer after its
// request was read up to the blank line.
func raw(t *testing.T, answer string) (*Register, *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var n atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			go func() {
				defer c.Close()
				if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.Copy(io.Discard, req.Body)
					io.WriteString(c, answer)
				}
			}()
		}
	}()
	return open(t, "http://"+l.Addr().String()+"/pair"), &n
}

// Rules: P1.
func TestBrokenAnswers(t *testing.T) {
	for _, c := range []struct {
		name, answer, read, swap string
	}{
		{"nothing", "", "unavailable", "unknown"},
		{"no HTTP", "hello\n", "unavailable", "unknown"},
		{"cut in the header", "HTTP/1.1 200 OK\r\nETag: \"a", "unavailable", "unknown"},
		{"cut in the body", "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 10\r\n\r\nhalf", "unavailable", "applied"},
		{"cut in a chunk", "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha", "unavailable", "applied"},
		{"whole in chunks", "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nha\r\n0\r\n\r\n", "applied", "applied"},
		{"without a length", "HTTP/1.1 200 OK\r\nETag: \"a\"\r\n\r\nhalf", "misconfigured", "applied"},
		{"1xx for ever", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), "unavailable", "unknown"},
	} {
		r, n := raw(t, c.answer)
		_, _, err := r.Read(t.Context())
		if got := className(err); got != c.read {
			t.Errorf("%s: read is %s, want %s (%v)", c.name, got, c.read, err)
		}
		err = r.CompareAndSwap(t.Context(), arbiter.At(`"a"`), []byte("x"))
		if got := className(err); got != c.swap {
			t.Errorf("%s: swap is %s, want %s (%v)", c.name, got, c.swap, err)
		}
		if n.Load() != 2 {
			t.Errorf("%s: %d connections for two calls", c.name, n.Load())
		}
	}
}

// A stale idle connection is where net/http would resend by itself. There is none.
// Rules: P1; F29.
func TestConnectionOfItsOwn(t *testing.T) {
	s, err := NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	hs := httptest.NewUnstartedServer(s)
	var conns atomic.Int64
	hs.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	hs.Start()
	defer hs.Close()
	r := open(t, hs.URL+"/pair")
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, _, err := r.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The counter is set before the server starts to serve the connection.
	if n := conns.Load(); n != 4 {
		t.Errorf("%d connections for four requests", n)
	}
}

// Rules: P7; F13.
func TestDefaultTimeout(t *testing.T) {
	block := make(chan struct{})
	hs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer hs.Close()
	defer close(block)
	r, err := New(Config{URL: hs.URL + "/pair", Timeout: 30 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Without a deadline of the context, these end by Config.Timeout or hang the test.
	if _, _, err := r.Read(context.Background()); arbiter.Class(err) != arbiter.ErrUnavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	err = r.CompareAndSwap(context.Background(), arbiter.Absent, nil)
	if c := arbiter.Class(err); c != arbiter.ErrUnknown && c != arbiter.ErrUnavailable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("swap: %v", err)
	}
}

// Rules: P7.
func TestNobodyListens(t *testing.T) {
	r := open(t, "http://"+refusedAddr(t)+"/pair")
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrUnavailable {
		t.Errorf("read: %v", err)
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, nil); arbiter.Class(err) != arbiter.ErrUnavailable {
		t.Errorf("swap: %v", err)
	}
}

// Rules: none (configuration).
func TestNewRefuses(t *testing.T) {
	for _, url := range []string{
		"", "pair", "/pair", "127.0.0.1:7379/pair", "ftp://host/pair", "unix:///pair", "http:///pair", "http://:80/pair",
		"http://host", "http://host/", "http://host//", "http://host/pair#x", "http://ho st/pair", "http://host:port/pair", "http://u:secret@host/%zz", "http://u:secret@host/pair",
	} {
		r, err := New(Config{URL: url})
		if arbiter.Class(err) != arbiter.ErrMisconfigured || r != nil {
			t.Errorf("%q: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the password is in %v", url, err)
		}
	}
	if _, err := New(Config{URL: "http://host/pair", Timeout: -1}); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("negative timeout: %v", err)
	}
}

// Rules: none (secrets stay out of messages).
func TestSecretsAreNotShown(t *testing.T) {
	r, err := New(Config{URL: "http://" + refusedAddr(t) + "/pair?sig=secret", Authorization: func() (string, error) { return Basic("u", "secret"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = r.Read(t.Context())
	err2 := r.CompareAndSwap(t.Context(), arbiter.Absent, nil)
	for _, s := range []string{r.String(), err.Error(), err2.Error()} {
		if strings.Contains(s, "secret") || !strings.Contains(s, "/pair") {
			t.Errorf("%s", s)
		}
	}
}

// What is sent as authorization is asked for each time; without it nothing is sent.
// Rules: none (configuration).
func TestAuthorization(t *testing.T) {
	var got []string
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNoContent)
	}))
	defer hs.Close()
	next, fail := "Bearer one", error(nil)
	r, err := New(Config{URL: hs.URL + "/pair", Authorization: func() (string, error) { return next, fail }})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Bearer one", "Basic dTpwOnc="} {
		if next = want; want != "Bearer one" {
			next = Basic("u", "p:w")
		}
		if err := r.CompareAndSwap(t.Context(), arbiter.Absent, nil); err != nil || got[len(got)-1] != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	fail = errors.New("open secret: no such file")
	_, _, err = r.Read(t.Context())
	for _, err := range []error{err, r.CompareAndSwap(t.Context(), arbiter.Absent, nil)} {
		if arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%v", err)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d requests", len(got))
	}
}
