package configmap

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"twok/arbiter"

	"twok/arbiter/arbitertest"
)

// at is a register whose kubeconfig names server.
func at(t *testing.T, server, cluster, user string) *Register {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, kubeconfig(server, cluster, user))
	return open(t, Config{Namespace: "ns", Name: "pair", kubeconfig: path})
}

// answering is a server that gives one answer, and counts the requests of each method.
func answering(t *testing.T, answers map[string]string, codes map[string]int, header http.Header) (*Register, map[string]*atomic.Int64) {
	t.Helper()
	n := map[string]*atomic.Int64{get: {}, patch: {}, post: {}}
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/ns/configmaps") || n[r.Method] == nil {
			w.WriteHeader(http.StatusTeapot) // a stray client of somebody else's old port
			return
		}
		n[r.Method].Add(1)
		for k, v := range header {
			w.Header()[k] = v
		}
		w.WriteHeader(codes[r.Method])
		io.WriteString(w, answers[r.Method])
	}))
	t.Cleanup(hs.Close)
	return at(t, hs.URL, "", "token: t"), n
}

func statusBody(reason, kind, name string, cause ...string) string {
	s := status{Kind: "Status", Reason: reason, Message: "said " + reason}
	s.Details.Kind, s.Details.Name = kind, name
	if len(cause) == 3 {
		s.Details.Causes = append(s.Details.Causes, struct {
			Reason  string `json:"reason"`
			Field   string `json:"field"`
			Message string `json:"message"`
		}{cause[0], cause[1], cause[2]})
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a constant
	}
	return string(b)
}

