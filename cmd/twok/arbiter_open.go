package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"twok/arbiter"
	"twok/arbiter/configmap"
	"twok/arbiter/etcd"
	"twok/arbiter/httpcas"
	"twok/arbiter/s3"
	"twok/internal/certfile"
)

// What --arbiter may be, for help and hints.
const arbiterURLs = `http[s]://HOST[:PORT]/NAME (a store with ETag, If-Match and If-None-Match, such as twok arbiter serve), ` +
	`s3://BUCKET/KEY[?region=…&endpoint=…&path-style=true], etcd://HOST:PORT[,HOST:PORT…]/KEY[?tls=true], configmap://NAMESPACE/NAME`

// The environment that holds what must not stand in a URL or a command line.
const (
	envUser         = "TWOK_ARBITER_USER"
	envPassword     = "TWOK_ARBITER_PASSWORD" // refused: secrets come from files
	envPasswordFile = "TWOK_ARBITER_PASSWORD_FILE"
	envToken        = "TWOK_ARBITER_TOKEN" // refused
	envTokenFile    = "TWOK_ARBITER_TOKEN_FILE"
	envCA           = "TWOK_ARBITER_CA_FILE"
	envCert         = "TWOK_ARBITER_CERT_FILE"
	envKey          = "TWOK_ARBITER_KEY_FILE"
)

const arbiterEnvironment = `Credentials come from the environment, never from the URL: for http and etcd
` + envUser + ` with ` + envPasswordFile + `,
for http also ` + envTokenFile + `; certificates from
` + envCA + `, ` + envCert + ` and ` + envKey + `; for s3 the
AWS chain (AWS_ACCESS_KEY_ID, AWS_PROFILE, web identity, instance role, AWS_CA_BUNDLE);
for configmap KUBECONFIG, ~/.kube/config or the pod's service account.`

// arbiterRegister opens the register that a URL names. Nothing is sent.
func arbiterRegister(raw string) (arbiter.Register, error) { return arbiterRegisterTelling(raw, nil) }

// arbiterRegisterTelling is for a register that lives long: tell is told of certificates that cannot be read again.
func arbiterRegisterTelling(raw string, tell func(error)) (arbiter.Register, error) {
	env := secretsFrom(os.Getenv)
	env.tell = tell
	r, err := openArbiter(raw, env)
	if err != nil {
		what := "supported are " + arbiterURLs
		if strings.Contains(err.Error(), "TWOK_ARBITER_") { // the URL is right
			what = "how an arbiter's credentials are given: see `twok arbiter --help`"
		}
		return nil, hint(withCode(fmt.Errorf("--arbiter: %w", err), exitUsage), what)
	}
	return r, nil
}

func openArbiter(raw string, env secrets) (arbiter.Register, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, errors.New("it has no scheme")
	}
	authority, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndex(authority, "@"); i >= 0 { // not printed: it may be a secret
		what := "set " + envUser + " and " + envPasswordFile
		if scheme == "s3" {
			what = "the AWS chain has them: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
		}
		return nil, fmt.Errorf("%s://…@%s: credentials do not belong into a URL, which logs and ps show; %s", scheme, authority[i+1:], what)
	}
	switch scheme {
	case "http", "https":
		return openHTTP(raw, scheme, env)
	case "s3":
		return openS3(raw, env)
	case "etcd":
		return openEtcd(raw, rest, env)
	case "configmap":
		return openConfigMap(rest, env)
	}
	return nil, fmt.Errorf("%s://%s: scheme %q is not supported", scheme, authority, scheme)
}

func openHTTP(raw, scheme string, env secrets) (arbiter.Register, error) {
	cfg := httpcas.Config{URL: raw}
	var err error
	if cfg.TLS, cfg.Roots, err = env.tls(scheme == "https"); err != nil {
		return nil, err
	}
	user, token := env.is(envUser, envPassword, envPasswordFile), env.is(envToken, envTokenFile)
	switch {
	case user && token:
		return nil, fmt.Errorf("both a user (%s) and a token (%s) are set; unset one", envUser, envTokenFile)
	case user:
		if _, _, err := env.login(); err != nil {
			return nil, err
		}
		cfg.Authorization = func() (string, error) {
			user, password, err := env.login()
			return httpcas.Basic(user, password), err
		}
	case token:
		if _, err := env.secret(envToken, envTokenFile); err != nil {
			return nil, err
		}
		cfg.Authorization = func() (string, error) {
			token, err := env.secret(envToken, envTokenFile)
			return httpcas.Bearer(token), err
		}
	}
	return httpcas.New(cfg)
}

func openS3(raw string, env secrets) (arbiter.Register, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, parseError(err)
	}
	if names := env.set(); len(names) > 0 {
		return nil, fmt.Errorf("s3://%s: %s is set, and s3 takes its credentials from the AWS chain alone; unset it", u.Host, names[0])
	}
	q, err := parameters(u.RawQuery, "region", "endpoint", "path-style")
	if err != nil {
		return nil, fmt.Errorf("s3://%s: %w", u.Host, err)
	}
	pathStyle, err := boolean(q, "path-style", false)
	if err != nil {
		return nil, fmt.Errorf("s3://%s: %w", u.Host, err)
	}
	if u.Fragment != "" {
		return nil, fmt.Errorf("s3://%s: it has a fragment (#%s); write # as %%23", u.Host, u.Fragment)
	}
	return s3.New(s3.Config{
		Bucket: u.Host, Key: strings.TrimPrefix(u.Path, "/"), Region: q["region"], Endpoint: q["endpoint"], PathStyle: pathStyle,
	})
}

