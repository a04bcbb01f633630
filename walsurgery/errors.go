package walsurgery

import (
	"errors"
	"fmt"
)

// Errors of this package. Each is wrapped with operation, object and cause; use
// errors.Is. Nothing was changed on disk unless the function says otherwise.
var (
	// ErrNoWAL: the directory does not exist or holds no segment.
	ErrNoWAL = errors.New("no WAL here")

	// ErrLocked: another process, normally a running etcd, holds the WAL's lock.
	ErrLocked = errors.New("the WAL is locked by another process: stop etcd first")

	// ErrCorrupt: a CRC does not match, a frame or record is malformed, segments
	// are missing from the sequence, entries are missing from the log, or terms or
	// the commit index contradict it. A torn tail is not corruption.
	ErrCorrupt = errors.New("the WAL is damaged: do not start or operate on this member, return it from the other one")

	// ErrUnexpectedFormat: intact, but not as any supported etcd writes it.
	ErrUnexpectedFormat = errors.New("not a WAL as etcd 3.5 to 3.7 write it")

	// ErrTooOld: the newest snapshot record carries no configuration, as before
	// etcd 3.5. It is also an ErrUnexpectedFormat.
	ErrTooOld = fmt.Errorf("the newest snapshot record was written before etcd 3.5 and has no configuration, "+
		"let etcd 3.5 or later write one more snapshot: %w", ErrUnexpectedFormat)

	// ErrNoSpace: the file system has less free space than the operation may need.
	ErrNoSpace = errors.New("not enough free disk space")

	// ErrStalePlan: the plan was not made from the present end of this log.
	ErrStalePlan = errors.New("the plan was made from another state of the log: plan again")

	// ErrCannotExchange: the two names cannot be exchanged: one is a mount point,
	// they are on two file systems, or the file system cannot do it.
	ErrCannotExchange = errors.New("directories cannot be exchanged here")

	// ErrExists: CreateEmpty found something under the WAL's name.
	ErrExists = errors.New("the WAL directory already exists and is not empty")

	// ErrClosed: the Log was closed, or it was opened for reading only.
	ErrClosed = errors.New("the log is not open for appending")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrCorrupt)
}

func unexpected(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrUnexpectedFormat)
}
