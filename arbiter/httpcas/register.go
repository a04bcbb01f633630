package httpcas

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"twok/arbiter"
)

const (
	// DefaultTimeout bounds a call whose context has no earlier deadline.
	DefaultTimeout = 5 * time.Second
	// MaxValue is the largest value in bytes, of Register and Server.
	MaxValue = 64 << 10

	// HeaderApplied with the value "no" is how Server marks a 503 that did nothing.
	HeaderApplied = "Twok-Applied"
)

// Config of a Register.
type Config struct {
	// URL of the value: http or https, with a path. A user in it is refused.
	URL string
	// TLS of an https URL; nil trusts the system's authorities.
	TLS *tls.Config
	// Roots are the authorities of an https URL, asked for each connection, so that a changed file is
	// noticed. nil: those of TLS.
	Roots func() *x509.CertPool
	// Authorization returns the value of that header ("Basic …", "Bearer …"), and
	// is asked for each request, so that a changed file is noticed. nil: none is sent.
	Authorization func() (string, error)
	// Timeout of one call; 0 is DefaultTimeout.
	Timeout time.Duration
}

// Register is an arbiter.Register; see the package documentation.
type Register struct {
	url     string
	auth    func() (string, error)
	shown   string // for messages: no query
	timeout time.Duration
	client  *http.Client
}

var _ arbiter.Register = (*Register)(nil)

