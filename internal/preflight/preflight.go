package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// State is the outcome of a check.
type State uint8

// The states. Refused: this member cannot be armed, or could not come back.
const (
	Refused State = iota // the zero value promises nothing
	Warning
	OK
)

var stateNames = [...]string{Refused: "refused", Warning: "warning", OK: "ok"}

func (s State) String() string {
	if int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// MarshalText makes states readable in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *State) UnmarshalText(b []byte) error {
	i := slices.Index(stateNames[:], string(b))
	if i < 0 {
		return fmt.Errorf("no state %q", b)
	}
	*s = State(i)
	return nil
}

// Result is what one check found.
type Result struct {
	Name   string `json:"name"`
	State  State  `json:"state"`
	Detail string `json:"detail"` // what was seen, one line
	Remedy string `json:"remedy"` // what to do; empty if it is ok
}

// Check is one check.
type Check struct {
	Name    string
	Meaning string // what it looks at, for the documents
	Remedy  string // what to do in general; a result's own is about what was seen
	// Bars: a refusal keeps the member from claiming or from returning, and the core does not see that.
	Bars bool

	judge func(*Facts) Result
}

// Checks are all checks, in the order of results.
func Checks() []Check { return slices.Clone(checks) }

// Run judges facts by every check.
func Run(f *Facts) []Result {
	rs := make([]Result, len(checks))
	for i, c := range checks {
		r := c.judge(f)
		r.Name = c.Name
		r.Detail, r.Remedy = oneLine(r.Detail), oneLine(r.Remedy)
		if r.State != OK && r.Remedy == "" {
			r.Remedy = c.Remedy
		}
		rs[i] = r
	}
	return rs
}

// Barring are the refusals of checks that bar.
func Barring(rs []Result) []Result {
	var out []Result
	for i, r := range rs {
		if r.State == Refused && checks[i].Bars {
			out = append(out, r)
		}
	}
	return out
}

// Names are the names of the results in that state.
func Names(rs []Result, s State) []string {
	var names []string
	for _, r := range rs {
		if r.State == s {
			names = append(names, r.Name)
		}
	}
	return names
}

func ok(format string, args ...any) Result {
	return Result{State: OK, Detail: fmt.Sprintf(format, args...)}
}

// refuse and warn: an empty remedy is the check's own.
func refuse(remedy, format string, args ...any) Result {
	return Result{State: Refused, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

func warn(remedy, format string, args ...any) Result {
	return Result{State: Warning, Detail: fmt.Sprintf(format, args...), Remedy: remedy}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
