package member

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"twok/arbiter"
	"twok/internal/failover"
)

var (
	// ErrLockLost: the lock of the database was not ours all the time (ErrLost,
	// ErrReplaced or ErrReleased say how). What was read is worth nothing. Remedy: take the locks anew.
	ErrLockLost = errors.New("the data directory's lock was lost while reading")
	// ErrDatabase: the database is damaged, or not one of etcd 3.5 to 3.7.
	ErrDatabase = errors.New("the database is damaged: return this member from the other one")
	// ErrInsane: the parts of the data directory contradict each other (P6).
	ErrInsane = errors.New("WAL and database contradict each other")
)

// etcd's buckets (server/storage/schema/bucket.go) and keys.
const (
	bucketKey     = "key"
	bucketMeta    = "meta"
	bucketMembers = "members"
	bucketRemoved = "members_removed"
	keyApplied    = "consistent_index"
)

// Member is a member as the database has it: applied, at consistent_index.
type Member struct {
	ID         uint64
	Name       string // empty until the member has published it
	PeerURLs   []string
	ClientURLs []string // empty until the member has published them
	Learner    bool
}

// memberJSON is etcd's membership.Member, and ConfigChangeContext where IsPromote is set.
type memberJSON struct {
	ID         uint64   `json:"id"`
	PeerURLs   []string `json:"peerURLs"`
	IsLearner  bool     `json:"isLearner"`
	Name       string   `json:"name"`
	ClientURLs []string `json:"clientURLs"`
	IsPromote  bool     `json:"isPromote"`
}

// database is what the rules ask of bbolt, copied out of it.
type database struct {
	applied uint64 // consistent_index, 0: nothing was applied yet
	members []Member
	removed []uint64
	token   appliedToken
	// newest is the highest main revision in the key bucket.
	newest int64
}

// appliedToken is the newest revision of TokenKey.
type appliedToken struct {
	found bool // there is one and it is no tombstone
	value []byte
	lease int64
	main  int64 // main part of its revision
}

// readDatabase reads the locked database. Errors: ErrLockLost, ErrDatabase.
func readDatabase(lock *Lock) (database, error) {
	var db database
	err := guardDatabase(lock.path, func() error {
		return lock.View(func(tx *bbolt.Tx) error {
			// Here too, so that View ends its transaction and closes the backend.
			return guardDatabase(lock.path, func() error {
				file := lockedFile{lock}
				size, err := file.size()
				if err != nil {
					return err
				}
				t, err := newTree(tx, file, size)
				if err != nil {
					return err
				}
				return db.read(t)
			})
		})
	})
	switch {
	case err == nil:
		return db, nil
	case lockLost(err):
		return database{}, fmt.Errorf("read database %s: %w: %w", lock.path, ErrLockLost, err)
	case errors.Is(err, ErrDatabase):
		return database{}, err
	}
	return database{}, fmt.Errorf("read database %s: %w: %w", lock.path, ErrDatabase, err)
}

func lockLost(err error) bool {
	return errors.Is(err, ErrLost) || errors.Is(err, ErrReplaced) || errors.Is(err, ErrReleased)
}

// guardDatabase turns what bbolt does on damaged metadata into an error: it panics, or
// reads beyond the file's end through the mapping.
func guardDatabase(path string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read database %s: %w: %v", path, ErrDatabase, r)
		}
	}()
	return fn()
}

func (db *database) read(t *tree) error {
	err := t.each(bucketMeta, false, func(e element) (bool, error) {
		if string(e.key) != keyApplied {
			return false, nil
		}
		v, err := e.head(9)
		if err == nil && len(v) != 8 {
			err = fmt.Errorf("consistent_index has %d bytes, not 8", e.valueSize)
		}
		if err == nil {
			db.applied = binary.BigEndian.Uint64(v)
		}
		return true, err
	})
	if err != nil {
		return err
	}
	if err := t.each(bucketMembers, false, db.member); err != nil {
		return err
	}
	err = t.each(bucketRemoved, false, func(e element) (bool, error) {
		id, err := parseMemberKey(e.key)
		db.removed = append(db.removed, id)
		return false, err
	})
	if err != nil {
		return err
	}
	return db.findToken(t)
}

