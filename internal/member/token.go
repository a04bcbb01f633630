package member

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"twok/arbiter"
	"twok/internal/failover"
)

const (
	// TokenKey is the key of the pair token in etcd (P14).
	TokenKey = "/twok/pair"
)

var (
	// ErrTokenBad: the value is not a pair token as EncodeToken writes it. Remedy:
	// let the pair become whole, the leader's agent writes the token anew.
	ErrTokenBad = errors.New("not a pair token")
	// ErrTokenFuture: a pair token of a newer version. It is an ErrTokenBad, too.
	ErrTokenFuture = fmt.Errorf("a pair token of a newer version, upgrade twok: %w", ErrTokenBad)
)

const (
	tokenVersion = 1
	maxToken     = 1024 // bytes of a value that is looked at
)

// tokenJSON is the value of TokenKey. IDs are 16 hex digits, as etcdctl prints them.
type tokenJSON struct {
	Version    int       `json:"twok_pair"`
	Record     string    `json:"record"`
	Generation uint64    `json:"generation"`
	Cluster    string    `json:"cluster"`
	Members    [2]string `json:"members"`
	Term       uint64    `json:"term"`
	Nonce      string    `json:"nonce"`
}

// EncodeToken is the value of TokenKey for t, of which Present, Bad and EntryTerm
// are not stored. The nonce must be fresh for every write: it makes the log entry that
// carries the value the only one (P4 a). ErrTokenBad: a part is missing or malformed.
func EncodeToken(t failover.Token, nonce string) ([]byte, error) {
	if err := checkToken(t, nonce); err != nil {
		return nil, fmt.Errorf("encode pair token: %w: %w", ErrTokenBad, err)
	}
	b, err := json.Marshal(tokenJSON{
		Version: tokenVersion, Record: t.RecordID, Generation: t.Generation, Cluster: arbiter.FormatID(t.Cluster),
		Members: [2]string{arbiter.FormatID(t.Members[0]), arbiter.FormatID(t.Members[1])}, Term: t.Term, Nonce: nonce,
	})
	if err != nil {
		return nil, fmt.Errorf("encode pair token: %w", err)
	}
	return b, nil
}

// DecodeToken reads what EncodeToken wrote, byte by byte: another order or spelling,
// an unknown, repeated or missing field are ErrTokenBad. Present is set in the result.
func DecodeToken(value []byte) (failover.Token, string, error) {
	t, nonce, err := decodeToken(value)
	if err != nil {
		return failover.Token{}, "", fmt.Errorf("decode pair token: %w", err)
	}
	return t, nonce, nil
}

func decodeToken(value []byte) (failover.Token, string, error) {
	bad := func(err error) (failover.Token, string, error) {
		return failover.Token{}, "", fmt.Errorf("%.120q: %w: %w", value, ErrTokenBad, err)
	}
	if len(value) > maxToken {
		return bad(fmt.Errorf("%d bytes, more than %d", len(value), maxToken))
	}
	var v struct {
		Version int `json:"twok_pair"`
	}
	if err := json.Unmarshal(value, &v); err == nil && v.Version > tokenVersion {
		return failover.Token{}, "", fmt.Errorf("version %d: %w", v.Version, ErrTokenFuture)
	}
	var j tokenJSON
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return bad(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad(errors.New("more bytes after the object"))
	}
	if j.Version != tokenVersion {
		return bad(fmt.Errorf("version %d", j.Version))
	}
	t := failover.Token{Present: true, RecordID: j.Record, Generation: j.Generation, Term: j.Term}
	var err error
	if t.Cluster, err = arbiter.ParseID(j.Cluster); err != nil {
		return bad(err)
	}
	for i := range t.Members {
		if t.Members[i], err = arbiter.ParseID(j.Members[i]); err != nil {
			return bad(err)
		}
	}
	again, err := EncodeToken(t, j.Nonce)
	if err != nil {
		return bad(err)
	}
	if !bytes.Equal(again, value) {
		return bad(errors.New("not in the form that twok writes"))
	}
	return t, j.Nonce, nil
}

func checkToken(t failover.Token, nonce string) error {
	switch {
	case t.Bad:
		return errors.New("marked as bad")
	case !plainID(t.RecordID):
		return fmt.Errorf("record ID %.80q is not 1 to 64 letters, digits, '-', '_' or '.'", t.RecordID)
	case !plainID(nonce):
		return fmt.Errorf("nonce %.80q is not 1 to 64 letters, digits, '-', '_' or '.'", nonce)
	case t.Generation == 0:
		return errors.New("generation 0")
	case t.Cluster == 0:
		return errors.New("no cluster ID")
	case t.Members[0] == 0 || t.Members[0] >= t.Members[1]:
		return fmt.Errorf("members %x and %x are not two IDs in ascending order", t.Members[0], t.Members[1])
	case t.Term == 0:
		return errors.New("term 0")
	}
	return nil
}

// plainID is what the record's codec allows in a record ID or nonce.
func plainID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}
