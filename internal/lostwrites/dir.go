package lostwrites

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"twok/internal/failover"
	"twok/internal/member"
	"twok/walsurgery"
)

// dir is a member directory, open for reading, with what its database says.
type dir struct {
	path string // holds wal and snap
	log  *walsurgery.Log
	sum  walsurgery.Summary
	db   *member.DBFile

	applied    uint64 // consistent_index
	compacted  int64  // every older revision may be gone; -1: none is
	newest     int64  // the current revision, as of applied
	revs       []revision
	byKey      map[string][]int32 // revs of a key, oldest first
	leases     map[int64]int64    // TTL
	alarms     map[alarm]bool
	auth       authState
	voters     map[uint64]bool
	token      failover.Token
	tokenFound int64                     // revision of the token, 0: there is none
	named      map[int64]map[string]bool // keys of revisions that are gone, see names
	namesOf    map[string][]int64
}

// revision is one element of etcd's key bucket.
type revision struct {
	main, sub              int64
	tomb                   bool
	key                    string
	create, version, lease int64
	value                  Value
	old                    State // of what was evaluated
}

type alarm struct {
	member uint64
	kind   etcdserverpb.AlarmType
}

// memberDir accepts a data directory and a member directory, as one that was set aside is.
func memberDir(path string) (string, error) {
	for _, p := range []string{filepath.Join(path, "member"), path} {
		for _, sub := range []string{"wal", "snap"} {
			if st, err := os.Stat(filepath.Join(p, sub)); err == nil && st.IsDir() {
				return p, nil
			}
		}
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s: %w: %w", path, ErrNoMember, err)
	}
	return "", fmt.Errorf("%s: %w", path, ErrNoMember)
}

// openDir reads a directory. Nothing in it is changed.
func openDir(path string) (d *dir, err error) {
	d = &dir{}
	if d.path, err = memberDir(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("read %s: %w", d.path, err), d.close())
			d = nil
		}
	}()
	wal := filepath.Join(d.path, "wal")
	if locked, err := walsurgery.Locked(wal); err == nil && locked {
		return d, ErrInUse
	}
	if d.log, err = walsurgery.Inspect(nil, wal); err != nil {
		return d, err
	}
	d.sum = d.log.Summary()
	d.db, err = member.OpenDB(filepath.Join(d.path, "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("%w: %w", ErrNoDatabase, err)
	}
	if err != nil {
		return d, err
	}
	if err := d.readDatabase(); err != nil {
		return d, err
	}
	if d.applied > d.sum.Last.Index {
		return d, fmt.Errorf("consistent_index %d is beyond the end of the log, %s: %w", d.applied, d.sum.Last, member.ErrInsane)
	}
	return d, nil
}

func (d *dir) close() error {
	var err error
	if d.log != nil {
		err = d.log.Close()
	}
	if d.db != nil {
		err = errors.Join(err, d.db.Close())
	}
	return err
}

// committed is up to where the member itself knew its log to be committed.
func (d *dir) committed() uint64 { return max(d.applied, d.sum.HardState.Commit) }

func (d *dir) readDatabase() error {
	d.compacted = -1
	var compacted [2]int64
	number := func(e member.Element, into *uint64) error {
		b, err := e.Head(9)
		if err == nil && len(b) != 8 {
			err = fmt.Errorf("%s has %d bytes, not 8: %w", e.Key, len(b), member.ErrDatabase)
		}
		if err == nil {
			*into = binary.BigEndian.Uint64(b)
		}
		return err
	}
	err := d.db.Each("meta", func(e member.Element) (bool, error) {
		var err error
		switch string(e.Key) {
		case "consistent_index":
			err = number(e, &d.applied)
		case "scheduledCompactRev":
			compacted[0], err = mainRevision(e)
		case "finishedCompactRev":
			compacted[1], err = mainRevision(e)
		}
		return false, err
	})
	if err != nil {
		return err
	}
	if c := max(compacted[0], compacted[1]); c > 0 {
		d.compacted = c
	}
	d.newest = max(1, d.compacted)
	if err := d.readKeys(); err != nil {
		return err
	}
	d.leases = map[int64]int64{}
	if err := d.db.Each("lease", d.readLease); err != nil {
		return err
	}
	d.alarms = map[alarm]bool{}
	err = d.db.Each("alarm", func(e member.Element) (bool, error) {
		var a etcdserverpb.AlarmMember
		if err := proto.Unmarshal(e.Key, &a); err != nil {
			return false, fmt.Errorf("an alarm: %w: %w", member.ErrDatabase, err)
		}
		d.alarms[alarm{a.MemberID, a.Alarm}] = true
		return false, nil
	})
	if err != nil {
		return err
	}
	if err := d.readAuth(number); err != nil {
		return err
	}
	return d.readMembers()
}