func configMap(resourceVersion, data string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"ns","name":"pair","uid":"u-1","resourceVersion":%q},"data":{%s}}`, resourceVersion, data)
}

func className(err error) string {
	return map[error]string{
		nil: "applied", arbiter.ErrConflict: "conflict", arbiter.ErrUnknown: "unknown", arbiter.ErrUnavailable: "unavailable",
		arbiter.ErrForbidden: "forbidden", arbiter.ErrMisconfigured: "misconfigured",
	}[arbiter.Class(err)]
}

// The table of the package documentation, by one request each, through HTTP.
//
// Rules: P1, P7; F11, F13, F28, F29.
func TestClassify(t *testing.T) {
	ours := func(reason string, cause ...string) string { return statusBody(reason, "configmaps", "pair", cause...) }
	invalid := func(cause ...string) string { return statusBody("Invalid", "ConfigMap", "pair", cause...) }
	object := configMap("7", `"record":"x"`)
	for _, c := range []struct {
		code             int
		body             string
		patch, post, get string
	}{
		{200, object, "applied", "unknown", "value"},
		{200, configMap("7", `"record":"y"`), "unknown", "unknown", "value"},
		{200, configMap("7", `"other":"x"`), "unknown", "unknown", "absent"},
		{200, "text", "unknown", "unknown", "misconfigured"},
		{200, object + "{}", "unknown", "unknown", "misconfigured"},
		{200, strings.Replace(object, `"pair"`, `"other"`, 1), "unknown", "unknown", "misconfigured"},
		{200, strings.Replace(object, "ConfigMap", "Secret", 1), "unknown", "unknown", "misconfigured"},
		{201, object, "unknown", "applied", "misconfigured"},
		{201, "text", "unknown", "unknown", "misconfigured"},
		{202, "", "unknown", "unknown", "misconfigured"},
		{204, "", "unknown", "unknown", "misconfigured"},
		{301, "", "misconfigured", "misconfigured", "misconfigured"},
		{307, "", "misconfigured", "misconfigured", "misconfigured"},
		{400, statusBody("BadRequest", "", ""), "misconfigured", "misconfigured", "misconfigured"},
		{401, statusBody("Unauthorized", "", ""), "forbidden", "forbidden", "forbidden"},
		{403, ours("Forbidden"), "forbidden", "forbidden", "forbidden"},
		{403, ours("Forbidden", "NamespaceTerminating", "", ""), "misconfigured", "misconfigured", "misconfigured"},
		{404, ours("NotFound"), "conflict", "misconfigured", "absent"},
		{404, statusBody("NotFound", "configmaps", "other"), "misconfigured", "misconfigured", "misconfigured"},
		{404, statusBody("NotFound", "namespaces", "ns"), "misconfigured", "misconfigured", "misconfigured"},
		{404, "404 page not found", "misconfigured", "misconfigured", "misconfigured"},
		{405, statusBody("MethodNotAllowed", "", ""), "misconfigured", "misconfigured", "misconfigured"},
		{408, "", "unknown", "unknown", "unavailable"},
		{409, ours("Conflict"), "conflict", "conflict", "misconfigured"},
		{409, ours("AlreadyExists"), "conflict", "conflict", "misconfigured"},
		{409, statusBody("Conflict", "resourcequotas", "q"), "unavailable", "unavailable", "misconfigured"},
		{409, "text", "misconfigured", "misconfigured", "misconfigured"},
		{410, ours("Expired"), "misconfigured", "misconfigured", "misconfigured"},
		{413, ours("RequestEntityTooLarge"), "misconfigured", "misconfigured", "misconfigured"},
		{415, statusBody("UnsupportedMediaType", "", ""), "misconfigured", "misconfigured", "misconfigured"},
		{422, invalid("FieldValueForbidden", "data", "field is immutable when `immutable` is set"), "misconfigured", "misconfigured", "misconfigured"},
		{422, invalid("FieldValueInvalid", "metadata.uid", "field is immutable"), "conflict", "misconfigured", "misconfigured"},
		{429, statusBody("TooManyRequests", "", ""), "unavailable", "unavailable", "unavailable"},
		{500, statusBody("InternalError", "", ""), "unknown", "unknown", "unavailable"},
		{501, "", "misconfigured", "misconfigured", "misconfigured"},
		{502, "", "unknown", "unknown", "unavailable"},
		{503, statusBody("ServiceUnavailable", "", ""), "unknown", "unknown", "unavailable"},
		{504, statusBody("Timeout", "", ""), "unknown", "unknown", "unavailable"},
		{505, "", "misconfigured", "misconfigured", "misconfigured"},
	} {
		all := map[string]string{get: c.body, patch: c.body, post: c.body}
		header := http.Header{"Location": {"/elsewhere"}, "Retry-After": {"0"}}
		check := func(what, want, got string, err error, n *atomic.Int64) {
			t.Helper()
			if got != want {
				t.Errorf("%d %.60s: %s is %s, want %s (%v)", c.code, c.body, what, got, want, err)
			}
			if n.Load() != 1 {
				t.Errorf("%d: %d requests of one %s", c.code, n.Load(), what)
			}
			if err != nil && c.code >= 300 && !strings.Contains(err.Error(), fmt.Sprint(c.code)) {
				t.Errorf("%d: %s does not name the status: %v", c.code, what, err)
			}
			if err != nil && c.code >= 300 && strings.HasPrefix(c.body, "{") && !strings.Contains(err.Error(), "said ") {
				t.Errorf("%d: %s does not repeat the message: %v", c.code, what, err)
			}
		}
		r, n := answering(t, all, map[string]int{get: c.code, patch: c.code, post: c.code}, header)
		err := r.CompareAndSwap(t.Context(), arbiter.At("6@u-1"), []byte("x"))
		check("patch", c.patch, className(err), err, n[patch])
		value, v, err := r.Read(t.Context())
		got := className(err)
		switch {
		case err == nil && !v.Exists():
			got = "absent"
		case err == nil && len(value) == 1 && v.Tag() == "7@u-1":
			got = "value"
		}
		check("read", c.get, got, err, n[get])
		// A create begins with a GET: there is none, so far.
		all[get] = ours("NotFound")
		r, n = answering(t, all, map[string]int{get: 404, patch: c.code, post: c.code}, header)
		err = r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x"))
		check("create", c.post, className(err), err, n[post])
		// Or it is there without the key.
		all[get] = configMap("6", "")
		r, n = answering(t, all, map[string]int{get: 200, patch: c.code, post: c.code}, header)
		err = r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x"))
		check("create of the key", c.patch, className(err), err, n[patch])
		if n[post].Load() > 0 {
			t.Errorf("%d: a second write", c.code)
		}
	}
}

// Without a look at what there is, a create writes nothing.
//
// Rules: P1, P3; F11, F28.
func TestCreateLooksFirst(t *testing.T) {
	for _, c := range []struct {
		code       int
		body, want string
	}{
		{200, configMap("7", `"record":"x"`), "conflict"},
		{200, configMap("7", `"record":""`), "conflict"},
		{200, strings.Replace(configMap("7", ""), `"data":{}`, `"binaryData":{"record":"/w=="}`, 1), "conflict"},
		{200, configMap("", ""), "misconfigured"},
		{200, strings.Replace(configMap("7", ""), `"uid"`, `"deletionTimestamp":"2026-01-02T03:04:05Z","uid"`, 1), "misconfigured"},
		{401, "", "forbidden"}, {403, "", "forbidden"}, {404, "", "misconfigured"}, {429, "", "unavailable"}, {500, "", "unavailable"},
	} {
		r, n := answering(t, map[string]string{get: c.body}, map[string]int{get: c.code, patch: 200, post: 201}, nil)
		if err := r.CompareAndSwap(t.Context(), arbiter.Absent, []byte("x")); className(err) != c.want || n[patch].Load()+n[post].Load() > 0 {
			t.Errorf("%d %s: %v, %d writes; want %s", c.code, c.body, err, n[patch].Load()+n[post].Load(), c.want)
		}
	}
}

// Rules: P1; F11, F28.
func TestReadRefusesWhatItCannotTrust(t *testing.T) {
	long := configMap("7", `"record":"`+strings.Repeat("x", MaxValue+1)+`"`)
	for name, c := range map[string]struct {
		body, words string
		header      http.Header
	}{
		"no version":      {configMap("", `"record":"x"`), "resourceVersion", nil},
		"version 0":       {configMap("0", `"record":"x"`), "resourceVersion", nil},
		"version 07":      {configMap("07", `"record":"x"`), "resourceVersion", nil},
		"opaque version":  {configMap("a7", `"record":"x"`), "resourceVersion", nil},
		"no UID":          {strings.Replace(configMap("7", `"record":"x"`), "u-1", "", 1), "UID", nil},
		"UID with a mark": {strings.Replace(configMap("7", `"record":"x"`), "u-1", "u@1", 1), "UID", nil},
		"from a cache":    {configMap("7", `"record":"x"`), "cache", http.Header{"Age": {"0"}}},
		"too large":       {long, "65536", nil},
		"being deleted":   {strings.Replace(configMap("7", `"record":"x"`), `"uid"`, `"deletionTimestamp":"2026-01-02T03:04:05Z","uid"`, 1), "finalizers", nil},
	} {
		r, _ := answering(t, map[string]string{get: c.body}, map[string]int{get: 200}, c.header)
		value, v, err := r.Read(t.Context())
		if arbiter.Class(err) != arbiter.ErrMisconfigured || value != nil || v.Exists() || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %.20q %v %v", name, value, v, err)
		}
	}
	r, _ := answering(t, map[string]string{get: statusBody("NotFound", "configmaps", "pair")}, map[string]int{get: 404}, http.Header{"Age": {"3"}})
	if _, _, err := r.Read(t.Context()); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("absent, from a cache: %v", err)
	}
}

// Tags that the apiserver takes for "whatever is there" are conflicts and are not sent.
//
// Rules: P1; F28.
func TestNoWildcardIsSent(t *testing.T) {
	r, n := answering(t, nil, map[string]int{patch: 200, post: 200, get: 200}, nil)
	for _, tag := range []string{"", "0", "1", "@", "@u-1", "0@u-1", "00@u-1", "01@u-1", "-1@u-1", "1 @u-1", "1@", "1@u 1", "1@u@1", "x@u-1", "*", strings.Repeat("9", 21) + "@u-1"} {
		if err := r.CompareAndSwap(t.Context(), arbiter.At(tag), []byte("x")); arbiter.Class(err) != arbiter.ErrConflict {
			t.Errorf("%.40q: %v", tag, err)
		}
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, make([]byte, MaxValue+1)); arbiter.Class(err) != arbiter.ErrMisconfigured {
		t.Errorf("too large a value: %v", err)
	}
	if n[get].Load()+n[patch].Load()+n[post].Load() > 0 {
		t.Error("something was sent")
	}
}

// What is sent: the precondition, the key, nothing else; the credentials of the kubeconfig.
//
// Rules: P1; F28.
func TestWhatIsSent(t *testing.T) {
	var got *http.Request
	var body string
	hs := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r.Clone(context.Background()), string(b)
		if r.Method == get {
			w.WriteHeader(404)
			io.WriteString(w, statusBody("NotFound", "configmaps", "pair"))
		}
	}))
	hs.EnableHTTP2 = true
	hs.StartTLS()
	defer hs.Close()
	r := at(t, hs.URL+"/k8s/clusters/c1", serverCA(hs), "{username: u, password: p}")
	for _, c := range []struct {
		v                                    arbiter.Version
		value, method, path, kind, want, add string
	}{
		{arbiter.At("12@u-1"), "text\n", patch, "/pair", "application/merge-patch+json",
			`{"binaryData":{"record":null},"data":{"record":"text\n"},"metadata":{"resourceVersion":"12","uid":"u-1"}}`, ""},
		{arbiter.At("12@u-1"), "\xff", patch, "/pair", "application/merge-patch+json",
			`{"binaryData":{"record":"/w=="},"data":{"record":null},"metadata":{"resourceVersion":"12","uid":"u-1"}}`, ""},
		{arbiter.Absent, "text", post, "", "application/json",
			`{"apiVersion":"v1","data":{"record":"text"},"kind":"ConfigMap","metadata":{"name":"pair","namespace":"ns"}}`, ""},
	} {
		if err := r.CompareAndSwap(t.Context(), c.v, []byte(c.value)); arbiter.Class(err) != arbiter.ErrUnknown { // an empty 200
			t.Fatal(err)
		}
		q := got.URL.Query()
		if d, err := time.ParseDuration(q.Get("timeout")); got.Method != c.method || got.URL.Path != "/k8s/clusters/c1/api/v1/namespaces/ns/configmaps"+c.path ||
			body != c.want || got.Header.Get("Content-Type") != c.kind || q.Get("fieldManager") != "twok" || len(q) != 2 || err != nil || d < DefaultTimeout || d > DefaultTimeout+2*time.Second {
			t.Errorf("%s %s, %s, %v", got.Method, got.URL, body, got.Header)
		}
		if got.ProtoMajor != 1 || !got.Close {
			t.Errorf("%s, close %v: a connection that is used again is one on which net/http may send again", got.Proto, got.Close)
		}
		if user, password, ok := got.BasicAuth(); !ok || user != "u" || password != "p" {
			t.Errorf("%v", got.Header)
		}
	}
	if _, _, err := r.Read(t.Context()); err != nil || got.Method != get || got.URL.RawQuery != "" || got.Header.Get("Accept-Encoding") != "" {
		t.Errorf("%v, %s %s %v", err, got.Method, got.URL, got.Header)
	}
}

// No request leaves where there is no connection; and a call without an answer is
// in doubt only if its write had a connection.
//
// Rules: P1, P7; F13, F29.
func TestTransport(t *testing.T) {
	both := func(what string, r *Register, class string, words string) {
		t.Helper()
		_, _, err := r.Read(t.Context())
		err2 := r.CompareAndSwap(t.Context(), arbiter.At("1@u"), []byte("x"))
		if className(err) != class || className(err2) != class || !strings.Contains(err.Error(), words) || !strings.Contains(err2.Error(), words) {
			t.Errorf("%s:\nread %v\nswap %v\nwant %s, %q", what, err, err2, class, words)
		}
	}
	both("nobody listens", at(t, "http://"+arbitertest.FreePort(), "", "token: t"), "unavailable", "nothing was sent")
	both("no such host", at(t, "http://nowhere.invalid", "", "token: t"), "unavailable", "nothing was sent")

	block := make(chan struct{})
	hs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer hs.Close()
	defer close(block)
	slow := at(t, hs.URL, "", "token: t")
	slow.timeout = 300 * time.Millisecond
	if _, _, err := slow.Read(context.Background()); className(err) != "unavailable" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if err := slow.CompareAndSwap(context.Background(), arbiter.At("1@u"), nil); className(err) != "unknown" && className(err) != "unavailable" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("swap: %v", err)
	}

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	both("a certificate that nobody knows", at(t, secure.URL, "", "token: t"), "misconfigured", "certificate-authority")
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	both("TLS to a server without", at(t, strings.Replace(plain.URL, "http:", "https:", 1), "", "token: t"), "misconfigured", "no TLS")
}

// A second request within one call is stopped, whoever asks for it; and one that
// comes after the call was given up.
//
// Rules: P1; F29.
func TestSecondRequestIsStopped(t *testing.T) {
	var n atomic.Int64
	hs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1) }))
	defer hs.Close()
	try := func(g *gate) error {
		req, err := http.NewRequestWithContext(t.Context(), patch, hs.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := g.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	g := newGate(&http.Transport{})
	if err := errors.Join(try(g)); err != nil || g.close() {
		t.Errorf("%v, or closed after a request", err)
	}
	if err := try(g); !errors.Is(err, errSecondRequest) {
		t.Errorf("a second request: %v", err)
	}
	g = newGate(&http.Transport{})
	if !g.close() {
		t.Error("not closed")
	}
	if err := try(g); !errors.Is(err, errGivenUp) || n.Load() != 1 {
		t.Errorf("after the end: %v, %d requests", err, n.Load())
	}
}

// serverCA is the certificate of a TLS test server, as a kubeconfig has it.
func serverCA(hs *httptest.Server) string {
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hs.Certificate().Raw})
	return "certificate-authority-data: " + base64.StdEncoding.EncodeToString(b)
}

// readableFile is what a kubeconfig may name.
func readableFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}
