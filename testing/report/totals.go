package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// totals is a run's line.
type totals struct {
	Started time.Time      `json:"started"`
	Seconds float64        `json:"seconds"`
	Seed    uint64         `json:"seed"`
	Flags   []string       `json:"flags,omitempty"`
	Select  string         `json:"select,omitempty"`
	Planned int            `json:"planned"`
	Ran     int            `json:"ran"`
	Red     []string       `json:"red"`
	Claims  int            `json:"claims"`
	Ops     int            `json:"operations"`
	Acked   int            `json:"acknowledged_writes"`
	Unknown int            `json:"unknown"`
	ByFault map[string]int `json:"by_fault"`

	Broken int                  `json:"broken_assumptions"`
	Traces map[TraceVerdict]int `json:"traces"`
}

// SaveTotals puts a line with the run's totals into a file, which is created if needed, in the place of the run's earlier
// one: written after each scenario, the totals survive a run that is killed. Runs may share the file. After an error it is as it was.
func (r *Run) SaveTotals(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("save the run's totals: %w", err)
		}
	}()
	own := totals{r.Started.UTC(), r.Seconds, r.Seed, r.Flags, r.Select, len(r.Planned), r.Ran, nil, r.Claims, r.Ops, r.Acked, r.Unknown, r.ByFault, r.Broken, r.Traces}
	for _, x := range r.Results {
		if x.Red() {
			own.Red = append(own.Red, x.Name)
		}
	}
	line, err := json.Marshal(own)
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }() // and with it the lock
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var out []byte
	for l := range bytes.Lines(old) {
		var x totals
		if err := json.Unmarshal(l, &x); err != nil {
			return fmt.Errorf("%s: %q: %w", path, l, err)
		}
		if x.Seed != own.Seed || !x.Started.Equal(own.Started) {
			out = append(append(out, bytes.TrimRight(l, "\n")...), '\n')
		}
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(append(out, line...), '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
