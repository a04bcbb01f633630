package s3

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
)

// call is what happened to the one request of a call.
type call struct {
	mu        sync.Mutex
	requests  int
	connected bool
	resp      *http.Response
}

type callKey struct{}

func withCall(ctx context.Context) (context.Context, *call) {
	c := &call{}
	return context.WithValue(ctx, callKey{}, c), c
}

func (c *call) response() *http.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resp
}

func (c *call) header() http.Header {
	if resp := c.response(); resp != nil {
		return resp.Header
	}
	return http.Header{}
}

func (c *call) outcome(put, ifMatch bool, err error) outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := outcome{put: put, ifMatch: ifMatch, requests: c.requests, connected: c.connected, err: err}
	if c.resp != nil {
		o.status = c.resp.StatusCode
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		o.code = api.ErrorCode()
	}
	return o
}

var errSecondRequest = errors.New("a second request in one call was stopped")

// httpClient sends what the SDK has signed, and keeps R1 and R4. It is no
// http.Client: a transport follows no redirect.
type httpClient struct{ transport *http.Transport }

// newHTTPClient takes the certificates that the AWS chain names from its client.
func newHTTPClient(chain aws.HTTPClient) *httpClient {
	b, ok := chain.(*awshttp.BuildableClient)
	if !ok {
		b = awshttp.NewBuildableClient()
	}
	t := b.GetTransport()
	t.DisableKeepAlives = true  // R1: with a fresh connection net/http never resends
	t.DisableCompression = true // gzip makes ETags weak
	t.ForceAttemptHTTP2 = false
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.MaxResponseHeaderBytes = 64 << 10
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		if r.URL.Scheme != "https" { // there a proxy may cache or resend; for https it is a tunnel
			return nil, nil
		}
		return http.ProxyFromEnvironment(r)
	}
	return &httpClient{t}
}

// Do implements aws.HTTPClient.
func (h *httpClient) Do(req *http.Request) (*http.Response, error) {
	c, _ := req.Context().Value(callKey{}).(*call)
	if c == nil {
		return nil, errors.New("a request that no call made")
	}
	c.mu.Lock()
	c.requests++
	n := c.requests
	c.mu.Unlock()
	if n > 1 {
		return nil, errSecondRequest
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.connected = true
	}}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	req.GetBody = nil // R1: nothing to replay
	resp, err := h.transport.RoundTrip(req)
	if err == nil {
		c.mu.Lock()
		c.resp = resp
		c.mu.Unlock()
	}
	return resp, err
}

// signer signs each request anew (R9). The SDK's own keeps what it derived from a secret for a
// day, and looks at the key's ID only: after a secret was replaced it goes on with the old one.
type signer struct{}

// SignHTTP implements awss3.HTTPSignerV4, with the options that the SDK has for S3.
func (signer) SignHTTP(ctx context.Context, c aws.Credentials, r *http.Request, payloadHash, service, region string, at time.Time, optFns ...func(*v4.SignerOptions)) error {
	s := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return s.SignHTTP(ctx, c, r, payloadHash, service, region, at, optFns...)
}
