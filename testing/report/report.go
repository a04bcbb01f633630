package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"twok/testing/check"
)

// Moment is a note of a scenario.
type Moment struct {
	At   time.Duration `json:"at_ns"` // since its clients started
	Text string        `json:"text"`
}

// The programs of an absence.
const (
	Etcd  = "etcd"
	Agent = "agent"
)

// Absence is a time in which a site's program was seen not to run, since its clients started: down, or frozen by a signal.
type Absence struct {
	Site    string        `json:"site"`
	Program string        `json:"program"`
	State   string        `json:"state"`
	From    time.Duration `json:"from_ns"`
	To      time.Duration `json:"to_ns"` // the last look, or the first that showed something else
	Ended   bool          `json:"ended"` // it showed something else
}

// Result is what became of one scenario.
type Result struct {
	Name    string        `json:"name"`
	Seed    uint64        `json:"seed"` // of the run: with the name it gives the scenario's choices
	Ran     bool          `json:"ran"`
	Error   string        `json:"error,omitempty"` // what should have happened and did not, or why it did not run
	Check   *check.Report `json:"check,omitempty"` // nil: nothing was checked
	Moments []Moment      `json:"moments,omitempty"`
	Absent  []Absence     `json:"absent,omitempty"`
	Claims  int           `json:"claims"` // won, as the traces show
	Took    time.Duration `json:"took_ns"`
	// Of Took: until the pair was whole, and from the clients' end to the last check.
	Started time.Duration `json:"started_ns"`
	Judged  time.Duration `json:"judged_ns"`
	Dir     string        `json:"dir,omitempty"` // logs, traces, history
	Etcd    string        `json:"etcd,omitempty"`
	// Broken is the assumption of docs/design/protocol.md that the fault broke, on purpose, and How in words. Holds: nothing may be
	// lost even so.
	Broken string `json:"broken_assumption,omitempty"`
	How    string `json:"broken_how,omitempty"`
	Holds  bool   `json:"holds,omitempty"`
	// Refused is how the arbiter's store was refused by its probe.
	Refused string `json:"store_refused,omitempty"`
	// Trace is what became of the agents' traces. Nil: it did not come to that.
	Trace *Trace `json:"trace,omitempty"`
}

// Trace is the validation of the agents' traces.
type Trace struct {
	Verdict TraceVerdict  `json:"verdict"`
	Detail  string        `json:"detail"`
	Took    time.Duration `json:"took_ns"`
}

// TraceVerdict says what validation came to. Refused is red.
type TraceVerdict string

// The verdicts on traces.
const (
	Explained TraceVerdict = "explained"
	Refused   TraceVerdict = "REFUSED"
	Undecided TraceVerdict = "undecided" // within the limit of the search
	Untraced  TraceVerdict = "untraced"  // the model does not know the fault
)

// OK says whether it ran, did what it should, and every check was made and found nothing.
func (r Result) OK() bool { return r.Verdict() == ok }

// Red says whether something is wrong. A broken assumption, where the fault breaks one on purpose and was seen to, is neither that nor OK.
func (r Result) Red() bool { return !r.OK() && !r.Breaks() }

// Breaks says whether it ended as a broken assumption.
func (r Result) Breaks() bool { return r.Broken != "" && r.Verdict() == r.broken() }

const ok = "ok"

func (r Result) broken() string { return "BROKEN ASSUMPTION (" + r.Broken + ")" }

// Violated says whether a check found what no broken assumption excuses. That is so of a scenario that did not come to its end, too. That
// the two members of a pair that is whole differ is never excused: they are compared before one becomes a voter (P12).
func (r Result) Violated() bool {
	return r.Ran && r.Check != nil && slices.ContainsFunc(r.Check.Results, func(x check.Result) bool {
		return x.Verdict == check.Violated && (r.Broken == "" || r.Holds || x.Name == "equal")
	})
}

func (r Result) found(v check.Verdict) bool {
	return r.Check != nil && slices.ContainsFunc(r.Check.Results, func(x check.Result) bool { return x.Verdict == v })
}

// Verdict is some words.
func (r Result) Verdict() string {
	switch {
	case !r.Ran:
		return "NOT RUN"
	case r.Violated():
		return "VIOLATED"
	case r.Error != "":
		return "FAILED"
	case r.Check == nil || len(r.Check.Results) == 0 || r.found(check.NotChecked):
		return "NOT CHECKED"
	case r.Trace != nil && r.Trace.Verdict == Refused:
		return "TRACE REFUSED"
	case r.Broken != "":
		return r.broken()
	}
	return ok
}