// New checks the configuration and sends nothing. Its error is ErrMisconfigured.
func New(cfg Config) (*Register, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		// url.Error repeats the URL, and with it the password.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("the arbiter's URL: %w: %w", arbiter.ErrMisconfigured, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("the arbiter's URL %s: %w: scheme %q, want http or https", shown(u), arbiter.ErrMisconfigured, u.Scheme)
	case u.Hostname() == "":
		return nil, fmt.Errorf("the arbiter's URL %s: %w: no host", shown(u), arbiter.ErrMisconfigured)
	case strings.Trim(u.Path, "/") == "":
		return nil, fmt.Errorf("the arbiter's URL %s: %w: no path; it names the record, for example %s/my-pair",
			shown(u), arbiter.ErrMisconfigured, strings.TrimRight(shown(u), "/"))
	case u.Fragment != "":
		return nil, fmt.Errorf("the arbiter's URL %s: %w: it has a fragment (#%s), which is never sent", shown(u), arbiter.ErrMisconfigured, u.Fragment)
	case u.User != nil:
		return nil, fmt.Errorf("the arbiter's URL %s: %w: it holds a user; set TWOK_ARBITER_USER and TWOK_ARBITER_PASSWORD_FILE instead", shown(u), arbiter.ErrMisconfigured)
	case cfg.TLS != nil && u.Scheme != "https":
		return nil, fmt.Errorf("the arbiter's URL %s: %w: certificates are set and the URL is not https", shown(u), arbiter.ErrMisconfigured)
	case cfg.Timeout < 0:
		return nil, fmt.Errorf("the arbiter's timeout: %w: %v is negative", arbiter.ErrMisconfigured, cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: cfg.Timeout}
	var dialTLS func(ctx context.Context, network, addr string) (net.Conn, error)
	if cfg.Roots != nil {
		dialTLS = func(ctx context.Context, network, addr string) (net.Conn, error) {
			d := tls.Dialer{NetDialer: dialer, Config: cfg.TLS.Clone()}
			if d.Config == nil {
				d.Config = &tls.Config{MinVersion: tls.VersionTLS12}
			}
			d.Config.RootCAs = cfg.Roots()
			return d.DialContext(ctx, network, addr)
		}
	}
	return &Register{
		url: u.String(), auth: cfg.Authorization, shown: shown(u), timeout: cfg.Timeout,
		client: &http.Client{
			Transport: &http.Transport{
				Proxy: nil, // a proxy from the environment may cache or resend
				// R1: with a fresh connection for each request net/http never resends.
				DisableKeepAlives:      true,
				DisableCompression:     true, // gzip makes ETags weak
				Protocols:              http1,
				TLSClientConfig:        cfg.TLS.Clone(),
				DialContext:            dialer.DialContext,
				DialTLSContext:         dialTLS,
				MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// shown is u for messages: no user, no query (it may hold a signature).
func shown(u *url.URL) string {
	c := *u
	c.User, c.RawQuery, c.Fragment, c.RawFragment = nil, "", "", ""
	return c.String()
}

// String is the URL, without its query.
func (r *Register) String() string { return r.shown }

// Read implements arbiter.Register.
func (r *Register) Read(ctx context.Context) ([]byte, arbiter.Version, error) {
	a, err := r.do(ctx, http.MethodGet, nil, func(h http.Header) { h.Set("Cache-Control", "no-cache") })
	fail := func(class error, format string, args ...any) ([]byte, arbiter.Version, error) {
		return nil, arbiter.Absent, fmt.Errorf("read %s: %w: %w", r.shown, class, fmt.Errorf(format, args...))
	}
	if err != nil {
		remedy, class := transportClass(false, a.connected, err)
		return fail(class, "%w%s", err, remedy)
	}
	switch class := readClass(a.status); {
	case a.status == http.StatusNotFound || a.status == http.StatusGone:
		if a.header.Get("Age") != "" {
			return fail(arbiter.ErrMisconfigured, "a cache answered (Age: %s); the store must be reached directly", a.header.Get("Age"))
		}
		return nil, arbiter.Absent, nil
	case class != nil:
		return fail(class, "%s", a.describe())
	}
	if err := a.trustworthy(); err != nil {
		return fail(arbiter.ErrMisconfigured, "%w", err)
	}
	if a.bodyErr != nil {
		return fail(arbiter.ErrUnavailable, "the reply broke off after %d bytes: %w", len(a.body), a.bodyErr)
	}
	if len(a.body) > MaxValue {
		return fail(arbiter.ErrMisconfigured, "the value has more than %d bytes; it is no record", MaxValue)
	}
	return a.body, arbiter.At(a.header.Get("ETag")), nil
}

// CompareAndSwap implements arbiter.Register.
func (r *Register) CompareAndSwap(ctx context.Context, prev arbiter.Version, next []byte) error {
	fail := func(class error, format string, args ...any) error {
		return fmt.Errorf("swap %s: %w: %w", r.shown, class, fmt.Errorf(format, args...))
	}
	if len(next) > MaxValue {
		return fail(arbiter.ErrMisconfigured, "the new value has %d bytes, at most %d", len(next), MaxValue)
	}
	if prev.Exists() {
		if err := arbiter.StrongETag(prev.Tag()); err != nil { // R2
			return fail(arbiter.ErrConflict, "version %.80q is not one that this store gave: %w", prev.Tag(), err)
		}
	}
	a, err := r.do(ctx, http.MethodPut, next, func(h http.Header) {
		if prev.Exists() {
			h.Set("If-Match", prev.Tag())
		} else {
			h.Set("If-None-Match", "*")
		}
		h.Set("Content-Type", "application/json")
	})
	if err != nil {
		remedy, class := transportClass(true, a.connected, err)
		if !a.connected {
			err = fmt.Errorf("nothing was sent: %w", err)
		}
		return fail(class, "%w%s", err, remedy)
	}
	if class := putClass(a.status, prev.Exists(), a.header.Get(HeaderApplied) == "no"); class != nil {
		return fail(class, "%s", a.describe())
	}
	return nil
}

// answer is what came back for one request.
type answer struct {
	method    string
	connected bool // a connection was handed to the request: bytes may have left
	status    int
	header    http.Header
	body      []byte
	bodyErr   error
	length    int64
	chunked   bool
}

// do sends one request. After an error only answer.connected is meaningful.
func (r *Register) do(ctx context.Context, method string, body []byte, set func(http.Header)) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	a := answer{method: method}
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), method, r.url, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.GetBody = nil // R1: nothing to replay
	if method == http.MethodGet {
		req.Body, req.ContentLength = nil, 0
	}
	set(req.Header)
	if r.auth != nil {
		value, err := r.auth()
		if err != nil {
			return a, &authError{err}
		}
		req.Header.Set("Authorization", value)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		a.connected = connected.Load()
		var ue *url.Error // repeats method and URL
		if errors.As(err, &ue) {
			err = ue.Err
		}
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return a, err
	}
	defer resp.Body.Close()
	a.status, a.header, a.length = resp.StatusCode, resp.Header, resp.ContentLength
	a.chunked = len(resp.TransferEncoding) > 0
	a.body, a.bodyErr = io.ReadAll(io.LimitReader(resp.Body, MaxValue+1))
	return a, nil
}

// trustworthy checks R3 on a 200 to a GET.
func (a answer) trustworthy() error {
	if age := a.header.Get("Age"); age != "" {
		return fmt.Errorf("a cache answered (Age: %s); the store must be reached directly", age)
	}
	if a.length < 0 && !a.chunked {
		return errors.New("the reply has no length; a cut one could not be told from a whole one")
	}
	tags := a.header.Values("ETag")
	if len(tags) != 1 {
		return fmt.Errorf("the reply has %d ETags; the store must send one strong ETag (for lighttpd: set mimetype.assign and etag.use-*)", len(tags))
	}
	if err := arbiter.StrongETag(tags[0]); err != nil {
		return fmt.Errorf("ETag %.80s: %w; a swap needs a strong one", tags[0], err)
	}
	return nil
}

// describe is the status with the beginning of the body, and for some a remedy.
func (a answer) describe() string {
	s := fmt.Sprintf("%s answered %d %s", a.method, a.status, http.StatusText(a.status))
	if text := strings.Join(strings.Fields(strings.ToValidUTF8(string(a.body[:min(len(a.body), 160)]), "?")), " "); text != "" {
		s += fmt.Sprintf(" (%q)", text)
	}
	if a.status/100 == 3 {
		s += fmt.Sprintf(", to %q; redirects are not followed: give the final URL", a.header.Get("Location"))
	}
	switch a.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		s += "; check the credentials and the store's access rules"
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		s += "; is this a store that takes PUT?"
	}
	return s
}
