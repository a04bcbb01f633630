package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNoCertificate: a file of authorities holds no certificate in PEM.
var ErrNoCertificate = errors.New("it holds no certificate in PEM")

// Pair is a certificate and its key. It may be used by many at once.
type Pair struct{ f files[*tls.Certificate] }

// NewPair reads both files. tell, if not nil, is told later why they cannot be read again; it must not block.
func NewPair(cert, key string, tell func(error)) (*Pair, error) {
	p := &Pair{files[*tls.Certificate]{names: []string{cert, key}, tell: tell, load: func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("certificate %s, key %s: %w", cert, key, err)
		}
		return &c, nil
	}}}
	return p, p.f.first()
}

// ForClient is tls.Config.GetClientCertificate. It never fails.
func (p *Pair) ForClient(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return p.f.now(), nil
}

// ForServer is tls.Config.GetCertificate. It never fails.
func (p *Pair) ForServer(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.f.now(), nil }

// Authorities are the certificates of one file: one authority, or during a rotation the old and the new one.
type Authorities struct{ f files[*x509.CertPool] }

// NewAuthorities reads the file; ErrNoCertificate. tell is as NewPair's.
func NewAuthorities(file string, tell func(error)) (*Authorities, error) {
	a := &Authorities{files[*x509.CertPool]{names: []string{file}, tell: tell, load: func() (*x509.CertPool, error) {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("authorities %s: %w", file, ErrNoCertificate)
		}
		return pool, nil
	}}}
	return a, a.f.first()
}

// Pool is for one connection: a tls.Config takes it as it is now. It must not be changed.
func (a *Authorities) Pool() *x509.CertPool { return a.f.now() }

// files are read again when one of them changed.
type files[T any] struct {
	names []string
	load  func() (T, error)
	tell  func(error)

	mu   sync.Mutex
	seen []stamp
	last T
	said string // the error that was told last
}

type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func (f *files[T]) first() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read()
}

func (f *files[T]) now() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch err := f.read(); {
	case err == nil:
		f.said = ""
	case err.Error() != f.said:
		f.said = err.Error()
		if f.tell != nil {
			f.tell(fmt.Errorf("%w; the last one is used until this is right", err))
		}
	}
	return f.last
}

// read: the stamps are from before the reading, so that a change in between is noticed the next time.
func (f *files[T]) read() error {
	seen := make([]stamp, len(f.names))
	for i, name := range f.names {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err != nil {
			return &os.PathError{Op: "stat", Path: name, Err: err}
		}
		seen[i] = stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
	}
	if slices.Equal(seen, f.seen) {
		return nil
	}
	v, err := f.load()
	if err != nil {
		return err
	}
	f.seen, f.last = seen, v
	return nil
}
