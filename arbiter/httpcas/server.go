package httpcas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"twok/arbiter"
)

// ErrLocked: another process serves the directory (S6).
var ErrLocked = errors.New("the directory is in use")

// Server is the embedded arbiter: an http.Handler that keeps many keys in the
// files of one directory. See the package documentation for its invariants.
type Server struct {
	dir       string
	lock      *os.File
	store     *store
	leftovers []string
	damaged   []string
	accounts  *Accounts // nil: everybody

	complaint  sync.Mutex
	complained time.Time
	errorLog   *log.Logger
}

var _ http.Handler = (*Server)(nil)

// NewServer takes the directory, which it creates if needed, and holds its lock
// until Close. The error is ErrLocked if somebody else has it. Values that
// cannot be read do not stop the others from being served: see Damaged.
func NewServer(dir string) (*Server, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the arbiter's directory %s: %w", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the arbiter's directory %s: %w", dir, err)
	}
	s := &Server{dir: dir, lock: lock, store: &store{disk: osDisk{dir}}}
	s.leftovers, s.damaged, err = s.store.scan()
	if err == nil {
		// A killed process may have renamed without syncing; nobody reads the
		// value before it is durable (S1).
		err = s.store.disk.syncDir()
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("open the arbiter's directory %s: %w", dir, err)
	}
	return s, nil
}

// Leftovers names the files that were in the directory at the start and are not
// values: writes that a kill interrupted (t.KEY; the next write of the key
// replaces it) and files that are not the arbiter's. They are never read.
func (s *Server) Leftovers() []string { return s.leftovers }

// Damaged says which values could not be read at the start, and why.
func (s *Server) Damaged() []string { return s.damaged }

// Close waits for the writes going on and releases the directory. Requests that
// come later are refused as unavailable.
func (s *Server) Close() error {
	s.store.close()
	return s.lock.Close()
}

// HTTPServer is an http.Server for s with deadlines, so that a stalled client
// holds no connection for ever. Errors of connections go to errorLog.
func (s *Server) HTTPServer(errorLog *log.Logger) *http.Server {
	s.errorLog = errorLog
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       20 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          errorLog,
	}
}

// ServeHTTP serves GET, HEAD and PUT of keys, and GET /healthz.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.Path == "/healthz" {
		s.health(w, r)
		return
	}
	if !s.permitted(w, r) {
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/")
	if err := checkKey(key); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if r.URL.EscapedPath() != r.URL.Path || r.URL.RawQuery != "" {
		refuse(w, http.StatusBadRequest, "the URL has escapes or a query; a key is a plain path")
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		s.get(w, r, key)
	case http.MethodPut:
		s.put(w, r, key)
	default:
		w.Header().Set("Allow", "GET, HEAD, PUT")
		refuse(w, http.StatusMethodNotAllowed, r.Method+" is not offered; a value is never deleted")
	}
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "/healthz is not a key")
		return
	}
	if err := s.store.usable(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "ok\n")
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, key string) {
	v, err := s.store.get(key)
	switch {
	case errors.Is(err, errNoValue):
		refuse(w, http.StatusNotFound, "no value")
	case err != nil:
		refuse(w, http.StatusInternalServerError, err.Error())
	default:
		h := w.Header()
		h.Set("ETag", etag(v))
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Length", strconv.Itoa(len(v.data)))
		if r.Method == http.MethodGet {
			w.Write(v.data) // an error is the client's to notice: the length is known
		}
	}
}

func etag(v value) string { return `"` + v.tag + `"` }

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) {
	allowed, err := precondition(r.Header)
	if err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, errNoPrecondition) {
			status = http.StatusPreconditionRequired
		}
		refuse(w, status, err.Error())
		return
	}
	for _, name := range []string{"Content-Range", "Content-Encoding"} {
		if r.Header.Get(name) != "" {
			refuse(w, http.StatusBadRequest, name+" is not supported: send the whole value as it is")
			return
		}
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxValue))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("a value has at most %d bytes", MaxValue))
			return
		}
		refuse(w, http.StatusBadRequest, "the request broke off: "+err.Error())
		return
	}
	v, created, err := s.store.put(key, data, allowed)
	var maybe *applyError
	switch {
	case errors.Is(err, errConflict):
		if v.tag != "" {
			w.Header().Set("ETag", etag(v))
		}
		refuse(w, http.StatusPreconditionFailed, "the value is not at that version")
	case errors.As(err, &maybe):
		refuse(w, http.StatusInternalServerError, err.Error())
	case err != nil:
		w.Header().Set(HeaderApplied, "no")
		refuse(w, http.StatusServiceUnavailable, err.Error())
	default:
		w.Header().Set("ETag", etag(v))
		if created {
			w.WriteHeader(http.StatusCreated)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
	}
}

var errNoPrecondition = errors.New("a PUT needs If-Match: \"tag\" or If-None-Match: *")

// precondition reads exactly one of If-Match: "tag" and If-None-Match: *. It is
// stricter than RFC 9110: no lists, and no If-Match: *, which would overwrite
// whatever is there.
func precondition(h http.Header) (func(value, bool) bool, error) {
	match, none := h.Values("If-Match"), h.Values("If-None-Match")
	switch {
	case len(match)+len(none) == 0:
		return nil, errNoPrecondition
	case len(match)+len(none) > 1:
		return nil, errors.New("a PUT needs one precondition, not several")
	case len(none) == 1 && none[0] != "*":
		return nil, fmt.Errorf("If-None-Match: %.80s: only * is supported", none[0])
	case len(none) == 1:
		return func(_ value, exists bool) bool { return !exists }, nil
	}
	if err := arbiter.StrongETag(match[0]); err != nil {
		return nil, fmt.Errorf("If-Match: %.80s: %w; one strong tag is needed", match[0], err)
	}
	return func(v value, exists bool) bool { return exists && etag(v) == match[0] }, nil
}

// refuse answers with a line of text for people.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// Serve serves l until ctx ends, then lets the requests going on finish, for at
// most grace, and closes l and s. nil means that nothing was cut off.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration, errorLog *log.Logger) error {
	hs := s.HTTPServer(errorLog)
	done := make(chan error, 1)
	go func() { done <- hs.Serve(l) }()
	var err error
	select {
	case err = <-done: // the listener failed
		hs.Close()
	case <-ctx.Done():
		deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if err = hs.Shutdown(deadline); err != nil {
			err = fmt.Errorf("stop the arbiter: requests were cut off after %v: %w", grace, err)
			hs.Close()
		}
		<-done
	}
	return errors.Join(err, s.Close())
}
