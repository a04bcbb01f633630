package configmap

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
)

// access is how the apiserver is reached, as the kubeconfig says now.
type access struct {
	base *url.URL
	tls  *tls.Config
	conf *transport.Config
}

// configError says that the kubeconfig, or what it names, cannot work.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// load reads the kubeconfig, or the service account, and the files that they
// name (R10). Its error is a *configError.
// explicit is a kubeconfig in place of the environment's.
func load(explicit string) (access, error) {
	a, err := loadConfig(explicit)
	if err != nil {
		return access{}, &configError{err}
	}
	return a, nil
}

func loadConfig(explicit string) (access, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = explicit
	rules.MigrationRules = nil // it would write files
	rules.Warner = func(error) {}
	if list := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); explicit == "" && list != "" && !anyExists(filepath.SplitList(list)) {
		// clientcmd would go on to the pod's service account, which may be that of another cluster.
		return access{}, fmt.Errorf("KUBECONFIG=%s: there is no such file; correct or unset it", list)
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		if clientcmd.IsEmptyConfig(err) {
			err = errors.New("there is neither a kubeconfig (KUBECONFIG, ~/.kube/config) nor a service account of a pod; set KUBECONFIG")
		}
		return access{}, fmt.Errorf("the kubeconfig: %w", err)
	}
	return accessFrom(cfg)
}

func anyExists(files []string) bool {
	for _, f := range files {
		if _, err := os.Stat(f); err == nil || !errors.Is(err, os.ErrNotExist) {
			return true
		}
	}
	return false
}

func accessFrom(cfg *rest.Config) (access, error) {
	cfg.UserAgent, cfg.DisableCompression = "twok", true
	if cfg.ExecProvider != nil {
		cfg.ExecProvider.StdinUnavailable = true
		cfg.ExecProvider.StdinUnavailableMessage = "an agent has no terminal"
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return access{}, fmt.Errorf("the kubeconfig's server: %w", err)
	}
	if base.User != nil {
		return access{}, fmt.Errorf("the kubeconfig's server %s holds a user; put it under users", base.Host)
	}
	if base.Scheme != "https" && cfg.Proxy != nil {
		return access{}, fmt.Errorf("the kubeconfig has a proxy-url for the server %s without TLS; there a proxy may resend a write", base.Host)
	}
	conf, err := cfg.TransportConfig()
	if err != nil {
		return access{}, fmt.Errorf("the kubeconfig: %w", err)
	}
	t, err := transport.TLSConfigFor(conf)
	if err != nil {
		return access{}, fmt.Errorf("the kubeconfig's certificates: %w", err)
	}
	return access{base, t, conf}, nil
}

// roundTripper adds the credentials to what gate sends.
func (a access) roundTripper(gate http.RoundTripper) (http.RoundTripper, error) {
	rt, err := transport.HTTPWrappersForConfig(a.conf, gate)
	if err != nil {
		return nil, &configError{fmt.Errorf("the kubeconfig's credentials: %w", err)}
	}
	return rt, nil
}

// transport serves one request (R1).
func (a access) transport() *http.Transport {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	t := &http.Transport{
		DisableKeepAlives:      true, // with a fresh connection net/http never resends
		DisableCompression:     true,
		Protocols:              http1,
		TLSClientConfig:        a.tls,
		MaxResponseHeaderBytes: 64 << 10,
	}
	switch {
	case a.base.Scheme != "https": // there a proxy may cache or resend; for https it is a tunnel
	case a.conf.Proxy != nil:
		t.Proxy = a.conf.Proxy
	default:
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

// server is what must stay the same (R10).
func (a access) server() string { return strings.TrimRight(a.base.String(), "/") }
