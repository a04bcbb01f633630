package httpcas

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"twok/arbiter"
	"twok/arbiter/arbitertest"
)

// Tags that a server might take for "any", or that would break the header, are
// conflicts and are not sent.
// Rules: P1; F28.
func TestNoWildcardIsSent(t *testing.T) {
	r, n := answering(t, 204, nil, "")
	for _, tag := range []string{"", "*", `"*`, `""`, "abc", `W/"a"`, `"a", "b"`, `"a", *`, "\"a\r\nX: y\"", `"` + strings.Repeat("x", 2000) + `"`} {
		if err := r.CompareAndSwap(t.Context(), arbiter.At(tag), []byte("x")); arbiter.Class(err) != arbiter.ErrConflict {
			t.Errorf("%.40q: %v", tag, err)
		}
	}
	if n.Load() != 0 {
		t.Errorf("%d requests were sent", n.Load())
	}
	if err := r.CompareAndSwap(t.Context(), arbiter.Absent, make([]byte, MaxValue+1)); arbiter.Class(err) != arbiter.ErrMisconfigured || n.Load() != 0 {
		t.Errorf("too large a value: %v, %d requests", err, n.Load())
	}
}

// badStore is a small HTTP store with one fault.
type badStore struct {
	fault string
	mu    sync.Mutex
	value []byte // nil: absent
	rev   int
	prev  []byte // the value before
}

const (
	ignores       = "ignores preconditions"           // nginx, s3rver
	ignoresMatch  = "ignores If-Match only"           //
	ignoresNone   = "ignores If-None-Match only"      //
	sequential    = "checks, then writes"             // right for one client at a time
	weak          = "weak ETags"                      //
	mtimeTags     = "ETags of coarse time and size"   // nginx
	acceptsAny    = "412 after applying"              // a gateway that retries
	staleCache    = "a cache that hides its age"      //
	truncates     = "a GET during an overwrite tears" //
	redirects     = "redirects the PUT"               //
	emptyIsAbsent = "404 for an empty value"          //
	none          = "no fault"                        // the control
)

func (s *badStore) tag() string {
	switch s.fault {
	case weak:
		return fmt.Sprintf(`W/"%d"`, s.rev)
	case mtimeTags:
		return fmt.Sprintf(`"%d"`, len(s.value))
	case staleCache:
		return fmt.Sprintf(`"%x"`, sha256.Sum256(s.value))
	}
	return fmt.Sprintf(`"%d"`, s.rev)
}

func (s *badStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet {
		s.get(w)
		return
	}
	match, noneMatch := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	if s.fault == ignores || s.fault == ignoresMatch {
		match = ""
	}
	if s.fault == ignores || s.fault == ignoresNone {
		noneMatch = ""
	}
	refused := match != "" && (s.value == nil || s.tag() != match) || noneMatch != "" && s.value != nil
	if s.fault == sequential {
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.mu.Lock()
	}
	switch {
	case refused:
		w.WriteHeader(http.StatusPreconditionFailed)
	case s.fault == redirects:
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	default:
		s.prev, s.value = s.value, append([]byte{}, body...)
		s.rev++
		if s.fault == acceptsAny {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *badStore) get(w http.ResponseWriter) {
	value := s.value
	if s.fault == staleCache && s.prev != nil && s.rev%2 == 0 {
		value = s.prev
	}
	if value == nil || s.fault == emptyIsAbsent && len(value) == 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if s.fault == truncates && s.prev != nil && s.rev%3 == 0 {
		value = value[:len(value)/2]
	}
	w.Header().Set("ETag", s.tag())
	w.Write(value)
}

// Stores that the facts of the field describe are refused by the suite, each by
// the cases named; a right one of the same make passes.
// Rules: P1; F28, F29.
func TestSuiteBitesOverHTTP(t *testing.T) {
	for _, c := range []struct {
		fault  string
		caught []string
	}{
		{none, nil},
		{ignores, []string{"create and read", "stale version", "one creator of many", "one winner of many", "no lost update in a storm"}},
		{ignoresMatch, []string{"stale version", "one winner of many"}},
		{ignoresNone, []string{"create and read", "one creator of many"}},
		{sequential, []string{"one creator of many", "one winner of many", "no lost update in a storm"}},
		{weak, []string{"create and read"}},
		{mtimeTags, []string{"ABA", "stale version"}},
		{acceptsAny, []string{"create and read"}},
		{staleCache, []string{"read your write from a second client"}},
		{truncates, []string{"no torn read in a storm", "read your write from a second client"}},
		{redirects, []string{"create and read"}},
		{emptyIsAbsent, []string{"empty is not absent"}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			var failed []string
			for _, kase := range arbitertest.Cases() {
				err := kase.Run(func() (arbitertest.Fixture, error) { return badFixture(c.fault), nil })
				var cannot *arbitertest.Cannot
				if err != nil && !errors.As(err, &cannot) {
					failed = append(failed, kase.Name)
					t.Logf("%s: %v", kase.Name, err)
				}
			}
			for _, want := range c.caught {
				if !slices.Contains(failed, want) {
					t.Errorf("not caught by %q, but by %q", want, failed)
				}
			}
			if c.caught == nil && failed != nil {
				t.Errorf("a right store failed %q", failed)
			}
		})
	}
}

func badFixture(fault string) arbitertest.Fixture {
	s := &badStore{fault: fault}
	hs := httptest.NewServer(s)
	via := func(addr string) (arbiter.Register, error) { return New(Config{URL: "http://" + addr + "/pair"}) }
	addr := hs.Listener.Addr().String()
	return arbitertest.Fixture{
		Open:    func() (arbiter.Register, error) { return via(addr) },
		OpenVia: via,
		Addr:    addr,
		Put: func(v []byte) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.value = append([]byte{}, v...)
			s.rev++
			return nil
		},
		Cannot: map[arbitertest.Ability]string{arbitertest.CanForbid: "it has no access control"},
		Close:  hs.Close,
	}
}
