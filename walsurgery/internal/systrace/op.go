//go:build linux && (amd64 || arm64)

package systrace

import (
	"fmt"
	"strings"
	"syscall"
)

// Op is one call of the traced program, in the order of their beginnings.
type Op struct {
	Call  string // as the kernel names it; variants without "at" by the name with it
	Path  string // relative to the root, slash-separated; "." is the root
	To    string // the second name of a rename or link
	Nth   int    // this call on this path, counted from 1
	Off   int64  // write: where the file position was; -1 if unknown
	Len   int64  // bytes asked for, -1 if the call has no length
	Data  []byte // write: what was asked to be written
	Read  bool   // it changes nothing (Config.Reads)
	Reply bool   // a write to the standard output

	// Begin and End order the beginnings and ends of all calls; End is 0 if the
	// call did not return.
	Begin, End int
	Ret        int64
	Err        syscall.Errno // 0: success
}

// Key names the op in a way that is the same in every run.
func (o Op) Key() string {
	s := o.Call + " " + o.Path
	if o.To != "" {
		s += " > " + o.To
	}
	return fmt.Sprintf("%s #%d", s, o.Nth)
}

// Writes tells whether the op puts bytes into a file.
func (o Op) Writes() bool {
	return strings.Contains(o.Call, "write") || o.Call == "copy_file_range" || o.Call == "sendfile" || o.Call == "splice"
}

// Syncs tells whether the op makes something durable.
func (o Op) Syncs() bool { return strings.Contains(o.Call, "sync") }

// Renames tells whether the op is a rename or an exchange.
func (o Op) Renames() bool { return strings.HasPrefix(o.Call, "rename") }

// Done tells whether the op was made and succeeded.
func (o Op) Done() bool { return o.End > 0 && o.Err == 0 }

// Action is what a Fault does.
type Action int

// The actions.
const (
	KillBefore Action = iota + 1 // SIGKILL, the call is not made
	KillAfter                    // the call is made, then SIGKILL
	Fail                         // the call returns Fault.Err and is not made
	Short                        // it gets Fault.Len bytes
	ShortKill                    // it gets Fault.Len bytes, then SIGKILL
	ShortFail                    // it gets Fault.Len bytes; the next call of that name on that path fails with Fault.Err
)

func (a Action) String() string {
	return [...]string{"none", "kill before", "kill after", "fail", "short", "short and kill", "short and fail"}[a]
}

// Fault is one disturbance.
type Fault struct {
	At  string // Op.Key
	Do  Action
	Len int64
	Err syscall.Errno
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s: %s", f.At, f.Do)
	if f.Do >= Short {
		s += fmt.Sprintf(" at %d bytes", f.Len)
	}
	if f.Err != 0 {
		s += fmt.Sprintf(" (%s)", f.Err)
	}
	return s
}
