package httpcas

import (
	"crypto/tls"
	"errors"
	"net/http"
	"strings"

	"twok/arbiter"
)

// putClass maps the status of a PUT to a class; nil is applied. The table is in
// the package documentation. In doubt it is unknown (P1).
func putClass(status int, ifMatch, saidNotApplied bool) error {
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return arbiter.ErrForbidden
	case http.StatusConflict, http.StatusPreconditionFailed:
		return arbiter.ErrConflict
	case http.StatusNotFound, http.StatusGone:
		if ifMatch {
			return arbiter.ErrConflict // the value is gone
		}
		return arbiter.ErrMisconfigured // no place to create it in
	case http.StatusRequestTimeout, http.StatusSeeOther:
		return arbiter.ErrUnknown // 303 may follow an applied PUT
	case http.StatusLocked, http.StatusTooManyRequests:
		return arbiter.ErrUnavailable
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return arbiter.ErrMisconfigured
	case http.StatusServiceUnavailable:
		if saidNotApplied {
			return arbiter.ErrUnavailable
		}
		return arbiter.ErrUnknown
	}
	switch status / 100 {
	case 3, 4:
		return arbiter.ErrMisconfigured
	}
	return arbiter.ErrUnknown
}

// readClass maps the status of a GET; nil is a value. 404 and 410 are not its
// business: they are an answer.
func readClass(status int) error {
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return arbiter.ErrForbidden
	case http.StatusRequestTimeout, http.StatusLocked, http.StatusTooManyRequests:
		return arbiter.ErrUnavailable
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return arbiter.ErrMisconfigured
	}
	if status >= 500 {
		return arbiter.ErrUnavailable
	}
	return arbiter.ErrMisconfigured
}

// authError says that the credentials could not be got.
type authError struct{ err error }

func (e *authError) Error() string { return "the credentials: " + e.err.Error() }
func (e *authError) Unwrap() error { return e.err }

// transportClass maps an exchange without an answer, and says what to do.
func transportClass(put, connected bool, err error) (remedy string, class error) {
	var auth *authError
	var unverified *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &auth):
		return "", arbiter.ErrMisconfigured
	case clientCertificateRefused(err):
		return "; the server refused the client certificate: check it and its dates", arbiter.ErrForbidden
	case put && connected: // R4
		return "", arbiter.ErrUnknown
	case errors.As(err, &unverified):
		return "; check the server's certificate, its dates and names, and TWOK_ARBITER_CA_FILE", arbiter.ErrMisconfigured
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "; the server speaks no TLS: use http:// if that is right", arbiter.ErrMisconfigured
	}
	return "", arbiter.ErrUnavailable
}

// clientCertificateRefused: an alert about the client's certificate. A server
// sends it instead of finishing the handshake, so it has looked at no request;
// with TLS 1.3 the client learns of it afterwards. The standard library has no type for it.
func clientCertificateRefused(err error) bool {
	_, alert, ok := strings.Cut(err.Error(), "remote error: tls: ")
	if !ok {
		return false
	}
	for _, about := range []string{
		"bad certificate", "unsupported certificate", "revoked certificate", "expired certificate", "unknown certificate",
		"access denied", "certificate required",
	} {
		if strings.HasPrefix(alert, about) {
			return true
		}
	}
	return false
}
