package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"twok/testing/check"
)

// Moment is a note of a scenario.
type Moment struct {
	At   time.Duration `json:"at_ns"` // since its clients started
	Text string        `json:"text"`
}

// Result is what became of one scenario.
type Result struct {
	Name    string        `json:"name"`
	Seed    uint64        `json:"seed"` // of the run: with the name it gives the scenario's choices
	Ran     bool          `json:"ran"`
	Error   string        `json:"error,omitempty"` // what should have happened and did not, or why it did not run
	Check   *check.Report `json:"check,omitempty"` // nil: nothing was checked
	Moments []Moment      `json:"moments,omitempty"`
	Claims  int           `json:"claims"` // won, as the traces show
	Took    time.Duration `json:"took_ns"`
	// Of Took: until the pair was whole, and from the clients' end to the last check.
	Started time.Duration `json:"started_ns"`
	Judged  time.Duration `json:"judged_ns"`
	Dir     string        `json:"dir,omitempty"` // logs, traces, history
	Etcd    string        `json:"etcd,omitempty"`
}

// OK says whether it ran, did what it should, and every check was made and found nothing.
func (r Result) OK() bool { return r.Ran && r.Error == "" && r.Check != nil && r.Check.OK() }

// Verdict is one word or two.
func (r Result) Verdict() string {
	switch {
	case !r.Ran:
		return "NOT RUN"
	case r.Check != nil && violated(*r.Check):
		return "VIOLATED"
	case r.Error != "":
		return "FAILED"
	case !r.OK():
		return "NOT CHECKED"
	}
	return "ok"
}

func violated(r check.Report) bool {
	return slices.ContainsFunc(r.Results, func(x check.Result) bool { return x.Verdict == check.Violated })
}

// Line is one line.
func (r Result) Line() string {
	s := fmt.Sprintf("%-11s %5.1f s  %s", r.Verdict(), r.Took.Seconds(), r.Name)
	if r.Check != nil {
		s += fmt.Sprintf("  %s, %d claims", r.Check, r.Claims)
		for _, site := range []string{"a", "b"} {
			if x := r.Check.Stale[site]; x.Stale > 0 {
				s += fmt.Sprintf(", %d of %d serializable reads at %s stale, up to %.1f s", x.Stale, x.Reads, site, x.Oldest.Seconds())
			}
		}
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
	Seed    uint64    `json:"seed"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Planned []string  `json:"planned"`
	Results []Result  `json:"results"`

	Ran     int            `json:"ran"`
	Red     int            `json:"red"`
	NotRun  int            `json:"not_run"`
	Claims  int            `json:"claims"`
	Ops     int            `json:"operations"`
	Acked   int            `json:"acknowledged_writes"`
	Unknown int            `json:"unknown"`
	ByFault map[string]int `json:"by_fault"`
}

// Sum fills in the totals. What was planned and has no result is not run.
func (r *Run) Sum() {
	r.Ran, r.Red, r.NotRun, r.Claims, r.Ops, r.Acked, r.Unknown, r.ByFault = 0, 0, 0, 0, 0, 0, 0, map[string]int{}
	have := map[string]bool{}
	for _, x := range r.Results {
		have[x.Name] = have[x.Name] || x.Ran
		if !x.OK() {
			r.Red++
		}
		if !x.Ran {
			continue
		}
		r.Ran++
		r.Claims += x.Claims
		fault, _, _ := strings.Cut(x.Name, "/")
		r.ByFault[fault]++
		if x.Check != nil {
			r.Ops, r.Acked, r.Unknown = r.Ops+x.Check.Ops, r.Acked+x.Check.Acked, r.Unknown+x.Check.Unknown
		}
	}
	for _, n := range r.Planned {
		if !have[n] {
			r.NotRun++
		}
	}
}

// OK says whether everything that was planned ran and was right. Nothing planned is not right.
func (r *Run) OK() bool { return len(r.Planned) > 0 && r.Red == 0 && r.NotRun == 0 }

// Text is for people.
func (r *Run) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d scenarios planned, %d run, %d not run, %d red, in %.0f s; seed %d\n", len(r.Planned), r.Ran, r.NotRun, r.Red, r.Seconds, r.Seed)
	fmt.Fprintf(&b, "%d operations, %d writes acknowledged, %d of unknown outcome, %d claims\n", r.Ops, r.Acked, r.Unknown, r.Claims)
	have := map[string]bool{}
	for _, x := range r.Results {
		have[x.Name] = have[x.Name] || x.Ran
		if x.OK() {
			continue
		}
		fmt.Fprintf(&b, "\n%s: %s\n", x.Verdict(), x.Name)
		if x.Error != "" {
			fmt.Fprintf(&b, "  %s\n", x.Error)
		}
		if x.Check != nil {
			for _, c := range x.Check.Results {
				if c.Verdict != check.OK {
					fmt.Fprintf(&b, "  %s: %s, %d findings\n", c.Name, c.Verdict, c.Count)
					for _, f := range c.Findings[:min(5, len(c.Findings))] {
						fmt.Fprintf(&b, "    %s\n", f)
					}
				}
			}
		}
		cell, _, _ := strings.Cut(x.Name, "#") // a round of a soak has its own seed
		for _, m := range x.Moments {
			fmt.Fprintf(&b, "  %8.3f s  %s\n", m.At.Seconds(), m.Text)
		}
		fmt.Fprintf(&b, "  logs, traces and history: %s\n  again: go run ./testing/scenario/cmd --seed %d --select %s\n  the checks alone: go run ./testing/scenario/cmd --replay %s\n", x.Dir, x.Seed, cell, x.Dir)
	}
	for _, n := range r.Planned {
		if !have[n] {
			fmt.Fprintf(&b, "NOT RUN: %s\n", n)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
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

// AppendTotals adds a line with the run's totals to a file, which is created if needed.
func (r *Run) AppendTotals(path string) (err error) {
	var red []string
	for _, x := range r.Results {
		if !x.OK() {
			red = append(red, x.Name)
		}
	}
	line, err := json.Marshal(struct {
		Started time.Time      `json:"started"`
		Seconds float64        `json:"seconds"`
		Seed    uint64         `json:"seed"`
		Planned int            `json:"planned"`
		Ran     int            `json:"ran"`
		Red     []string       `json:"red"`
		Claims  int            `json:"claims"`
		Ops     int            `json:"operations"`
		Acked   int            `json:"acknowledged_writes"`
		Unknown int            `json:"unknown"`
		ByFault map[string]int `json:"by_fault"`
	}{r.Started.UTC(), r.Seconds, r.Seed, len(r.Planned), r.Ran, red, r.Claims, r.Ops, r.Acked, r.Unknown, r.ByFault})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
