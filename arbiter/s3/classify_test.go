package s3

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"twok/arbiter"

	"twok/arbiter/arbitertest"
)

func className(err error) string {
	switch arbiter.Class(err) {
	case nil:
		return "applied"
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
	return at(t, hs.URL), &n
}

func at(t *testing.T, endpoint string) *Register {
	return open(t, Config{Bucket: bucket, Key: "pair", Endpoint: endpoint, PathStyle: true, credentials: keys("k", "s")})
}

func xml(code string) string {
	return `<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + code + `</Code><Message>words</Message></Error>`
}

// Every answer has its class, as the table of the package documentation says, and
// is one request; the SDK is asked for five (AWS_MAX_ATTEMPTS).
// Rules: P1; F11, F29, F30.
func TestStatusTable(t *testing.T) {
	const table = `
		200 -                                  applied       applied       value
		201 -                                  unknown       unknown       misconfigured
		202 -                                  unknown       unknown       misconfigured
		204 -                                  unknown       unknown       misconfigured
		206 -                                  unknown       unknown       misconfigured
		301 PermanentRedirect                  misconfigured misconfigured misconfigured
		302 -                                  misconfigured misconfigured misconfigured
		304 -                                  misconfigured misconfigured misconfigured
		307 TemporaryRedirect                  misconfigured misconfigured misconfigured
		308 -                                  misconfigured misconfigured misconfigured
		400 AuthorizationHeaderMalformed       misconfigured misconfigured misconfigured
		400 IllegalLocationConstraintException misconfigured misconfigured misconfigured
		400 RequestExpired                     misconfigured misconfigured misconfigured
		400 ExpiredToken                       forbidden     forbidden     forbidden
		400 InvalidToken                       forbidden     forbidden     forbidden
		400 TokenRefreshRequired               forbidden     forbidden     forbidden
		400 RequestTimeout                     unknown       unknown       unavailable
		400 BadDigest                          unavailable   unavailable   unavailable
		400 XAmzContentSHA256Mismatch          unavailable   unavailable   unavailable
		400 IncompleteBody                     unavailable   unavailable   unavailable
		400 InvalidArgument                    misconfigured misconfigured misconfigured
		400 -                                  misconfigured misconfigured misconfigured
		401 -                                  forbidden     forbidden     forbidden
		403 AccessDenied                       forbidden     forbidden     forbidden
		403 SignatureDoesNotMatch              forbidden     forbidden     forbidden
		403 InvalidAccessKeyId                 forbidden     forbidden     forbidden
		403 RequestTimeTooSkewed               misconfigured misconfigured misconfigured
		403 -                                  forbidden     forbidden     forbidden
		404 NoSuchKey                          conflict      misconfigured absent
		404 XAdminUserNotFound                 forbidden     forbidden     forbidden
		404 NoSuchBucket                       misconfigured misconfigured misconfigured
		404 -                                  misconfigured misconfigured misconfigured
		405 MethodNotAllowed                   misconfigured misconfigured misconfigured
		408 -                                  unknown       unknown       unavailable
		409 ConditionalRequestConflict         conflict      conflict      misconfigured
		409 OperationAborted                   conflict      conflict      misconfigured
		409 -                                  conflict      conflict      misconfigured
		411 MissingContentLength               misconfigured misconfigured misconfigured
		412 PreconditionFailed                 conflict      conflict      misconfigured
		412 -                                  conflict      conflict      misconfigured
		413 EntityTooLarge                     misconfigured misconfigured misconfigured
		423 -                                  unavailable   unavailable   unavailable
		429 SlowDown                           unavailable   unavailable   unavailable
		500 InternalError                      unknown       unknown       unavailable
		500 NoSuchBucket                       unknown       unknown       unavailable
		500 AccessDenied                       unknown       unknown       unavailable
		501 NotImplemented                     misconfigured misconfigured misconfigured
		502 -                                  unknown       unknown       unavailable
		503 SlowDown                           unknown       unknown       unavailable
		503 ServiceUnavailable                 unknown       unknown       unavailable
		504 -                                  unknown       unknown       unavailable
		505 -                                  misconfigured misconfigured misconfigured
		507 -                                  unknown       unknown       unavailable`
	for line := range strings.Lines(strings.TrimSpace(table)) {
		var status int
		var code, update, create, read string
		if _, err := fmt.Sscan(line, &status, &code, &update, &create, &read); err != nil {
			t.Fatal(err)
		}
		body := "text"
		if code != "-" {
			body = xml(code)
		}
		if status == 204 || status == 304 {
			body = ""
		}
		r, n := answering(t, status, http.Header{"Etag": {`"t"`}, "Location": {"/elsewhere"}}, body)
		check := func(what, want, got string, err error) {
			t.Helper()
			if got != want {
				t.Errorf("%d %s: %s is %s, want %s (%v)", status, code, what, got, want, err)
			}
			if n.Swap(0) != 1 {
				t.Errorf("%d %s: %s was not one request", status, code, what)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprint(status)) || err != nil && code != "-" && !strings.Contains(err.Error(), code) {
				t.Errorf("%d %s: %s does not name the status and the code: %v", status, code, what, err)
			}
		}
		err := r.CompareAndSwap(t.Context(), arbiter.At(`"t"`), []byte("x"))
		check("update", update, className(err), err)
		err = r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x"))
		check("create", create, className(err), err)
		value, v, err := r.Read(t.Context())
		got := className(err)
		switch {
		case err == nil && !v.Exists():
			got = "absent"
		case err == nil && string(value) == body:
			got = "value"
		}
		check("read", read, got, err)
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
	r, _ := answering(t, 404, http.Header{"Age": {"3"}}, xml("NoSuchKey"))
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("absent, from a cache: %v", err)
	}
	r, _ = answering(t, 200, http.Header{"Etag": {`"a"`}}, strings.Repeat("x", MaxValue+1))
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("too large: %v", err)
	}
}

// Tags that a store might take for "any", or that would break the header, are
// conflicts and are not sent.
// Rules: P1; F28.
func TestNoWildcardIsSent(t *testing.T) {
	r, n := answering(t, 200, nil, "")
	for _, tag := range []string{"", "*", `"*`, `""`, "abc", `W/"a"`, `"a", "b"`, `"a", *`, "\"a\r\nX: y\"", `"` + strings.Repeat("x", 2000) + `"`} {
		if err := r.CompareAndSwap(t.Context(), arbiter.At(tag), []byte("x")); arbiter.Class(err) != arbiter.ErrConflict {
			t.Errorf("%.40q: %v", tag, err)
		}
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, make([]byte, MaxValue+1)); arbiter.Class(err) != arbiter.ErrMisconfigured || n.Load() != 0 {
		t.Errorf("too large a value: %v, %d requests", err, n.Load())
	}
}

