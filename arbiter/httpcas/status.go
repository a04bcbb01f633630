package httpcas

import (
	"net/http"

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
