package member

import (
	"errors"
	"fmt"
	"path/filepath"

	"twok/internal/failover"
	"twok/walsurgery"
)

// Peek is what a data directory says to an agent that starts while etcd does not
// answer: identity and neighbours. It decides nothing; claims rest on Read alone.
type Peek struct {
	Member, Cluster uint64 // from the WAL; right whenever Member is not 0

	// TokenRead: the database was read, and all below is right as of Applied.
	TokenRead bool
	Applied   uint64 // consistent_index
	Name      string // this member's own, empty if unknown
	Members   []Member
	Removed   []uint64       // members_removed
	Token     failover.Token // applied; EntryTerm is not looked for
}

// PeekDir reads a data directory without waiting and without changing anything.
// walDir is etcd's --wal-dir, or empty: <dataDir>/member/wal. With an error the result holds
// what could be read before it: the member's identity comes from the WAL and needs no lock.
//
// Errors: ErrHeld while etcd runs (or starts); fs.ErrNotExist without a database;
// ErrDatabase; ErrEmpty (with it); walsurgery.ErrNoWAL without a WAL, and the other errors of
// walsurgery.ReadMetadata. The lock is held for the moment of the reading: an etcd that
// starts just then waits that long.
func PeekDir(dataDir, walDir string) (Peek, error) {
	var p Peek
	if walDir == "" {
		walDir = filepath.Join(dataDir, "member", "wal")
	}
	md, err := walsurgery.ReadMetadata(walDir)
	if err != nil {
		return p, fmt.Errorf("peek into %s: %w", dataDir, err)
	}
	p.Member, p.Cluster = md.MemberID, md.ClusterID
	lock, err := TryLock(dataDir)
	if err != nil {
		return p, fmt.Errorf("peek into %s: %w", dataDir, err)
	}
	db, err := readDatabase(lock)
	if err = errors.Join(err, lock.Release()); err != nil {
		return p, fmt.Errorf("peek into %s: %w", dataDir, err)
	}
	p.TokenRead, p.Applied, p.Members, p.Removed, p.Name = true, db.applied, db.members, db.removed, db.name(p.Member)
	p.Token, _ = db.token.decoded() // Bad says it
	return p, nil
}
