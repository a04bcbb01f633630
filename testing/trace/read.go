package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"twok/internal/agent"
)

// Line is a line of a trace with where it is from.
type Line struct {
	agent.Line
	Edit *Edit  // a person changed the register; then there is no site
	Site int    // 0 or 1
	File string // for people
	No   int    // in its file, from one
}

// Edit is what a person did to the register, between two moments.
type Edit struct {
	At      int64  `json:"at"`
	Until   int64  `json:"until"`
	Value   []byte `json:"value"`
	Version string `json:"version"` // the store's, afterwards; empty: there is no value any more
}

func (l *Line) String() string {
	if l.Edit != nil {
		return fmt.Sprintf("%s:%d: a person changes the register", l.File, l.No)
	}
	s := fmt.Sprintf("%s:%d: %s, %s", l.File, l.No, string("ab"[l.Site]), l.Event)
	if l.Outcome != "" {
		s += " " + l.Outcome
	}
	if l.Ticks > 0 {
		s += fmt.Sprintf(" ×%d", l.Ticks)
	}
	s += fmt.Sprintf(": %s -> %s (%s)", l.From, l.To, l.Reason)
	if len(l.Actions) > 0 {
		s += fmt.Sprint(" ", l.Actions)
	}
	return s
}

// ReadFiles reads the traces of the agents of site a and b, and merges them by time. A last line without
// an end is left out: its writer was killed. edits has an Edit a line; it may be missing.
func ReadFiles(a, b, edits string) ([]Line, error) {
	all, err := readEdits(edits)
	if err != nil {
		return nil, err
	}
	for i, path := range []string{a, b} {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		ls, err := parse(bytes.NewReader(data), i, path)
		if err != nil {
			return nil, err
		}
		all = append(all, ls...)
	}
	return merge(all), nil
}

func readEdits(path string) (out []Line, err error) {
	data, err := os.ReadFile(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for raw := range bytes.Lines(data) {
		l := Line{Edit: &Edit{}, Site: -1, File: path, No: len(out) + 1}
		if err := json.Unmarshal(raw, l.Edit); err != nil {
			return nil, fmt.Errorf("%s:%d: not an edit: %w", path, l.No, err)
		}
		l.At = l.Edit.At
		out = append(out, l)
	}
	return out, nil
}

func parse(r io.Reader, site int, path string) ([]Line, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var out []Line
	for raw := range bytes.Lines(data) {
		l := Line{Site: site, File: path, No: len(out) + 1}
		if err := json.Unmarshal(raw, &l.Line); err != nil {
			if !bytes.HasSuffix(raw, []byte("\n")) {
				break
			}
			return nil, fmt.Errorf("%s:%d: not a line of a trace: %w", path, l.No, err)
		}
		if l.At == 0 || (l.Start == nil) == (l.In == nil) {
			return nil, fmt.Errorf("%s:%d: neither a start nor an event", path, l.No)
		}
		out = append(out, l)
	}
	return out, nil
}

// merge orders by time; lines of one file keep their order.
func merge(ls []Line) []Line {
	slices.SortStableFunc(ls, func(x, y Line) int {
		switch {
		case x.Site == y.Site:
			return x.No - y.No
		case x.At < y.At:
			return -1
		case x.At > y.At:
			return 1
		}
		return x.Site - y.Site
	})
	return ls
}
