package failpoint

import "errors"

// Env is the environment variable that drives the failpoints.
const Env = "TWOK_FAILPOINTS"

// ExitCode is the exit status of the action "exit".
const ExitCode = 86

// ErrInjected is wrapped by the error that Hit returns for the action "error".
var ErrInjected = errors.New("injected failure")
