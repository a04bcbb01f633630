package preflight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// ShortTime is how long before its end a certificate is a warning.
const ShortTime = 30 * 24 * time.Hour

// certificates judges one kind: the worst of what was seen.
func certificates(f *Facts, c Certificates, kind string) Result {
	if !c.TLS {
		return ok("no TLS on the %s port", kind)
	}
	var refused, warned []string
	remedy := ""
	say := func(list *[]string, how, format string, args ...any) {
		*list = append(*list, fmt.Sprintf(format, args...))
		if remedy == "" {
			remedy = how
		}
	}
	var end time.Time
	var first string
	look := func(x Certificate, own bool) {
		left := x.NotAfter.Sub(f.Now)
		switch {
		case x.Err != nil && own:
			say(&refused, "give a PEM certificate and its key", "%s: %v", x.What, x.Err)
		case x.Err != nil:
			say(&warned, "let the port answer", "%s: not looked at: %v", x.What, x.Err)
		case f.Now.Before(x.NotBefore):
			say(&refused, "check this machine's clock, then the certificate", "%s: not valid before %s, this clock says %s", x.What,
				x.NotBefore.UTC().Format(time.RFC3339), f.Now.UTC().Format(time.RFC3339))
		case left <= 0:
			say(&refused, "", "%s: expired on %s", x.What, x.NotAfter.UTC().Format(time.RFC3339))
		case x.Invalid != nil:
			say(&refused, fmt.Sprintf("check --%s-ca and the names in the certificate", kind), "%s: %v", x.What, x.Invalid)
		case left < ShortTime:
			say(&warned, "", "%s: %s left, until %s", x.What, days(left), x.NotAfter.UTC().Format(time.RFC3339))
		}
		if x.Err == nil && (end.IsZero() || x.NotAfter.Before(end)) {
			end, first = x.NotAfter, x.What
		}
	}
	if c.Own != nil {
		look(*c.Own, true)
	}
	for _, s := range c.Served {
		look(s, false)
	}
	switch {
	case len(refused) > 0:
		return refuse(remedy, "%s", strings.Join(append(refused, warned...), "; "))
	case len(warned) > 0:
		return warn(remedy, "%s", strings.Join(warned, "; "))
	case end.IsZero():
		return refuse("let etcd answer", "no certificate was seen")
	}
	return ok("valid for %s or more, until %s (%s)", days(end.Sub(f.Now)), end.UTC().Format(time.DateOnly), first)
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// LookOwn is the certificate that cfg presents to servers now; nil: none.
func LookOwn(cfg *tls.Config, what string) *Certificate {
	if cfg == nil {
		return nil
	}
	var pair *tls.Certificate
	var err error
	switch {
	case cfg.GetClientCertificate != nil:
		pair, err = cfg.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS13})
	case len(cfg.Certificates) > 0:
		pair = &cfg.Certificates[0]
	default:
		return nil
	}
	c := &Certificate{What: what, Local: true, Err: err}
	if err != nil {
		return c
	}
	if len(pair.Certificate) == 0 {
		c.Err = errors.New("no certificate")
		return c
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		c.Err = err
		return c
	}
	c.NotBefore, c.NotAfter = leaf.NotBefore, leaf.NotAfter
	return c
}

// LookPort says why a port, http://HOST:PORT or https://HOST:PORT, does not take this client: that it does not
// answer, what is wrong with its certificate, or what it says of ours. nil: nothing of these.
func LookPort(ctx context.Context, cfg *tls.Config, rawURL string) error {
	u, err := url.Parse(rawURL)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if u.Scheme != "https" {
		return nil
	}
	look := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg != nil {
		look = cfg.Clone()
	}
	look.ServerName, look.NextProtos = u.Hostname(), []string{"h2", "http/1.1"}
	secure := tls.Client(conn, look)
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	// With TLS 1.3 the server refuses a certificate only after the client is done.
	if err := secure.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return err
	}
	_, err = secure.Read(make([]byte, 1))
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return err
}

// OfCertificates says whether an error of LookPort is about a certificate, the port's or the client's.
func OfCertificates(err error) bool {
	var verify *tls.CertificateVerificationError
	var op *net.OpError // an alert of the other side
	return errors.As(err, &verify) || (errors.As(err, &op) && op.Op == "remote error")
}

// LookServed dials a port, https://HOST:PORT, and looks at its certificate: when it is valid, and, apart from
// that, whether cfg would take it (not asked while its time is wrong). It tells nothing of whether the port takes cfg's own.
func LookServed(ctx context.Context, cfg *tls.Config, rawURL string, now time.Time) Certificate {
	c := Certificate{What: rawURL}
	u, err := url.Parse(rawURL)
	if err != nil {
		c.Err = err
		return c
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "443")
	}
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	var seen []*x509.Certificate
	look := cfg.Clone()
	look.ServerName = u.Hostname()
	look.InsecureSkipVerify = true // looked at below; nothing is said to this port
	look.VerifyConnection = func(s tls.ConnectionState) error {
		seen = s.PeerCertificates
		return nil
	}
	conn, err := (&tls.Dialer{Config: look}).DialContext(ctx, "tcp", host)
	if err == nil {
		err = conn.Close()
	}
	if len(seen) == 0 {
		c.Err = err
		if err == nil {
			c.Err = errors.New("the port showed no certificate")
		}
		return c
	}
	leaf := seen[0]
	c.NotBefore, c.NotAfter = leaf.NotBefore, leaf.NotAfter
	between := x509.NewCertPool()
	for _, s := range seen[1:] {
		between.AddCert(s)
	}
	if !now.Before(leaf.NotBefore) && !now.After(leaf.NotAfter) {
		_, c.Invalid = leaf.Verify(x509.VerifyOptions{Roots: cfg.RootCAs, Intermediates: between, DNSName: u.Hostname(), CurrentTime: now})
	}
	return c
}
