package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"twok/internal/lab"
)

// looseStore is an HTTP store that answers every check in a row rightly and, while it is loose, takes several of
// the swaps that come at the same time.
type looseStore struct {
	loose  atomic.Bool
	mu     sync.Mutex
	values map[string]held
	tag    int
}

type held struct {
	tag   string
	value []byte
}

func (s *looseStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, there := s.values[r.URL.Path]
	switch {
	case r.Method == http.MethodGet && !there:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", v.tag)
		w.Header().Set("Content-Length", strconv.Itoa(len(v.value)))
		_, _ = w.Write(v.value) // the client's loss
	case there && r.Header.Get("If-Match") != v.tag:
		w.WriteHeader(http.StatusPreconditionFailed)
	case !there && r.Header.Get("If-None-Match") != "*":
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		if s.loose.Load() {
			s.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			s.mu.Lock()
		}
		s.tag++
		s.values[r.URL.Path] = held{strconv.Quote(strconv.Itoa(s.tag)), b}
		w.WriteHeader(http.StatusNoContent)
	}
}

// A pair on a store that is not atomic does not arm: no record, no token, and a cut stops nothing but the writes; etcd
// is not stopped for it. On a store that is, it arms, and an agent that starts while the store is away trusts
// what passed before.
//
// Rules: A1, P1, P11; F28.
func TestStoreFailsItsProbe(t *testing.T) {
	t.Parallel()
	store := &looseStore{values: map[string]held{}}
	store.loose.Store(true)
	srv := httptest.NewServer(store)
	t.Cleanup(srv.Close)
	p := prepare(t, "3.6", func(c *lab.Config) {
		c.Arbiter = srv.URL + "/pair"
		c.CutArbiter = false
	})
	p.must(p.Start(p.within()))
	for _, s := range lab.Sites {
		p.reason(s, "store-untrusted")
	}
	a, b := p.pids()
	p.CutLink()
	p.steady("both stay unarmed and their etcds run", 4*time.Second, func(context.Context) error {
		if x, y := p.pids(); x != a || y != b {
			return fmt.Errorf("etcds %d and %d, they were %d and %d", x, y, a, b)
		}
		store.mu.Lock()
		defer store.mu.Unlock()
		if _, there := store.values["/pair"]; there {
			return errors.New("there is a record")
		}
		return nil
	})
	p.HealLink()
	store.loose.Store(false)
	for _, s := range lab.Sites { // the next probe would come within a minute
		p.restart(s, "")
	}
	p.whole()
	p.write()
	p.written("a write in the pair")
	p.CutLink()
	p.written("a write by the survivor")
	p.HealLink()
	p.wholeAndAudited()
	for _, s := range lab.Sites {
		if n := len(p.agentLines(s)); n == 0 {
			t.Errorf("%s: no log", s)
		}
	}
}
