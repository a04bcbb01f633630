package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// The files of a history.
const (
	opsFile   = "operations.jsonl"
	finalFile = "final.json"
	watchFile = "watch-" // and the site, ".jsonl"
)

// Save writes the history into dir, which must exist.
func (h History) Save(dir string) error {
	err := lines(filepath.Join(dir, opsFile), h.Ops)
	for site, w := range h.Watches {
		err = errors.Join(err, lines(filepath.Join(dir, watchFile+site+".jsonl"), w))
	}
	if h.Final != nil {
		data, merr := json.MarshalIndent(h.Final, "", " ")
		err = errors.Join(err, merr)
		if merr == nil {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, finalFile), data, 0o644))
		}
	}
	if err != nil {
		return fmt.Errorf("save the history in %s: %w", dir, err)
	}
	return nil
}

// Load reads what Save wrote.
func Load(dir string) (h History, err error) {
	fail := func(err error) (History, error) {
		return h, fmt.Errorf("load the history in %s: %w", dir, err)
	}
	if h.Ops, err = read[Op](filepath.Join(dir, opsFile)); err != nil {
		return fail(err)
	}
	h.Watches = map[string][]Event{}
	files, err := filepath.Glob(filepath.Join(dir, watchFile+"*.jsonl"))
	if err != nil {
		return fail(err)
	}
	for _, f := range files {
		site := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), watchFile), ".jsonl")
		if h.Watches[site], err = read[Event](f); err != nil {
			return fail(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, finalFile))
	if errors.Is(err, os.ErrNotExist) {
		return h, nil // the run did not come so far
	}
	if err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(data, &h.Final); err != nil {
		return fail(err)
	}
	return h, nil
}

func lines[T any](path string, all []T) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	e := json.NewEncoder(w)
	for _, x := range all {
		if err := e.Encode(x); err != nil {
			return err
		}
	}
	return w.Flush()
}

func read[T any](path string) (all []T, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for d := json.NewDecoder(bufio.NewReader(f)); ; {
		var x T
		if err := d.Decode(&x); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, x)
	}
}
