package experiment

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Summary is what summary.json holds.
type Summary struct {
	Cells []Cell `json:"cells"`
}

// Cell is a cell with all its runs.
type Cell struct {
	Experiment string          `json:"experiment"`
	Version    string          `json:"version"`
	Etcd       string          `json:"etcd"`
	Case       string          `json:"case"`
	Runs       int             `json:"runs"`   // without the failed ones
	Failed     int             `json:"failed"` // sessions that ended with an error
	Values     map[string]Dist `json:"values,omitempty"`
	// Notes counts the runs with each text of each note.
	Notes map[string]map[string]int `json:"notes,omitempty"`

	measured map[string][]float64 // what Values are the distributions of
}

// Dist is a distribution. A quantile is the smallest measured value with at least that part of all at or below it.
type Dist struct {
	N       int     `json:"n"`
	Sum     float64 `json:"sum"`
	NonZero int     `json:"nonzero"`
	Min     float64 `json:"min"`
	P25     float64 `json:"p25"`
	P50     float64 `json:"p50"`
	P75     float64 `json:"p75"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// Distribution is that of values, of which there must be one.
func Distribution(values []float64) Dist {
	v := slices.Clone(values)
	slices.Sort(v)
	d := Dist{N: len(v), Min: v[0], Max: v[len(v)-1], P25: quantile(v, 0.25), P50: quantile(v, 0.5),
		P75: quantile(v, 0.75), P90: quantile(v, 0.9), P99: quantile(v, 0.99)}
	for _, x := range v {
		d.Sum += x
		if x != 0 {
			d.NonZero++
		}
	}
	return d
}

func quantile(sorted []float64, q float64) float64 {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// Summarize makes the cells, in the order of the registry, of case and version.
func Summarize(runs []Run) Summary {
	type key struct{ e, c, v string }
	cells := map[key]*Cell{}
	for _, r := range runs {
		k := key{r.Experiment, r.Case, r.Version}
		c := cells[k]
		if c == nil {
			c = &Cell{Experiment: r.Experiment, Version: r.Version, Case: r.Case, Notes: map[string]map[string]int{}, measured: map[string][]float64{}}
			cells[k] = c
		}
		c.Etcd = r.Etcd
		if r.Error != "" {
			c.Failed++
			continue
		}
		c.Runs++
		for name, x := range r.Values {
			c.measured[name] = append(c.measured[name], x)
		}
		for name, text := range r.Notes {
			c.note(name, text, 1)
		}
	}
	var s Summary
	for _, c := range cells {
		c.distribute()
		s.Cells = append(s.Cells, *c)
	}
	order := map[string]int{}
	for i, e := range All() {
		order[e.Name] = i
		for j, name := range e.Cases {
			order[e.Name+" "+name] = j
		}
	}
	slices.SortFunc(s.Cells, func(a, b Cell) int {
		if d := order[a.Experiment] - order[b.Experiment]; d != 0 {
			return d
		}
		if d := order[a.Experiment+" "+a.Case] - order[b.Experiment+" "+b.Case]; d != 0 {
			return d
		}
		return strings.Compare(a.Case+" "+a.Version, b.Case+" "+b.Version)
	})
	return s
}

func (c *Cell) note(name, text string, n int) {
	if c.Notes[name] == nil {
		c.Notes[name] = map[string]int{}
	}
	c.Notes[name][text] += n
}

func (c *Cell) distribute() {
	c.Values = map[string]Dist{}
	for name, v := range c.measured {
		c.Values[name] = Distribution(v)
	}
}

// pool is one cell with the runs of all of these.
func pool(cells []Cell) Cell {
	all := Cell{Notes: map[string]map[string]int{}, measured: map[string][]float64{}}
	for _, c := range cells {
		all.Runs, all.Failed = all.Runs+c.Runs, all.Failed+c.Failed
		for name, v := range c.measured {
			all.measured[name] = append(all.measured[name], v...)
		}
		for name, texts := range c.Notes {
			for text, n := range texts {
				all.note(name, text, n)
			}
		}
	}
	all.distribute()
	return all
}

// Of are the cells of one experiment.
func (s Summary) Of(experiment string) (out []Cell) {
	for _, c := range s.Cells {
		if c.Experiment == experiment {
			out = append(out, c)
		}
	}
	return out
}

// Cell finds one; false: there is none.
func (s Summary) Cell(experiment, name, version string) (Cell, bool) {
	for _, c := range s.Cells {
		if c.Experiment == experiment && c.Case == name && c.Version == version {
			return c, true
		}
	}
	return Cell{}, false
}

// Read reads every run below out. A line that was not written whole is an error that names its file.
func Read(out string) (runs []Run, err error) {
	paths, err := filepath.Glob(filepath.Join(out, "*", "*", "*", "runs.jsonl"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		sc := bufio.NewScanner(f)
		sc.Buffer(nil, 1<<24)
		for n := 1; sc.Scan(); n++ {
			var r Run
			if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
				f.Close()
				return nil, fmt.Errorf("%s, line %d: %w; remove the line", path, n, err)
			}
			runs = append(runs, r)
		}
		if err := errors.Join(sc.Err(), f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return runs, nil
}

// ReadSummary summarises every run below out.
func ReadSummary(out string) (Summary, error) {
	runs, err := Read(out)
	return Summarize(runs), err
}

func saveSummary(out string) error {
	s, err := ReadSummary(out)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(out, "summary.json.tmp")
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(out, "summary.json"))
}
