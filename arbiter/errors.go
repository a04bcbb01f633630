package arbiter

import "errors"

// What Decode says about a value that is not a record of this version (F11).
// Exactly one of the five is in the chain of every error of Decode. None of them
// permits a claim, and none of them is repaired by writing over the value: an
// operator decides (P11). A register without a value is not among them: that is
// the Version Absent.
var (
	// ErrEmpty: the value has no bytes at all.
	ErrEmpty = errors.New("the record is empty")
	// ErrWhitespace: the value has nothing but white space.
	ErrWhitespace = errors.New("the record is white space only")
	// ErrGarbage: not JSON, truncated, followed by other data, with a field
	// twice, with a field of a wrong type or value, or breaking an invariant of
	// Record (then ErrInvalid is in the chain too).
	ErrGarbage = errors.New("the record is garbage")
	// ErrForeign: JSON, but nobody wrote it as a twok record.
	ErrForeign = errors.New("the value is not a twok record")
	// ErrFuture: a record of a newer format. This version neither understands
	// nor rewrites it: upgrade twok.
	ErrFuture = errors.New("the record has a newer format than this twok")
)

// What Encode refuses. Nothing is to be written after either.
var (
	// ErrInvalid: the record breaks an invariant; see Record.Validate.
	ErrInvalid = errors.New("the record is not valid")
	// ErrTooLarge: the encoded record would have more than MaxSize bytes. Fit
	// shortens what is for people only.
	ErrTooLarge = errors.New("the record is too large")
)
