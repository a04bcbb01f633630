package experiment

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"twok/internal/lab"
)

// Experiment is one of the registry.
type Experiment struct {
	Name  string // letters, digits and dashes
	About string // one line
	Cases []string
	// Namespaces says that it needs network namespaces (root).
	Namespaces bool
	// Batch is how many runs one session makes at most; 0: one. A session is for what runs can share.
	Batch int
	// Programs are the forms of twok that it needs.
	Programs []Program
	// Run makes n runs and hands each to Session.Add as it ends. Its error is saved as one failed run.
	Run func(ctx context.Context, s *Session, n int) error
	// Table is the Markdown of the section's tables.
	Table func(s Summary) string
}

// All is the registry, in the order of the document.
func All() []Experiment {
	return []Experiment{commitLag(), promotionHole(), failovers(), baselines(), returnCost(), steadyState()}
}

// Select returns the experiments of these names, all if there are none.
func Select(names []string) ([]Experiment, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var out []Experiment
	for _, name := range names {
		i := slices.IndexFunc(all, func(e Experiment) bool { return e.Name == name })
		if i < 0 {
			var have []string
			for _, e := range all {
				have = append(have, e.Name)
			}
			return nil, fmt.Errorf("no experiment %q; choose of %s", name, strings.Join(have, ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// Run is one run as it is kept.
type Run struct {
	Experiment string    `json:"experiment"`
	Version    string    `json:"version"` // release line, "3.6"
	Etcd       string    `json:"etcd"`    // "3.6.16"
	Case       string    `json:"case"`
	Session    string    `json:"session"` // the directory of the raw logs
	Ended      time.Time `json:"ended"`
	// Values are what was measured: times in seconds, sizes in bytes, counts.
	Values map[string]float64 `json:"values,omitempty"`
	// Notes are what has no unit: a reason, who led.
	Notes map[string]string `json:"notes,omitempty"`
	Error string            `json:"error,omitempty"`
}

// Session is what an experiment's Run gets.
type Session struct {
	Version string // release line
	Case    string
	// Dir is for raw logs, and whatever else the session makes. Data directories in it should
	// be removed when the session ends well.
	Dir string
	Bin lab.Binaries
	Log io.Writer

	experiment string
	save       func(Run) error
	made       int
}

// Add keeps a run. Its error is one of the file system.
func (s *Session) Add(values map[string]float64, notes map[string]string) error {
	s.made++
	return s.save(Run{Values: values, Notes: notes})
}

// Program returns the path of a form of twok that the experiment has named.
func (s *Session) Program(p Program) string { return p.path() }