// mainRevision reads a revision, main and sub, in the meta bucket.
func mainRevision(e member.Element) (int64, error) {
	b, err := e.Head(17)
	if err == nil && len(b) != 17 {
		err = fmt.Errorf("%s has %d bytes, not 17: %w", e.Key, len(b), member.ErrDatabase)
	}
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// readKeys reads the key bucket. Its keys are main, '_', sub and, for a tombstone, 't' (etcd
// storage/mvcc/revision.go).
func (d *dir) readKeys() error {
	d.byKey = map[string][]int32{}
	names := map[string]string{} // one copy of each key
	return d.db.Each("key", func(e member.Element) (bool, error) {
		tomb := len(e.Key) == 18 && e.Key[17] == 't'
		if len(e.Key) != 17 && !tomb || e.Key[8] != '_' || e.Key[0]&0x80 != 0 {
			return false, fmt.Errorf("%.40q is not a revision: %w", e.Key, member.ErrDatabase)
		}
		b, err := e.Value()
		if err != nil {
			return false, err
		}
		kv, err := parseKV(b)
		if err != nil {
			return false, fmt.Errorf("revision %x: %w: %w", e.Key, member.ErrDatabase, err)
		}
		key, ok := names[string(kv.key)]
		if !ok {
			key = string(kv.key)
			names[key] = key
		}
		r := revision{main: int64(binary.BigEndian.Uint64(e.Key)), sub: int64(binary.BigEndian.Uint64(e.Key[9:])),
			tomb: tomb, key: key, create: kv.create, version: kv.version, lease: kv.leaseID, value: Value{n: len(kv.value), d: d}}
		if ref, ok := e.Ref(); ok {
			r.value.db = ref
		} else {
			r.value.mem = slices.Clone(kv.value)
		}
		if key == member.TokenKey && !tomb {
			if tok, _, err := member.DecodeToken(kv.value); err == nil {
				d.token, d.tokenFound = tok, r.main
			}
		}
		d.newest = max(d.newest, r.main)
		d.byKey[key] = append(d.byKey[key], int32(len(d.revs)))
		d.revs = append(d.revs, r)
		return false, nil
	})
}

// readLease reads a leasepb.Lease: ID (1), TTL (2).
func (d *dir) readLease(e member.Element) (bool, error) {
	b, err := e.Value()
	if err != nil {
		return false, err
	}
	var id, ttl int64
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || typ != protowire.VarintType {
			return false, fmt.Errorf("lease %x does not decode: %w", e.Key, member.ErrDatabase)
		}
		v, m := protowire.ConsumeVarint(b[n:])
		if m < 0 {
			return false, fmt.Errorf("lease %x does not decode: %w", e.Key, member.ErrDatabase)
		}
		switch b = b[n+m:]; num {
		case 1:
			id = int64(v)
		case 2:
			ttl = int64(v)
		}
	}
	d.leases[id] = ttl
	return false, nil
}

func (d *dir) readAuth(number func(member.Element, *uint64) error) error {
	d.auth = authState{users: map[string]*authpb.User{}, roles: map[string]*authpb.Role{}}
	err := d.db.Each("auth", func(e member.Element) (bool, error) {
		switch string(e.Key) {
		case "authEnabled":
			b, err := e.Head(2)
			d.auth.enabled = len(b) == 1 && b[0] == 1
			return false, err
		case "authRevision":
			return false, number(e, &d.auth.revision)
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	err = d.db.Each("authUsers", func(e member.Element) (bool, error) {
		b, err := e.Value()
		if err != nil {
			return false, err
		}
		u := new(authpb.User)
		if err := proto.Unmarshal(b, u); err != nil {
			return false, fmt.Errorf("user %q: %w: %w", e.Key, member.ErrDatabase, err)
		}
		d.auth.users[string(u.Name)] = u
		return false, nil
	})
	if err != nil {
		return err
	}
	return d.db.Each("authRoles", func(e member.Element) (bool, error) {
		b, err := e.Value()
		if err != nil {
			return false, err
		}
		r := new(authpb.Role)
		if err := proto.Unmarshal(b, r); err != nil {
			return false, fmt.Errorf("role %q: %w: %w", e.Key, member.ErrDatabase, err)
		}
		d.auth.roles[string(r.Name)] = r
		return false, nil
	})
}

// readMembers reads the applied configuration.
func (d *dir) readMembers() error {
	d.voters = map[uint64]bool{}
	return d.db.Each("members", func(e member.Element) (bool, error) {
		b, err := e.Value()
		if err != nil {
			return false, err
		}
		id, learner, err := parseMember(b)
		if err != nil {
			return false, fmt.Errorf("member %s: %w: %w", e.Key, member.ErrDatabase, err)
		}
		if !learner {
			d.voters[id] = true
		}
		return false, nil
	})
}

func parseMember(b []byte) (id uint64, learner bool, err error) {
	var m struct {
		ID        uint64 `json:"id"`
		IsLearner bool   `json:"isLearner"`
	}
	err = json.Unmarshal(b, &m)
	return m.ID, m.IsLearner, err
}

// alone says whether the member is the only voter at the end of its log, where whatever it synced counts
// as committed. Changes that etcd would reject are not told apart: they add voters, and then it says no.
func (d *dir) alone() bool {
	voters := map[uint64]bool{}
	for id := range d.voters {
		voters[id] = true
	}
	for e := range d.log.From(d.applied + 1) {
		if e.Kind == walsurgery.KindOther {
			return false
		}
		if e.Kind != walsurgery.KindConfChange {
			continue
		}
		switch e.Change.Type {
		case walsurgery.RemoveNode:
			delete(voters, e.Change.NodeID)
		case walsurgery.AddNode:
			voters[e.Change.NodeID] = true
		}
	}
	return len(voters) == 1 && voters[d.sum.MemberID]
}