// A value with the ETag of another one is read again; where it never fits, the
// store's ETags are no MD5 and the second read settles it.
// Rules: P1; F28.
func TestTornPair(t *testing.T) {
	sum := func(s string) string { return fmt.Sprintf(`"%x"`, md5.Sum([]byte(s))) }
	for _, c := range []struct {
		name    string
		answers [][2]string // tag, value; the last one is repeated
		reads   int64
		want    string // the value; "" is unavailable
	}{
		{"fits", [][2]string{{sum("a"), "a"}}, 1, "a"},
		{"no MD5", [][2]string{{`"1"`, "a"}}, 1, "a"},
		{"old tag, new value", [][2]string{{sum("a"), "b"}, {sum("b"), "b"}}, 2, "b"},
		{"new tag, old value", [][2]string{{sum("b"), "a"}, {sum("b"), "b"}}, 2, "b"},
		{"encrypted", [][2]string{{sum("x"), "a"}}, 2, "a"},
		{"encrypted, overwritten", [][2]string{{sum("x"), "a"}, {sum("y"), "b"}}, 3, "b"},
		{"torn for ever", [][2]string{{sum("a"), "b"}, {sum("b"), "c"}, {sum("c"), "d"}, {sum("d"), "e"}, {sum("e"), "e"}}, 4, ""},
		{"gone meanwhile", [][2]string{{sum("a"), "b"}, {"", ""}}, 2, "absent"},
	} {
		var n atomic.Int64
		hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a := c.answers[min(int(n.Add(1)), len(c.answers))-1]
			if a[0] == "" {
				w.WriteHeader(404)
				io.WriteString(w, xml("NoSuchKey"))
				return
			}
			w.Header().Set("ETag", a[0])
			io.WriteString(w, a[1])
		}))
		value, v, err := at(t, hs.URL).Read(t.Context())
		hs.Close()
		got := string(value)
		if err == nil && !v.Exists() {
			got = "absent"
		}
		if got != c.want || n.Load() != c.reads || (err != nil) != (c.want == "") || err != nil && arbiter.Class(err) != arbiter.ErrUnavailable {
			t.Errorf("%s: %q after %d reads, %v; want %q after %d", c.name, got, n.Load(), err, c.want, c.reads)
		}
	}
}

