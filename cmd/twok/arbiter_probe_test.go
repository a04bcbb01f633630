package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"twok/arbiter/httpcas"
	"twok/internal/probe"
)

// checksThenWrites is an HTTP store that answers every sequential check rightly and is not atomic.
type checksThenWrites struct {
	mu    sync.Mutex
	tag   int
	value []byte
}

func (s *checksThenWrites) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	tag, value := s.tag, s.value
	s.mu.Unlock()
	quoted := strconv.Quote(strconv.Itoa(tag))
	switch {
	case r.Method == http.MethodGet && tag == 0:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", quoted)
		w.Header().Set("Content-Length", strconv.Itoa(len(value)))
		_, _ = w.Write(value)
	case r.Header.Get("If-None-Match") == "*" && tag != 0, r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != quoted:
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		time.Sleep(2 * time.Millisecond)
		s.mu.Lock()
		s.tag, s.value = s.tag+1, b
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	}
}

// Rules: A1, P1, P11.
func TestProbe(t *testing.T) {
	srv, err := httpcas.NewServer(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	good := httptest.NewServer(srv)
	bad := httptest.NewServer(&checksThenWrites{})
	t.Cleanup(func() {
		good.Close()
		bad.Close()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	out, errs, code := twok(t, "arbiter", "probe", "--arbiter", good.URL+"/pair", "--claim-after", "1ms")
	if code != 0 || !strings.Contains(out, "nothing speaks against") || !strings.Contains(out, "/pair.probe.cli") || !strings.Contains(out, "warning") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if _, _, code := twok(t, "arbiter", "show", "--arbiter", good.URL+"/pair"); code != exitAbsent {
		t.Errorf("the record: exit %d", code)
	}
	if _, errs, code := twok(t, "arbiter", "probe", "--rounds", "1", good.URL+"/argument"); code != 0 {
		t.Errorf("the URL as an argument: exit %d: %s", code, errs)
	}
	if _, errs, code := twok(t, "arbiter", "probe"); code != exitUsage {
		t.Errorf("no URL: exit %d: %s", code, errs)
	}
	out, errs, code = twok(t, "arbiter", "probe", "--arbiter", bad.URL+"/pair", "--json")
	var rep probe.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil || code != exitUntrusted || rep.Problem == nil || rep.Problem.Fault != probe.TwoWinners {
		t.Errorf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	if !strings.Contains(errs, "two-winners") || !strings.Contains(errs, "\nhint: ") {
		t.Errorf("stderr: %s", errs)
	}
	if out, _, code = twok(t, "arbiter", "probe", "--arbiter", bad.URL+"/other"); code != exitUntrusted || !strings.Contains(out, "do not use this store") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if _, errs, code = twok(t, "arbiter", "probe", "--arbiter", "http://127.0.0.1:1/pair"); code != exitUnavailable {
		t.Errorf("nobody listens: exit %d: %s", code, errs)
	}
	for _, args := range []string{"--as UPPER", "--as", "--clients 1", "--rounds 0", "extra"} {
		if _, errs, code := twok(t, append([]string{"arbiter", "probe", "--arbiter", good.URL + "/pair"}, strings.Fields(args)...)...); code != exitUsage {
			t.Errorf("%s: exit %d: %s", args, code, errs)
		}
	}
}

// Rules: none (a URL).
func TestBesideRecord(t *testing.T) {
	for url, want := range map[string]string{
		"http://h:1/a/b":                         "http://h:1/a/b.probe.x",
		"s3://bucket/key?region=r&endpoint=http": "s3://bucket/key.probe.x?region=r&endpoint=http",
		"etcd://a:1,b:2/key":                     "etcd://a:1,b:2/key.probe.x",
	} {
		if got := besideRecord(url, ".probe.x"); got != want {
			t.Errorf("%s: %s", url, got)
		}
	}
}