// Line is one line.
func (r Result) Line() string {
	s := fmt.Sprintf("%-11s %5.1f s  %s", r.Verdict(), r.Took.Seconds(), r.Name)
	if r.Check != nil {
		s += fmt.Sprintf("  %s, %d claims", strings.ReplaceAll(r.Check.String(), string(check.Violated), r.word(check.Violated)), r.Claims)
		for _, site := range []string{"a", "b"} {
			if x := r.Check.Stale[site]; x.Stale > 0 {
				s += fmt.Sprintf(", %d of %d serializable reads at %s stale, up to %.1f s", x.Stale, x.Reads, site, x.Oldest.Seconds())
			}
		}
	}
	if r.Refused != "" {
		s += "; the store was refused: " + r.Refused
	}
	if r.Broken != "" {
		s += "; " + r.How
	}
	if r.Trace != nil && r.Trace.Verdict != Explained && r.Trace.Verdict != Untraced {
		s += "; trace " + string(r.Trace.Verdict)
	}
	if r.Error != "" {
		s += "  " + r.Error
	}
	if !r.OK() {
		s += fmt.Sprintf("  [seed %d, %s]", r.Seed, r.Dir)
	}
	return s
}

// Run is what a run of scenarios leaves.
type Run struct {
	Command []string  `json:"command"`
	Flags   []string  `json:"flags,omitempty"` // of Command, those that playing a scenario again needs beside its seed and name
	Select  string    `json:"select,omitempty"`
	Seed    uint64    `json:"seed"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Planned []string  `json:"planned"`
	Results []Result  `json:"results"`
	Of      int       `json:"of,omitempty"` // cells that a soak chose from; 0: all of them were planned

	Ran     int            `json:"ran"`
	Red     int            `json:"red"`
	NotRun  int            `json:"not_run"`
	Claims  int            `json:"claims"`
	Ops     int            `json:"operations"`
	Acked   int            `json:"acknowledged_writes"`
	Unknown int            `json:"unknown"`
	ByFault map[string]int `json:"by_fault"`
	Cells   []Cell         `json:"cells"` // in the order of Planned
	// Stale are the serializable reads that showed less than was acknowledged when they began.
	Stale check.Stale `json:"stale"`
	// Broken are those that ended as a broken assumption: neither green nor red. Traces are counted by verdict.
	Broken int                  `json:"broken_assumptions"`
	Traces map[TraceVerdict]int `json:"traces"`
}

// Cell counts the rounds of a cell.
type Cell struct {
	Name    string `json:"name"`
	Planned int    `json:"planned"`
	Ran     int    `json:"ran"`
	NotRun  int    `json:"not_run"`
	Red     int    `json:"red"`
}

// cellOf is a scenario's name without its round.
func cellOf(name string) string {
	cell, _, _ := strings.Cut(name, "#")
	return cell
}

// Sum fills in the totals. What was planned and has no result is not run.
func (r *Run) Sum() {
	r.Ran, r.Red, r.NotRun, r.Claims, r.Ops, r.Acked, r.Unknown, r.ByFault = 0, 0, 0, 0, 0, 0, 0, map[string]int{}
	r.Broken, r.Traces, r.Stale, r.Cells = 0, map[TraceVerdict]int{}, check.Stale{}, nil
	at := map[string]int{}
	cell := func(name string) *Cell {
		name = cellOf(name)
		if _, ok := at[name]; !ok {
			at[name] = len(r.Cells)
			r.Cells = append(r.Cells, Cell{Name: name})
		}
		return &r.Cells[at[name]]
	}
	ran := map[string]bool{}
	for _, x := range r.Results {
		ran[x.Name] = ran[x.Name] || x.Ran
	}
	for _, n := range r.Planned {
		c := cell(n)
		if c.Planned++; !ran[n] {
			c.NotRun++
			r.NotRun++
		}
	}
	for _, x := range r.Results {
		c := cell(x.Name)
		if x.Red() {
			r.Red++
			c.Red++
		}
		if x.Breaks() {
			r.Broken++
		}
		if x.Trace != nil {
			r.Traces[x.Trace.Verdict]++
		}
		if !x.Ran {
			continue
		}
		r.Ran++
		c.Ran++
		r.Claims += x.Claims
		fault, _, _ := strings.Cut(x.Name, "/")
		r.ByFault[fault]++
		if x.Check != nil {
			r.Ops, r.Acked, r.Unknown = r.Ops+x.Check.Ops, r.Acked+x.Check.Acked, r.Unknown+x.Check.Unknown
			for _, s := range x.Check.Stale {
				r.Stale.Reads, r.Stale.Stale, r.Stale.Oldest = r.Stale.Reads+s.Reads, r.Stale.Stale+s.Stale, max(r.Stale.Oldest, s.Oldest)
			}
		}
	}
}

// OK says whether everything that was planned ran and nothing is red. Nothing planned is not right.
func (r *Run) OK() bool { return len(r.Planned) > 0 && r.Red == 0 && r.NotRun == 0 }

// Text is for people.
func (r *Run) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d scenarios planned, %d run, %d not run, %d red, in %.0f s; seed %d\n", len(r.Planned), r.Ran, r.NotRun, r.Red, r.Seconds, r.Seed)
	fmt.Fprintf(&b, "%d operations, %d writes acknowledged, %d of unknown outcome, %d claims\n", r.Ops, r.Acked, r.Unknown, r.Claims)
	fmt.Fprintf(&b, "%d of %d serializable reads were stale, up to %.1f s\n", r.Stale.Stale, r.Stale.Reads, r.Stale.Oldest.Seconds())
	if r.Of > 0 {
		fmt.Fprintf(&b, "%d of the %d cells to choose from were begun\n", len(r.Cells), r.Of)
	}
	fmt.Fprintf(&b, "traces: %d explained by the model, %d refused, %d undecided, %d of faults that it does not know\n",
		r.Traces[Explained], r.Traces[Refused], r.Traces[Undecided], r.Traces[Untraced])
	if r.Broken > 0 {
		fmt.Fprintf(&b, "%d ended as a broken assumption, by a fault that breaks one: neither green nor red\n", r.Broken)
	}
	b.WriteString("\n planned   run not run   red\n")
	for _, c := range r.Cells {
		fmt.Fprintf(&b, "%8d %5d %7d %5d  %s\n", c.Planned, c.Ran, c.NotRun, c.Red, c.Name)
	}
	for _, x := range r.Results {
		if x.Trace != nil && x.Trace.Verdict == Undecided {
			fmt.Fprintf(&b, "trace undecided: %s: %s\n", x.Name, x.Trace.Detail)
		}
		if x.OK() {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s\n", x.Verdict(), x.Name)
		if x.Broken != "" {
			fmt.Fprintf(&b, "  the fault broke %s: %s\n", x.Broken, x.How)
		}
		if x.Error != "" {
			fmt.Fprintf(&b, "  %s\n", x.Error)
		}
		if x.Trace != nil && x.Trace.Verdict == Refused {
			fmt.Fprintf(&b, "  trace: %s\n", x.Trace.Detail)
		}
		if x.Check != nil {
			for _, c := range x.Check.Results {
				if c.Verdict != check.OK {
					fmt.Fprintf(&b, "  %s: %s, %d findings\n", c.Name, x.word(c.Verdict), c.Count)
					for _, f := range c.Findings[:min(5, len(c.Findings))] {
						fmt.Fprintf(&b, "    %s\n", f)
					}
				}
			}
		}
		again := append([]string{"go run ./testing/scenario/cmd --seed", strconv.FormatUint(x.Seed, 10)}, r.Flags...)
		for _, m := range x.Moments {
			fmt.Fprintf(&b, "  %8.3f s  %s\n", m.At.Seconds(), m.Text)
		}
		fmt.Fprintf(&b, "  logs, traces and history: %s\n  again: %s\n  the checks alone: go run ./testing/scenario/cmd --replay %s\n", x.Dir, strings.Join(append(again, "--select", cellOf(x.Name)), " "), x.Dir)
	}
	for _, c := range r.Cells {
		if c.NotRun > 0 {
			fmt.Fprintf(&b, "NOT RUN: %s\n", c.Name)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// word is a check's verdict, but where an assumption was broken: what is lost then twok did not promise.
func (r Result) word(v check.Verdict) string {
	if v == check.Violated && r.Broken != "" && !r.Violated() {
		return "lost with " + r.Broken
	}
	return string(v)
}

// The files of Save.
const (
	textFile = "report.txt"
	jsonFile = "report.json"
)

// Save writes both reports into dir.
func (r *Run) Save(dir string) error {
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, textFile), []byte(b.String()), 0o644),
		os.WriteFile(filepath.Join(dir, jsonFile), append(data, '\n'), 0o644))
}