func (db *database) member(e element) (bool, error) {
	id, err := parseMemberKey(e.key)
	if err != nil {
		return false, err
	}
	v, err := e.value()
	if err != nil {
		return false, err
	}
	j := memberJSON{ID: id} // as etcd: the key names it where the value does not
	if err := json.Unmarshal(v, &j); err != nil {
		return false, fmt.Errorf("member %x: %w", id, err)
	}
	if j.ID != id {
		return false, fmt.Errorf("member %x calls itself %x", id, j.ID)
	}
	db.members = append(db.members, Member{ID: id, Name: j.Name, PeerURLs: j.PeerURLs, ClientURLs: j.ClientURLs, Learner: j.IsLearner})
	return false, nil
}

// parseMemberKey reads types.ID.String, hexadecimal without leading zeros.
func parseMemberKey(k []byte) (uint64, error) {
	id, err := strconv.ParseUint(string(k), 16, 64)
	if err != nil || strconv.FormatUint(id, 16) != string(k) || id == 0 {
		return 0, fmt.Errorf("%.40q is not a member ID", k)
	}
	return id, nil
}

const (
	revisionLen = 8 + 1 + 8       // main, '_', sub (etcd server/storage/mvcc/revision.go)
	markedLen   = revisionLen + 1 // and 't': a tombstone
)

// keyPrefix begins every mvccpb.KeyValue of TokenKey: field 1, length, key. etcd's
// marshallers, gogo's and Google's, write fields in the order of their numbers.
var keyPrefix = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), TokenKey)

// findToken scans from the newest revision backwards and compares only the key.
func (db *database) findToken(t *tree) error {
	var above [markedLen]byte
	none := true
	return t.each(bucketKey, true, func(e element) (bool, error) {
		k := e.key
		tombstone := len(k) == markedLen && k[markedLen-1] == 't'
		if (len(k) != revisionLen && !tombstone) || k[8] != '_' || k[0]&0x80 != 0 {
			return false, fmt.Errorf("%.40q is not a revision", k)
		}
		switch {
		case none:
			none, db.newest = false, int64(binary.BigEndian.Uint64(k))
		case bytes.Compare(k[:revisionLen], above[:revisionLen]) >= 0:
			return false, fmt.Errorf("revision %x follows %x", above, k)
		}
		copy(above[:], k)
		v, err := e.head(int64(len(keyPrefix)))
		if err != nil {
			return false, err
		}
		keyFirst := len(v) > 0 && v[0] == keyPrefix[0]
		if keyFirst && !bytes.Equal(v, keyPrefix) {
			return false, nil
		}
		if v, err = e.value(); err != nil {
			return false, err
		}
		switch {
		case !keyFirst && !isTokenKey(v):
			return false, nil
		case tombstone:
			return true, nil
		}
		var kv mvccpb.KeyValue
		if err := proto.Unmarshal(v, &kv); err != nil || string(kv.Key) != TokenKey {
			return false, fmt.Errorf("revision %x of %s does not decode: %v", k, TokenKey, err)
		}
		db.token = appliedToken{found: true, value: bytes.Clone(kv.Value), lease: kv.Lease, main: int64(binary.BigEndian.Uint64(k))}
		return true, nil
	})
}

// isTokenKey decides where the key is not the first field, as no etcd writes it.
func isTokenKey(v []byte) bool {
	var kv mvccpb.KeyValue
	return proto.Unmarshal(v, &kv) == nil && string(kv.Key) == TokenKey
}

// decoded is the token as the rules see it; EntryTerm is not looked for.
func (t appliedToken) decoded() (failover.Token, error) {
	if !t.found {
		return failover.Token{}, nil
	}
	tok, _, err := DecodeToken(t.value)
	if err != nil {
		return failover.Token{Present: true, Bad: true}, err
	}
	if t.lease != 0 {
		tok.Bad = true
		return tok, fmt.Errorf("%s is bound to lease %x: %w", TokenKey, t.lease, ErrTokenBad)
	}
	return tok, nil
}

// configuration is the applied one, as FoldConfs takes it.
func (db *database) configuration() []failover.ConfMember {
	var ms []failover.ConfMember
	for _, m := range db.members {
		ms = append(ms, failover.ConfMember{ID: m.ID, Name: m.Name, Learner: m.Learner, PeerURLs: m.PeerURLs})
	}
	slices.SortFunc(ms, func(a, b failover.ConfMember) int { return cmp.Compare(a.ID, b.ID) })
	return ms
}

func (db *database) name(id uint64) string {
	for _, m := range db.members {
		if m.ID == id {
			return m.Name
		}
	}
	return ""
}

func position(index, term uint64) arbiter.Position { return arbiter.Position{Index: index, Term: term} }
