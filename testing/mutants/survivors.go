package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// survivor is a mutant that lives, with the reason.
type survivor struct {
	key  string
	why  string
	line int
}

// parseSurvivors reads survivors.txt: keys at the margin, one a line; the indented text that follows
// explains all keys above it, up to the explanation before. # begins a comment.
func parseSurvivors(r io.Reader) ([]survivor, error) {
	var out []survivor
	seen := map[string]int{}
	open := 0 // the first key that is not explained yet
	closed := false
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			if open == len(out) {
				return nil, fmt.Errorf("line %d: an explanation without a key above it", n)
			}
			for i := open; i < len(out); i++ {
				out[i].why = strings.TrimSpace(out[i].why + " " + text)
			}
			closed = true
		default:
			if closed {
				open, closed = len(out), false
			}
			if old, ok := seen[text]; ok {
				return nil, fmt.Errorf("line %d: the key of line %d again: %s", n, old, text)
			}
			seen[text] = n
			out = append(out, survivor{key: text, line: n})
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	for _, s := range out {
		if s.why == "" {
			return nil, fmt.Errorf("line %d: not explained: %s", s.line, s.key)
		}
	}
	return out, nil
}

func readSurvivors(path string) ([]survivor, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := parseSurvivors(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// gone are the listed mutants that the core does not have any more.
func gone(list []survivor, all []mutant) []survivor {
	have := map[string]bool{}
	for _, m := range all {
		have[m.key] = true
	}
	var out []survivor
	for _, s := range list {
		if !have[s.key] {
			out = append(out, s)
		}
	}
	return out
}
