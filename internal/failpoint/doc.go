// Package failpoint stops, pauses, fails or kills the process at named steps.
//
// It exists for tests of crash safety: the operations of walsurgery, the agent
// and rejoin call Hit at each step between two changes of the world, and a
// test makes one of those calls act. Without the build tag "failpoints" Hit is
// an empty function that the compiler inlines away, Declare records nothing and
// the environment is not read.
//
// # Names
//
// A name is "area/operation/step", such as "wal/append/entries", and says what
// has just been done. The package that calls Hit keeps its names as constants
// and registers each with Declare in a package variable:
//
//	const stepEntries = "wal/append/entries"
//
//	var _ = failpoint.Declare(stepEntries)
//
// # Environment
//
// TWOK_FAILPOINTS is a list separated by semicolons of
//
//	name=kill            SIGKILL to oneself
//	name=exit            os.Exit(ExitCode), deferred functions do not run
//	name=error           Hit returns an error that wraps ErrInjected
//	name=pause:FILE      create FILE.reached, go on when FILE exists
//	name=pause:DURATION  go on after a Go duration ("250ms")
//
// each with an optional "@N": act at the N-th hit of that name only, counted
// from 1 ("wal/append/entries=kill@2"). Without it kill and exit act at the
// first, error and pause at every hit.
//
// # Invariants
//
//  1. A specification that cannot act is not ignored: a syntax error, an
//     unknown action or a name that this program has not declared panics at
//     the first Hit. A test whose failpoint never fires would pass for nothing.
//  2. Hit of a name that was not declared panics (with the tag).
//  3. FILE.reached is created before the wait starts, so whoever sees it finds
//     the process at that step.
package failpoint
