package lostwrites

import "errors"

// Errors of this package, beside walsurgery's (ErrNoWAL, ErrCorrupt, ErrUnexpectedFormat) and member's (ErrDatabase,
// ErrInsane). Each is wrapped with operation, object and cause; use errors.Is. Nothing was changed, whatever the error.
var (
	// ErrNoMember: the path is neither a data directory nor a member directory.
	ErrNoMember = errors.New("no member directory here: it holds wal and snap")
	// ErrNoDatabase: there is a WAL but no snap/db.
	ErrNoDatabase = errors.New("there is no database beside the WAL: nothing that it had applied can be told")
	// ErrInUse: a process, normally etcd, holds the WAL's lock.
	ErrInUse = errors.New("etcd runs on this directory: lost writes are those of a directory that was set aside")
	// ErrSameHistory: the directory's own log holds the fork's first entry, so the other history is its own.
	ErrSameHistory = errors.New("the directory's own history holds the fork's entry: nothing was overridden there")
	// ErrForkUnknown: where the histories part cannot be told from what was given. Remedy: give another source.
	ErrForkUnknown = errors.New("where the two histories part cannot be told")
	// ErrOtherCluster: the record, or the other directory, is of another cluster or another pair.
	ErrOtherCluster = errors.New("it belongs to another cluster")
)
