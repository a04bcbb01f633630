package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
	"twok/internal/etcdproc"
)

// hungEtcd is one whose files are on a disk that hangs, until it is let go.
type hungEtcd struct {
	silentEtcd
	mu sync.Mutex // held: the disk hangs
}

func (e *hungEtcd) Process() etcdproc.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.silentEtcd.Process()
}

func (e *hungEtcd) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// An agent that hangs does not go on saying what it saw last: neither 200 nor armed. When it can go on, it says what it sees.
//
// Rules: P11; F13.
func TestHungAgentSaysSo(t *testing.T) {
	before := stuckAfter
	stuckAfter = 300 * time.Millisecond
	defer func() { stuckAfter = before }()
	record := arbitertest.NewMemory()
	e := &hungEtcd{}
	a, err := New(Config{
		DataDir: t.TempDir(), ClientURL: "http://127.0.0.1:1", PeerURL: "http://127.0.0.1:1", Etcd: e,
		Arbiter: record.Client(), Scratch: func(string) (arbiter.Register, error) { return record.Client(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	until := func(what string, ok func(code int, st Status) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/health", nil))
			var st Status
			if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil {
				t.Fatal(err)
			}
			if ok(w.Code, st) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: not so: %d, %+v", what, w.Code, st)
			}
		}
	}
	until("it runs", func(_ int, st Status) bool { return st.Reason == "etcd-down" })
	st := *a.status.Load()
	st.Armed, st.Unprotected, st.Reason = true, false, "none" // as in a whole pair
	e.mu.Lock()
	a.status.Store(&st)
	until("it says that it hangs", func(code int, st Status) bool {
		return code == http.StatusServiceUnavailable && !st.Armed && st.Unprotected && st.Reason == reasonStuck && st.Remedy != ""
	})
	e.mu.Unlock()
	until("it goes on", func(_ int, st Status) bool { return st.Reason == "etcd-down" })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
