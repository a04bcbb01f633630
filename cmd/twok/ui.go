package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// Rules of the user interface:
//
//   - Results go to stdout, everything else to stderr. With --json stdout holds
//     exactly one JSON object.
//   - An error ends the command. It is printed once, by run, as
//     "twok: error: …", and as "hint: …" if the error carries a remedy.
//   - The exit code is carried by the error (withCode). 0 is success, 1 any
//     error without a code of its own, 2 wrong usage; a command that has further
//     ones lists them in its --help.
//   - No colours, no spinners, no question to the user but the one of a forced claim.

const (
	exitError = 1 // no more specific code
	exitUsage = 2 // unknown command or flag, wrong value
)

// uiError adds a remedy, an exit code, or both to an error. errors.Is and
// errors.As see through it.
type uiError struct {
	err  error
	hint string // empty: none
	code int    // 0: none
}

func (e *uiError) Error() string { return e.err.Error() }
func (e *uiError) Unwrap() error { return e.err }

// hint adds what the user can do about err. The outermost hint is printed.
// hint(nil, …) is nil.
func hint(err error, text string) error {
	if err == nil {
		return nil
	}
	return &uiError{err: err, hint: text}
}

// withCode sets the exit code of err, 1 to 125. The outermost code counts.
// withCode(nil, …) is nil.
func withCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return &uiError{err: err, code: code}
}

// usageError is a wrong command line: exit code 2.
func usageError(format string, args ...any) error {
	return withCode(fmt.Errorf(format, args...), exitUsage)
}

// hintOf returns the outermost hint in err's chain, "" if there is none.
func hintOf(err error) string {
	for e := new(uiError); errors.As(err, &e); err = e.err {
		if e.hint != "" {
			return e.hint
		}
	}
	return ""
}

// codeOf returns the exit code for err.
func codeOf(err error) int {
	if err == nil {
		return 0
	}
	rest := err
	for e := new(uiError); errors.As(rest, &e); rest = e.err {
		if e.code != 0 {
			return e.code
		}
	}
	var ec cli.ExitCoder
	if errors.As(err, &ec) && ec.ExitCode() != 0 {
		return ec.ExitCode()
	}
	return exitError
}

// report prints err, if any, and returns the exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "twok: error: %s\n", oneLine(err.Error()))
	if h := hintOf(err); h != "" {
		fmt.Fprintf(stderr, "hint: %s\n", oneLine(h))
	}
	return codeOf(err)
}

// oneLine keeps an error on its line, so that a log or a script can read it.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
