package configmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"twok/arbiter"
)

// maxBody is above what the apiserver sends: a ConfigMap has at most 1 MiB, and each byte at most six in JSON.
const maxBody = 8 << 20

// answer is what came back for one request.
type answer struct {
	outcome
	body    []byte
	bodyErr error
	cached  string // the Age header
}

var (
	errSecondRequest = errors.New("a second request in one call was stopped")
	errGivenUp       = errors.New("the credentials came after the call had ended")
)

// gate is the innermost round tripper: it sends one request, once, and not after
// the call was given up.
type gate struct {
	transport *http.Transport
	connected atomic.Bool

	mu      sync.Mutex
	entered bool
	closed  bool
	resp    *http.Response
	err     error
	done    chan struct{} // closed when the transport has answered
}

func newGate(t *http.Transport) *gate { return &gate{transport: t, done: make(chan struct{})} }

// RoundTrip implements http.RoundTripper.
func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	g.mu.Lock()
	entered, closed := g.entered, g.closed
	g.entered = true
	g.mu.Unlock()
	switch {
	case closed:
		return nil, errGivenUp
	case entered:
		return nil, errSecondRequest
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { g.connected.Store(true) }}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	req.GetBody = nil // nothing to replay
	g.resp, g.err = g.transport.RoundTrip(req)
	close(g.done)
	return g.resp, g.err
}

// close is false if a request is on its way or was sent.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.entered {
		return false
	}
	g.closed = true
	return true
}

// send makes one request and classifies what came of it.
func (r *Register) send(ctx context.Context, method string, body []byte) (answer, verdict) {
	a := answer{outcome: outcome{method: method, name: r.name}}
	r.exchange(ctx, &a, body)
	if a.code != 0 {
		a.status = parseStatus(a.body)
	}
	return a, classify(a.outcome)
}

func (r *Register) exchange(ctx context.Context, a *answer, body []byte) {
	// Calls that wait for a credential plugin are few, however often it is asked.
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		a.err = fmt.Errorf("earlier calls wait for the credential plugin: %w", ctx.Err())
		return
	}
	acc, err := r.access()
	if err != nil {
		<-r.slots
		a.err = err
		return
	}
	g := newGate(acc.transport())
	rt, err := acc.roundTripper(g)
	if err != nil {
		<-r.slots
		a.err = err
		return
	}
	req, err := r.request(ctx, acc.base, a.method, body)
	if err != nil {
		<-r.slots
		a.err = err
		return
	}
	outer := make(chan error, 1)
	go func() {
		_, err := rt.RoundTrip(req)
		outer <- err
		<-r.slots
	}()
	select {
	case <-g.done:
	case err := <-outer:
		if g.close() { // the transport was not asked: no credentials
			a.err = err
			return
		}
	case <-ctx.Done():
		if g.close() {
			a.err = fmt.Errorf("waiting for the credential plugin: %w", ctx.Err())
			return
		}
	}
	<-g.done // the transport obeys the context
	a.entered, a.connected, a.err = true, g.connected.Load(), g.err
	if g.err != nil {
		if ctx.Err() != nil && !errors.Is(g.err, ctx.Err()) {
			a.err = fmt.Errorf("%w: %w", ctx.Err(), g.err)
		}
		return
	}
	defer g.resp.Body.Close()
	a.code, a.cached = g.resp.StatusCode, g.resp.Header.Get("Age")
	a.body, a.bodyErr = io.ReadAll(io.LimitReader(g.resp.Body, maxBody))
}

// access is load, as long as it leads to the same server as at first.
func (r *Register) access() (access, error) {
	a, err := load(r.kubeconfig)
	if err == nil && a.server() != r.server {
		err = &configError{fmt.Errorf("the kubeconfig names the server %s, and named %s at first: that would be another arbiter; "+
			"restore it, or start again if the record is to be there", a.server(), r.server)}
	}
	return a, err
}

func (r *Register) request(ctx context.Context, base *url.URL, method string, body []byte) (*http.Request, error) {
	u := base.JoinPath("api", "v1", "namespaces", r.namespace, "configmaps")
	if method != post {
		u = u.JoinPath(r.name)
	}
	if method != get {
		q := url.Values{"fieldManager": {"twok"}}
		if end, ok := ctx.Deadline(); ok {
			// A whole second more: the client's own end comes first.
			q.Set("timeout", fmt.Sprintf("%.0fs", max(math.Ceil(time.Until(end).Seconds()), 0)+1))
		}
		u.RawQuery = q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	switch method {
	case get:
		req.Body, req.ContentLength = nil, 0
	case patch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	case post:
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// describe says what happened and what to do.
func (a answer) describe(v verdict) error {
	var text string
	switch {
	case a.code != 0:
		text = fmt.Sprintf("%s answered %d %s", a.method, a.code, http.StatusText(a.code))
		if a.status.Message != "" {
			text += fmt.Sprintf(" (%s: %.300q)", a.status.Reason, a.status.Message)
		} else if body := strings.Join(strings.Fields(strings.ToValidUTF8(string(a.body[:min(len(a.body), 160)]), "?")), " "); body != "" && a.code >= 300 {
			text += fmt.Sprintf(" (%q)", body)
		}
	case a.connected:
		text = a.method + ": no answer"
	default:
		text = a.method + ": nothing was sent"
	}
	if v.remedy != "" {
		text += "; " + v.remedy
	}
	if a.err != nil {
		return fmt.Errorf("%s: %w", text, a.err)
	}
	return errors.New(text)
}

// trust refuses an answer that a cache gave.
func (a answer) trust() error {
	if a.cached != "" {
		return fmt.Errorf("%w: a cache answered (Age: %s); the apiserver must be reached directly", arbiter.ErrMisconfigured, a.cached)
	}
	return nil
}