// What is sent: exactly one precondition, the bare bytes, signed with their hash.
// Rules: P1; F28.
func TestWhatIsSent(t *testing.T) {
	var got *http.Request
	var body []byte
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, body = r.Clone(context.Background()), nil
		body, _ = io.ReadAll(r.Body)
	}))
	defer hs.Close()
	r := at(t, hs.URL)
	value := "0\r\n\r\nvalue"
	for _, v := range []arbiter.Version{arbiter.Absent, arbiter.At(`"tag"`)} {
		if err := r.CompareAndSwap(t.Context(), v, []byte(value)); err != nil {
			t.Fatal(err)
		}
		h := got.Header
		wantMatch, wantNone := "", "*"
		if v.Exists() {
			wantMatch, wantNone = `"tag"`, ""
		}
		if got.Method != "PUT" || got.URL.Path != "/arbiter/pair" || string(body) != value || got.ContentLength != int64(len(value)) ||
			h.Get("If-Match") != wantMatch || h.Get("If-None-Match") != wantNone {
			t.Errorf("%s %s, %q, %v", got.Method, got.URL, body, h)
		}
		for name := range h {
			if l := strings.ToLower(name); strings.Contains(l, "checksum") || strings.Contains(l, "trailer") || l == "content-encoding" || l == "expect" {
				t.Errorf("header %s: %q", name, h[name])
			}
		}
		if len(h.Get("X-Amz-Content-Sha256")) != 64 || !strings.Contains(h.Get("Authorization"), "/us-east-1/s3/") {
			t.Errorf("%v", h)
		}
	}
}

// No request leaves where there is no connection, or no credentials; and a call
// without an answer is in doubt only if its PUT had a connection.
// Rules: P1, P7; F13, F29.
func TestTransport(t *testing.T) {
	both := func(what string, r *Register, read, swap string, words string) {
		t.Helper()
		_, _, err := r.Read(t.Context())
		err2 := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x"))
		if className(err) != read || className(err2) != swap || !strings.Contains(err.Error(), words) || !strings.Contains(err2.Error(), words) {
			t.Errorf("%s:\nread %v\nswap %v\nwant %s, %s, %q", what, err, err2, read, swap, words)
		}
	}
	both("nobody listens", at(t, "http://"+arbitertest.FreePort()), "unavailable", "unavailable", "nothing was sent")
	both("no such host", at(t, "http://nowhere.invalid"), "unavailable", "unavailable", "nothing was sent")
	none := open(t, Config{Bucket: bucket, Key: "pair", Endpoint: "http://" + arbitertest.FreePort(), PathStyle: true})
	both("no credentials", none, "misconfigured", "misconfigured", "AWS_PROFILE")

	block := make(chan struct{})
	hs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer hs.Close()
	defer close(block)
	slow := at(t, hs.URL)
	slow.timeout = 50 * time.Millisecond
	if _, _, err := slow.Read(context.Background()); className(err) != "unavailable" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	err := slow.CompareAndSwap(context.Background(), arbiter.Absent, nil)
	if c := className(err); c != "unknown" && c != "unavailable" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("swap: %v", err)
	}

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it sees handshakes that end
	secure.StartTLS()
	defer secure.Close()
	both("a certificate that nobody knows", at(t, secure.URL), "misconfigured", "misconfigured", "AWS_CA_BUNDLE")
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	both("TLS to a server without", at(t, strings.Replace(plain.URL, "http:", "https:", 1)), "misconfigured", "misconfigured", "no TLS")
}

