package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"twok/testing/explore"
)

// totals add up over runs, so that a long proof can be interrupted and gone on with.
type totals struct {
	Seconds float64 `json:"seconds"`
	Seed    int64   `json:"nextSeed"`
	Walks   int64   `json:"walks"`
	Moves   int64   `json:"walkMoves"`
	States  int     `json:"statesOfTheLargestSearch"`
	Cost    int     `json:"costOfTheDeepestSearch"`
}

// part is one exploration of a proof.
type part struct {
	name  string
	o     explore.Options
	share float64
}

func (c *command) prove(out io.Writer) error {
	var t totals
	if c.state != "" {
		b, err := os.ReadFile(c.state)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		default:
			if err := json.Unmarshal(b, &t); err != nil {
				return fmt.Errorf("%s: %w", c.state, err)
			}
		}
	}
	t.Seed = max(t.Seed, c.seed)
	begin := time.Now()
	end := begin.Add(c.d)
	parts := []part{
		{"the pair", explore.Options{}, 0.2},
		{"with people and rare events", explore.Options{Operators: true, Rare: true}, 0.2},
		{"with logs that are read from a snapshot", explore.Options{Rare: true, Compaction: true}, 0.1},
		{"with a third member, and logs that are read from a snapshot", explore.Options{Third: true, Rare: true, Compaction: true}, 0.2},
	}
	for _, p := range parts {
		fmt.Fprintf(out, "every schedule, %s:\n", p.name)
		sub := *c
		sub.o, sub.live = p.o, !p.o.Third
		sub.o.States, sub.o.Longest = c.o.States, c.o.Longest
		sub.o.Until = time.Now().Add(time.Duration(float64(c.d) * p.share))
		var r explore.Result
		if err := sub.searchInto(out, &r); err != nil {
			return err
		}
		t.States, t.Cost = max(t.States, r.States), max(t.Cost, r.Depth)
	}
	for n := 0; time.Now().Before(end); n++ {
		p := parts[n%len(parts)]
		o := p.o
		o.Longest = c.o.Longest + 4
		o.Until = time.Now().Add(min(time.Until(end), max(10*time.Second, c.d/20)))
		at := time.Now()
		r, err := explore.Walk{Options: o, RandSeed: t.Seed, Live: !o.Third}.Run()
		fmt.Fprintf(out, "walks, %s, seed %d: %d walks, %d moves, %d kinds of states, %.0f moves a second\n",
			p.name, t.Seed, r.Walks, r.Steps, r.Cells, float64(r.Steps)/time.Since(at).Seconds())
		t.Seed++
		t.Walks += r.Walks
		t.Moves += r.Steps
		if err != nil {
			return err
		}
		if r.Found != nil {
			return c.found(out, r.Found)
		}
	}
	t.Seconds += time.Since(begin).Seconds()
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "totals of the explorer: %s\n", b)
	if c.state != "" {
		return os.WriteFile(c.state, append(b, '\n'), 0o644)
	}
	return nil
}
