package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"

	smithyhttp "github.com/aws/smithy-go/transport/http"

	"twok/arbiter"
)

// outcome is what came of one request, as far as it is known.
type outcome struct {
	put       bool
	ifMatch   bool   // the PUT had If-Match
	requests  int    // that left the SDK: 0 or 1
	connected bool   // a connection was handed to it
	status    int    // 0: no answer
	code      string // S3's
	err       error  // the SDK's or the transport's
}

// verdict is what it means; nil class: applied, or a value.
type verdict struct {
	class  error
	absent bool
	remedy string
}

const (
	checkRegion = "check the region (region=…): a bucket is reached by its own region only"
	checkClock  = "this machine's clock and the store's differ by too much: synchronise it"
	checkSecret = "check the access key and its secret in the AWS chain"
	checkRights = "the user needs s3:GetObject and s3:PutObject on the object, and s3:ListBucket on the bucket: without that S3 says so also where there is no object"
	newToken    = "renew the credentials of the AWS chain"
	checkBucket = "create the bucket, or check its name, the endpoint and path-style"
)

// codes are S3's codes that say more than the HTTP status.
var codes = map[string]verdict{
	"AuthorizationHeaderMalformed":       {class: arbiter.ErrMisconfigured, remedy: checkRegion},
	"IllegalLocationConstraintException": {class: arbiter.ErrMisconfigured, remedy: checkRegion},
	"PermanentRedirect":                  {class: arbiter.ErrMisconfigured, remedy: checkRegion},
	"TemporaryRedirect":                  {class: arbiter.ErrMisconfigured, remedy: checkRegion},
	"RequestTimeTooSkewed":               {class: arbiter.ErrMisconfigured, remedy: checkClock},
	"RequestExpired":                     {class: arbiter.ErrMisconfigured, remedy: checkClock},
	"NoSuchBucket":                       {class: arbiter.ErrMisconfigured, remedy: checkBucket},
	"InvalidBucketName":                  {class: arbiter.ErrMisconfigured, remedy: checkBucket},
	"ExpiredToken":                       {class: arbiter.ErrForbidden, remedy: newToken},
	"InvalidToken":                       {class: arbiter.ErrForbidden, remedy: newToken},
	"TokenRefreshRequired":               {class: arbiter.ErrForbidden, remedy: newToken},
	"InvalidAccessKeyId":                 {class: arbiter.ErrForbidden, remedy: checkSecret},
	"XAdminUserNotFound":                 {class: arbiter.ErrForbidden, remedy: checkSecret}, // versitygw, as 404
	"SignatureDoesNotMatch":              {class: arbiter.ErrForbidden, remedy: checkSecret},
	"BadDigest":                          {class: arbiter.ErrUnavailable, remedy: "the bytes were damaged on the way"},
	"XAmzContentSHA256Mismatch":          {class: arbiter.ErrUnavailable, remedy: "the bytes were damaged on the way"},
	"IncompleteBody":                     {class: arbiter.ErrUnavailable, remedy: "the bytes were damaged on the way"},
	"NotImplemented":                     {class: arbiter.ErrMisconfigured, remedy: "this store does not know conditional PUTs; use another"},
}

// classify is the table of the package documentation.
func classify(o outcome) verdict {
	if o.status == 0 {
		return transport(o)
	}
	inDoubt := verdict{class: arbiter.ErrUnavailable} // a read has no doubt: it may be made again
	if o.put {
		inDoubt.class = arbiter.ErrUnknown
	}
	// A code counts only where S3 sends it: in an answer that refuses.
	if v, ok := codes[o.code]; ok && (o.status >= 300 && o.status < 500 || o.code == "NotImplemented" && o.status == http.StatusNotImplemented) {
		return v
	}
	switch o.status {
	case http.StatusOK:
		return verdict{}
	case http.StatusUnauthorized, http.StatusForbidden:
		return verdict{class: arbiter.ErrForbidden, remedy: checkRights}
	case http.StatusNotFound:
		switch {
		case o.code != "NoSuchKey":
			return verdict{class: arbiter.ErrMisconfigured, remedy: "this is no answer of an S3 store; check the endpoint"}
		case !o.put:
			return verdict{absent: true}
		case o.ifMatch:
			return verdict{class: arbiter.ErrConflict}
		}
		return verdict{class: arbiter.ErrMisconfigured, remedy: checkBucket}
	case http.StatusConflict, http.StatusPreconditionFailed:
		if o.put {
			return verdict{class: arbiter.ErrConflict}
		}
	case http.StatusRequestTimeout:
		return inDoubt
	case http.StatusBadRequest:
		if o.code == "RequestTimeout" {
			return inDoubt
		}
	case http.StatusLocked, http.StatusTooManyRequests:
		return verdict{class: arbiter.ErrUnavailable, remedy: "the store limits the rate of requests"}
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return verdict{class: arbiter.ErrMisconfigured, remedy: "is this an S3 store?"}
	}
	switch o.status / 100 {
	case 2:
		if o.put {
			return inDoubt
		}
		return verdict{class: arbiter.ErrMisconfigured, remedy: "is this an S3 store?"}
	case 3:
		return verdict{class: arbiter.ErrMisconfigured, remedy: "redirects are not followed; " + checkRegion}
	case 4:
		return verdict{class: arbiter.ErrMisconfigured, remedy: "check the endpoint and the bucket"}
	}
	return inDoubt
}

// transport classifies a request without an answer.
func transport(o outcome) verdict {
	var unverified *tls.CertificateVerificationError
	var unknownCA x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case o.connected && o.put:
		return verdict{class: arbiter.ErrUnknown}
	case errors.As(o.err, &unverified), errors.As(o.err, &unknownCA):
		return verdict{class: arbiter.ErrMisconfigured, remedy: "check the store's certificate, its dates and names, and AWS_CA_BUNDLE"}
	case errors.As(o.err, &record):
		return verdict{class: arbiter.ErrMisconfigured, remedy: "the endpoint speaks no TLS; use endpoint=http://… if that is right"}
	case o.requests == 0 && local(o.err):
		return verdict{class: arbiter.ErrMisconfigured, remedy: "give the AWS chain credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a web identity, or an instance's role"}
	}
	return verdict{class: arbiter.ErrUnavailable}
}

// local: the SDK failed before it sent anything, by itself. Where credentials
// come over the network and that failed, it may end by itself; an instance's metadata service,
// which is asked last, is also silent where there is none.
func local(err error) bool {
	var sent *smithyhttp.RequestSendError
	if errors.As(err, &sent) {
		return strings.Contains(err.Error(), "no EC2 IMDS role found")
	}
	return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}
