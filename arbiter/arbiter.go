package arbiter

import (
	"context"
	"errors"
)

// Version names one state of a register. The zero value means "there is no
// value": a swap from it creates the value and never overwrites one. Any other
// Version is opaque and comes from Read alone.
type Version struct {
	tag    string
	exists bool
}

// Absent is the Version of a register that holds no value.
var Absent = Version{}

// At is the Version with the store's own tag (an ETag, a mod revision, a
// resourceVersion). A store must refuse to call it with a tag it would take as
// "any": an empty tag stays a version that exists and matches nothing.
func At(tag string) Version { return Version{tag: tag, exists: true} }

// Exists says whether there was a value.
func (v Version) Exists() bool { return v.exists }

// Tag is what the store called this version.
func (v Version) Tag() string { return v.tag }

// Register is one value in a store with an atomic compare-and-swap (P1, A1).
//
// Both methods obey the context's deadline, are safe for concurrent use and do
// not retry: a retry hides a swap that was applied and turns it into a conflict.
// Every error is of one of the five classes below; see Class.
type Register interface {
	// Read returns the value and its version, linearizably. A register without
	// a value is (nil, Absent, nil), never an error; a value of zero bytes has
	// a version that exists. After an error nothing is known.
	Read(ctx context.Context) (value []byte, v Version, err error)

	// CompareAndSwap stores next if the register is still at prev; with Absent
	// it creates the value if there is none. After nil it was applied. After
	// ErrUnknown, or an error of no class, it may have been applied, now or
	// later: read and look for your own nonce. After every other class it was
	// not applied and never will be.
	CompareAndSwap(ctx context.Context, prev Version, next []byte) error
}

// The five classes. Stores wrap them with the operation, the object and the cause.
var (
	// ErrConflict: the register was not at prev. Nothing was written.
	ErrConflict = errors.New("the record changed since it was read")
	// ErrUnknown: the outcome is not known; only a read can tell.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrUnavailable: the store was not reached or said that it did nothing.
	ErrUnavailable = errors.New("the arbiter is unavailable")
	// ErrForbidden: the store refused these credentials.
	ErrForbidden = errors.New("the arbiter refused access")
	// ErrMisconfigured: this cannot work before somebody changes the
	// configuration (no such bucket, no ETag, wrong region, not a store).
	ErrMisconfigured = errors.New("the arbiter is misconfigured")
)

// Class returns which of the five errors err is. An error of none of them is
// ErrUnknown: what is not understood may have been applied. nil gives nil.
func Class(err error) error {
	if err == nil {
		return nil
	}
	for _, c := range []error{ErrConflict, ErrUnavailable, ErrForbidden, ErrMisconfigured} {
		// An error that claims two classes is not understood.
		if errors.Is(err, c) && !errors.Is(err, ErrUnknown) {
			return c
		}
	}
	return ErrUnknown
}