func openConfigMap(rest string, env secrets) (arbiter.Register, error) {
	if names := env.set(); len(names) > 0 {
		return nil, fmt.Errorf("configmap://%s: %s is set, and a ConfigMap's credentials come from the kubeconfig or the pod's service account alone; unset it", rest, names[0])
	}
	namespace, name, ok := strings.Cut(rest, "/")
	if !ok || strings.ContainsAny(rest, "?#") {
		return nil, fmt.Errorf("configmap://%s: it is configmap://NAMESPACE/NAME, without parameters", rest)
	}
	return configmap.New(configmap.Config{Namespace: namespace, Name: name})
}

// openEtcd parses by hand: several hosts are no authority of net/url.
func openEtcd(raw, rest string, env secrets) (arbiter.Register, error) {
	at, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(at, "/")
	fail := func(err error) (arbiter.Register, error) {
		return nil, fmt.Errorf("etcd://%s/%s: %w", authority, path, err)
	}
	if strings.Contains(raw, "#") {
		return fail(errors.New("it has a #; write it as %23"))
	}
	key, err := url.PathUnescape(path)
	if err != nil {
		return fail(err)
	}
	q, err := parameters(query, "tls")
	if err != nil {
		return fail(err)
	}
	if env.is(envToken, envTokenFile) {
		return fail(fmt.Errorf("%s is for http; etcd takes %s and %s, or a client certificate", envToken, envUser, envPasswordFile))
	}
	secure, err := boolean(q, "tls", env.is(envCA, envCert))
	if err != nil {
		return fail(err)
	}
	cfg := etcd.Config{Endpoints: strings.Split(authority, ","), Key: key}
	if cfg.TLS, cfg.Roots, err = env.tls(secure); err != nil {
		return fail(err)
	}
	if secure && cfg.TLS == nil {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if env.is(envUser, envPassword, envPasswordFile) {
		if _, _, err := env.login(); err != nil {
			return fail(err)
		}
		cfg.Login = env.login
	}
	if authority == "" {
		cfg.Endpoints = nil
	}
	return etcd.New(cfg)
}

// parseError is without the URL, which may hold a secret.
func parseError(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		return ue.Err
	}
	return err
}

// parameters of a query, each at most once and known.
func parameters(query string, known ...string) (map[string]string, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	q := map[string]string{}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("it has no parameter %q; known are %s", name, strings.Join(known, ", "))
		case len(v) > 1:
			return nil, fmt.Errorf("%s is given twice", name)
		}
		q[name] = v[0]
	}
	return q, nil
}

func boolean(q map[string]string, name string, otherwise bool) (bool, error) {
	text, ok := q[name]
	if !ok {
		return otherwise, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s=%q: use true or false", name, text)
	}
	return b, nil
}

// secrets are what the environment says, and the files that it names.
type secrets struct {
	getenv func(string) string
	tell   func(error) // certfile's; may be nil
}

func secretsFrom(getenv func(string) string) secrets { return secrets{getenv: getenv} }

// is says whether one of these is set.
func (s secrets) is(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return s.getenv(n) != "" })
}

// set are the names that are set.
func (s secrets) set() (names []string) {
	for _, n := range []string{envUser, envPassword, envPasswordFile, envToken, envTokenFile, envCA, envCert, envKey} {
		if s.is(n) {
			names = append(names, n)
		}
	}
	return names
}

// secret is the content of the file that one variable names. The other one, which would hold the secret itself, is
// refused: whoever may look at a process, and every child of it, sees its environment.
func (s secrets) secret(value, file string) (string, error) {
	f := s.getenv(file)
	switch {
	case s.getenv(value) != "":
		return "", fmt.Errorf("%s is set: a secret does not belong into the environment, which children and ps show; put it into a file and set %s", value, file)
	case f == "":
		return "", fmt.Errorf("set %s to a file", file)
	}
	data, err := os.ReadFile(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" || strings.ContainsAny(text, "\r\n") {
		return "", fmt.Errorf("%s: %s must hold one line", file, f)
	}
	return text, nil
}

func (s secrets) login() (user, password string, err error) {
	if user = s.getenv(envUser); user == "" {
		return "", "", fmt.Errorf("a password without a user; set %s", envUser)
	}
	if strings.Contains(user, ":") {
		return "", "", fmt.Errorf("%s has a colon", envUser)
	}
	password, err = s.secret(envPassword, envPasswordFile)
	return user, password, err
}

// tls is the configuration that the files make, nil if there are none. A client certificate is read
// again at each handshake, and the authorities (roots, nil if no file names them) when a connection asks, if
// their files changed.
func (s secrets) tls(secure bool) (cfg *tls.Config, roots func() *x509.CertPool, err error) {
	ca, cert, key := s.getenv(envCA), s.getenv(envCert), s.getenv(envKey)
	switch {
	case ca == "" && cert == "" && key == "":
		return nil, nil, nil
	case !secure:
		return nil, nil, fmt.Errorf("%s or %s is set, and the URL is without TLS; use https:// (etcd: tls=true), or unset it", envCA, envCert)
	case (cert == "") != (key == ""):
		return nil, nil, fmt.Errorf("%s and %s belong together", envCert, envKey)
	}
	cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		a, err := certfile.NewAuthorities(ca, s.tell)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", envCA, err)
		}
		roots, cfg.RootCAs = a.Pool, a.Pool()
	}
	if cert != "" {
		pair, err := certfile.NewPair(cert, key, s.tell)
		if err != nil {
			return nil, nil, fmt.Errorf("%s, %s: %w", envCert, envKey, err)
		}
		cfg.GetClientCertificate = pair.ForClient
	}
	return cfg, roots, nil
}
