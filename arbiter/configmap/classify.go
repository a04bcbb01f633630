package configmap

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"twok/arbiter"
)

// The three requests.
const (
	get   = http.MethodGet
	patch = http.MethodPatch
	post  = http.MethodPost
)

// status is what the apiserver says in a refusal.
type status struct {
	Kind    string `json:"kind"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Name   string `json:"name"`
		Kind   string `json:"kind"`
		Causes []struct {
			Reason  string `json:"reason"`
			Field   string `json:"field"`
			Message string `json:"message"`
		} `json:"causes"`
	} `json:"details"`
}

// parseStatus is the zero value for what is no Status.
func parseStatus(body []byte) status {
	var s status
	if json.Unmarshal(body, &s) != nil || s.Kind != "Status" {
		return status{}
	}
	return s
}

func (s status) cause(is func(reason, field, message string) bool) bool {
	for _, c := range s.Details.Causes {
		if is(c.Reason, c.Field, c.Message) {
			return true
		}
	}
	return false
}

// outcome is what came of one request, as far as it is known.
type outcome struct {
	method    string
	name      string // the ConfigMap
	code      int    // 0: no answer
	status    status
	entered   bool // the credentials were there, the transport was asked
	connected bool // a connection was handed to the request
	err       error
}

// verdict is what it means; nil class: applied, or a value.
type verdict struct {
	class  error
	absent bool
	remedy string
}

const (
	checkServer    = "does the kubeconfig lead to an apiserver?"
	checkLogin     = "the credentials are not known or expired: renew them in the kubeconfig or in the token file, which are read for each call"
	checkRole      = "the user needs get and patch on this ConfigMap, and create if it does not exist (deploy/arbiters/configmap-role.yaml)"
	checkNamespace = "create the namespace, or check its name"
	checkImmutable = "the ConfigMap is immutable: delete it and make another, or use another name"
)

// classify is the table of the package documentation.
func classify(o outcome) verdict {
	if o.code == 0 {
		return transportVerdict(o)
	}
	write := o.method != get
	inDoubt := verdict{class: arbiter.ErrUnavailable} // a read has no doubt: it may be made again
	if write {
		inDoubt.class = arbiter.ErrUnknown
	}
	misconfigured := func(remedy string) verdict { return verdict{class: arbiter.ErrMisconfigured, remedy: remedy} }
	ours := o.status.Details.Kind == "configmaps" && o.status.Details.Name == o.name
	switch o.code {
	case http.StatusOK:
		if o.method != post {
			return verdict{}
		}
	case http.StatusCreated:
		if o.method == post {
			return verdict{}
		}
	case http.StatusUnauthorized:
		return verdict{class: arbiter.ErrForbidden, remedy: checkLogin}
	case http.StatusForbidden:
		if o.status.cause(func(reason, _, _ string) bool { return reason == "NamespaceTerminating" }) {
			return misconfigured("the namespace is being deleted; use another")
		}
		return verdict{class: arbiter.ErrForbidden, remedy: checkRole}
	case http.StatusNotFound:
		switch {
		case o.status.Reason == "NotFound" && ours && o.method == get:
			return verdict{absent: true}
		case o.status.Reason == "NotFound" && ours && o.method == patch:
			return verdict{class: arbiter.ErrConflict}
		case o.status.Details.Kind == "namespaces":
			return misconfigured(checkNamespace)
		}
		return misconfigured(checkServer)
	case http.StatusConflict:
		switch {
		case write && ours && (o.status.Reason == "Conflict" || o.status.Reason == "AlreadyExists"):
			return verdict{class: arbiter.ErrConflict}
		case write && o.status.Reason == "Conflict":
			return verdict{class: arbiter.ErrUnavailable, remedy: "another object was changed meanwhile"}
		}
		return misconfigured(checkServer)
	case http.StatusUnprocessableEntity:
		about := o.status.Details.Kind == "ConfigMap" && o.status.Details.Name == o.name // the kind here, elsewhere the resource
		if o.method == patch && about && o.status.cause(func(_, field, _ string) bool { return field == "metadata.uid" }) {
			return verdict{class: arbiter.ErrConflict, remedy: "another ConfigMap of this name took its place"}
		}
		if o.status.cause(func(_, _, message string) bool { return strings.Contains(message, "immutable") }) {
			return misconfigured(checkImmutable)
		}
		return misconfigured("")
	case http.StatusRequestTimeout:
		return inDoubt
	case http.StatusTooManyRequests:
		return verdict{class: arbiter.ErrUnavailable, remedy: "the apiserver limits the rate of requests; see its priority and fairness"}
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return misconfigured(checkServer)
	}
	switch o.code / 100 {
	case 2:
		if write {
			return inDoubt
		}
		return misconfigured(checkServer)
	case 3:
		return misconfigured("redirects are not followed; " + checkServer)
	case 4:
		return misconfigured(checkServer)
	}
	return inDoubt
}

// transportVerdict classifies a request without an answer.
func transportVerdict(o outcome) verdict {
	var unverified *tls.CertificateVerificationError
	var unknownCA x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var cfg *configError
	switch {
	case errors.As(o.err, &cfg):
		return verdict{class: arbiter.ErrMisconfigured}
	case o.connected && o.method != get:
		return verdict{class: arbiter.ErrUnknown}
	case errors.As(o.err, &unverified), errors.As(o.err, &unknownCA):
		return verdict{class: arbiter.ErrMisconfigured, remedy: "check the apiserver's certificate, its dates and names, and certificate-authority in the kubeconfig"}
	case errors.As(o.err, &record):
		return verdict{class: arbiter.ErrMisconfigured, remedy: "the server speaks no TLS; use http:// in the kubeconfig if that is right"}
	case !o.entered && o.err != nil && strings.Contains(o.err.Error(), "getting credentials"):
		// The plugin's error is text only: a program that is missing looks like one that failed.
		return verdict{class: arbiter.ErrUnavailable, remedy: "the credential plugin of the kubeconfig failed; run it by hand"}
	}
	return verdict{class: arbiter.ErrUnavailable}
}
