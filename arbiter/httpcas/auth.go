package httpcas

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// Basic and Bearer are the values of an Authorization header (RFC 7617, 6750).
func Basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Bearer is Basic's sister for a token.
func Bearer(token string) string { return "Bearer " + token }

// Accounts are who may use a Server: the lines USER:PASSWORD of one file, the
// tokens of another, one a line. Empty lines and lines that begin with # do not count. A file that was
// changed is read again; while it cannot be read, nobody may do anything.
type Accounts struct {
	users, tokens string

	mu      sync.Mutex
	read    [2]stamp
	allowed [][sha256.Size]byte // of the Authorization headers
	err     error
}

type stamp struct {
	at   time.Time
	size int64
}

// NewAccounts reads the files; "" is none of the kind. No account at all is an error.
func NewAccounts(usersFile, tokensFile string) (*Accounts, error) {
	a := &Accounts{users: usersFile, tokens: tokensFile}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	return a, a.err
}

// refresh reads the files if they changed. Under mu.
func (a *Accounts) refresh() {
	var now [2]stamp
	for i, name := range []string{a.users, a.tokens} {
		if name == "" {
			continue
		}
		fi, err := os.Stat(name)
		if err != nil {
			a.read, a.err = [2]stamp{}, fmt.Errorf("the accounts: %w", err)
			return
		}
		now[i] = stamp{fi.ModTime(), fi.Size()}
	}
	if now == a.read && a.err == nil && a.allowed != nil {
		return
	}
	users, err := lines(a.users)
	tokens, err2 := lines(a.tokens)
	a.allowed, a.read, a.err = nil, now, errors.Join(err, err2)
	for i, line := range users {
		user, password, ok := strings.Cut(line, ":")
		if !ok || user == "" || password == "" {
			a.err = fmt.Errorf("the accounts: %s: entry %d is not USER:PASSWORD", a.users, i+1) // not the line: it may be a password
			break
		}
		a.allowed = append(a.allowed, sha256.Sum256([]byte(Basic(user, password))))
	}
	for _, token := range tokens {
		a.allowed = append(a.allowed, sha256.Sum256([]byte(Bearer(token))))
	}
	if a.err == nil && len(a.allowed) == 0 {
		a.err = fmt.Errorf("the accounts: %s has no entry", strings.TrimSpace(a.users+" "+a.tokens))
	}
}

func lines(file string) (ls []string, err error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the accounts: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" && line[0] != '#' {
			ls = append(ls, line)
		}
	}
	return ls, nil
}

// check is nil for a request of somebody who may, errWho for one of somebody else.
func (a *Accounts) check(r *http.Request) error {
	a.mu.Lock()
	a.refresh()
	allowed, err := a.allowed, a.err
	a.mu.Unlock()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	found := 0
	for _, other := range allowed {
		found |= subtle.ConstantTimeCompare(sum[:], other[:])
	}
	if found == 0 {
		return errWho
	}
	return nil
}

var errWho = errors.New("this needs a user and password, or a token, that the arbiter knows")

// Require makes the server refuse whoever is not among a: 401, but for
// /healthz. It is called before the server serves.
func (s *Server) Require(a *Accounts) { s.accounts = a }

// permitted answers a request that is not permitted and says so.
func (s *Server) permitted(w http.ResponseWriter, r *http.Request) bool {
	if s.accounts == nil {
		return true
	}
	switch err := s.accounts.check(r); {
	case errors.Is(err, errWho):
		w.Header().Add("WWW-Authenticate", `Basic realm="twok arbiter"`)
		w.Header().Add("WWW-Authenticate", `Bearer realm="twok arbiter"`)
		refuse(w, http.StatusUnauthorized, err.Error())
	case err != nil:
		w.Header().Set(HeaderApplied, "no")
		refuse(w, http.StatusServiceUnavailable, "the arbiter cannot read its accounts; its log says why")
		s.complain(err)
	default:
		return true
	}
	return false
}

// complain logs an error once in a while.
func (s *Server) complain(err error) {
	s.complaint.Lock()
	defer s.complaint.Unlock()
	if s.errorLog != nil && time.Since(s.complained) > time.Minute {
		s.complained = time.Now()
		s.errorLog.Print(err)
	}
}