// A stale idle connection is where net/http would resend by itself. There is none.
// Rules: P1; F29.
func TestConnectionOfItsOwn(t *testing.T) {
	var conns, requests atomic.Int64
	hs := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		io.Copy(io.Discard, r.Body)
		w.Header().Set("ETag", `"t"`)
	}))
	hs.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	hs.Start()
	defer hs.Close()
	r := at(t, hs.URL)
	for range 3 {
		if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if conns.Load() != 6 || requests.Load() != 6 {
		t.Errorf("%d connections for %d requests", conns.Load(), requests.Load())
	}
}

// A second request within one call is stopped, whoever asks for it.
// Rules: P1; F29.
func TestSecondRequestIsStopped(t *testing.T) {
	var n atomic.Int64
	hs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1) }))
	defer hs.Close()
	h := newHTTPClient(nil)
	ctx, _ := withCall(t.Context())
	for i := range 3 {
		req, err := http.NewRequestWithContext(ctx, "PUT", hs.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.Do(req)
		if (err == nil) != (i == 0) || i > 0 && !errors.Is(err, errSecondRequest) {
			t.Errorf("request %d: %v", i, err)
		}
		if err == nil {
			resp.Body.Close()
		}
	}
	if n.Load() != 1 {
		t.Errorf("%d requests", n.Load())
	}
}

// Rules: none (configuration).
func TestNewRefuses(t *testing.T) {
	good := Config{Bucket: bucket, Key: "pair", Region: "eu-central-1"}
	if r := open(t, good); r.String() != "s3://arbiter/pair" {
		t.Errorf("%v", r)
	}
	for name, change := range map[string]func(*Config){
		"no bucket":            func(c *Config) { c.Bucket = "" },
		"bucket in upper case": func(c *Config) { c.Bucket = "Arbiter" },
		"bucket is an ARN":     func(c *Config) { c.Bucket = "arn:aws:s3:::x" },
		"short bucket":         func(c *Config) { c.Bucket = "ab" },
		"directory bucket":     func(c *Config) { c.Bucket = "x--use1-az4--x-s3" },
		"no key":               func(c *Config) { c.Key = "" },
		"key with dots":        func(c *Config) { c.Key = "a/../b" },
		"empty segment":        func(c *Config) { c.Key = "a//b" },
		"control character":    func(c *Config) { c.Key = "a\nb" },
		"long key":             func(c *Config) { c.Key = strings.Repeat("k", 901) },
		"no region":            func(c *Config) { c.Region = "" },
		"endpoint":             func(c *Config) { c.Endpoint = "host:9000" },
		"endpoint with user":   func(c *Config) { c.Endpoint = "http://u:secret@host" },
		"endpoint with query":  func(c *Config) { c.Endpoint = "http://host?x=y" },
		"timeout":              func(c *Config) { c.Timeout = -1 },
	} {
		cfg := good
		change(&cfg)
		r, err := New(cfg)
		if arbiter.Class(err) != arbiter.ErrMisconfigured || r != nil {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the password is in %v", name, err)
		}
	}
	t.Setenv("AWS_PROFILE", "none")
	if _, err := New(good); arbiter.Class(err) != arbiter.ErrMisconfigured || !strings.Contains(err.Error(), "AWS_PROFILE") {
		t.Errorf("a profile that does not exist: %v", err)
	}
}

// The chain's own places serve: environment, a profile's region and endpoint.
// Rules: none (configuration).
func TestChain(t *testing.T) {
	var got http.Header
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
	}))
	defer hs.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDCHAIN")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	t.Setenv("AWS_SESSION_TOKEN", "token")
	t.Setenv("AWS_REGION", "eu-north-1")
	t.Setenv("AWS_ENDPOINT_URL_S3", hs.URL)
	r := open(t, Config{Bucket: bucket, Key: "pair", PathStyle: true})
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if a := got.Get("Authorization"); !strings.Contains(a, "AKIDCHAIN/") || !strings.Contains(a, "/eu-north-1/s3/") || got.Get("X-Amz-Security-Token") != "token" {
		t.Errorf("%v", got)
	}
}
