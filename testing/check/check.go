package check

import (
	"fmt"
	"strings"
	"time"

	"twok/testing/history"
)

// Verdict of a check.
type Verdict string

// The verdicts. Only the first one is good.
const (
	OK         Verdict = "ok"
	Violated   Verdict = "VIOLATED"
	NotChecked Verdict = "NOT CHECKED"
)

// Result is one check's.
type Result struct {
	Name     string   `json:"name"`
	Verdict  Verdict  `json:"verdict"`
	Checked  int      `json:"checked"`            // facts that were looked at
	Count    int      `json:"count,omitempty"`    // findings
	Findings []string `json:"findings,omitempty"` // the first ones
}

// named is how many findings are kept in words.
const named = 20

// bad notes a violation.
func (r *Result) bad(format string, args ...any) {
	r.Verdict = Violated
	r.note(format, args...)
}

// missing notes that something could not be checked. A violation stays one.
func (r *Result) missing(format string, args ...any) {
	if r.Verdict == OK {
		r.Verdict = NotChecked
	}
	r.note("not checked: "+format, args...)
}

func (r *Result) note(format string, args ...any) {
	if r.Count++; len(r.Findings) < named {
		r.Findings = append(r.Findings, fmt.Sprintf(format, args...))
	}
}

// Stale is what serializable reads got.
type Stale struct {
	Reads  int           `json:"reads"`
	Stale  int           `json:"stale"`
	Oldest time.Duration `json:"oldest_ns"` // the longest time since a write that was missed was acknowledged
}

// Report is all of it.
type Report struct {
	Results []Result         `json:"results"`
	Stale   map[string]Stale `json:"stale"` // by site
	Ops     int              `json:"operations"`
	Acked   int              `json:"acknowledged_writes"`
	Unknown int              `json:"unknown"`
}

// OK says whether every check was made and found nothing.
func (r Report) OK() bool {
	for _, x := range r.Results {
		if x.Verdict != OK {
			return false
		}
	}
	return len(r.Results) > 0
}

// String is one line.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations, %d writes acknowledged, %d unknown", r.Ops, r.Acked, r.Unknown)
	for _, x := range r.Results {
		if x.Verdict != OK {
			fmt.Fprintf(&b, "; %s %s (%d)", x.Name, x.Verdict, x.Count)
			if len(x.Findings) > 0 {
				b.WriteString(": " + x.Findings[0])
			}
		}
	}
	return b.String()
}

// Options of a check.
type Options struct {
	// Compaction: etcd compacted in this run, so that a watch which was away may have missed
	// revisions, if it was told so.
	Compaction bool
	// NoClaims: there were no agents, so neither record nor traces.
	NoClaims bool
	// Timeout of porcupine for each group. Default one minute.
	Timeout time.Duration
}

// Run makes all checks.
func Run(h history.History, o Options) Report {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	r := Report{Ops: len(h.Ops), Stale: stale(h)}
	for i := range h.Ops {
		switch op := &h.Ops[i]; {
		case op.Wrote():
			r.Acked++
		case op.Outcome == history.Unknown:
			r.Unknown++
		}
	}
	type check struct {
		name string
		f    func(*Result, history.History, Options)
	}
	checks := []check{
		{"acknowledged", acknowledged}, {"linearizable", linearizable}, {"reads", reads}, {"revisions", revisions},
		{"watch", watch}, {"equal", equal},
	}
	if !o.NoClaims {
		checks = append(checks, check{"record", record}, check{"replaced", replaced})
	}
	for _, c := range checks {
		res := Result{Name: c.name, Verdict: OK}
		c.f(&res, h, o)
		if res.Checked == 0 {
			res.missing("there was nothing to check")
		}
		r.Results = append(r.Results, res)
	}
	return r
}
