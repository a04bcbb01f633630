package explore

import (
	"fmt"
	"slices"
	"strings"
)

// seeds are starts in the middle of things. Each is a schedule from an earlier one.
var seeds = []struct{ name, from, moves string }{
	{"new", "", ""},
	// The pair with its record, token and notes; a leads.
	{"whole", "new", "elect a; sync; run a; sync; run a; sync; run b; run a; run b; sync"},
	// a has claimed and leads alone, confirmed; b does not know yet.
	{"alone", "whole", "cut; step-down a; run a; run a; lead a; run a; put a; sync"},
	// The link is back, b knows that it lost.
	{"lost", "alone", "heal; learn b"},
	// b was added as a learner and runs under its new ID, with its log.
	{"learner", "lost", "run b"},
	// b was promoted in a's log; a has not applied it.
	{"promoting", "learner", "sync; tick b; do b site ok; do b site lose"},
	// b is a voter again; the token is not written yet.
	{"returned", "learner", "sync; run b; sync; run b"},
	// Whole again, one generation on.
	{"again", "returned", "run a; sync; run a; sync; run b; run b; sync"},
	// A token write for a and b is on its way since before a user removed b, which is back as a learner.
	{"late", "returned", "tick a; do a arbiter ok; do a site late; drop-other a; rep a b; apply a; sync; run b; sync"},
	// a has claimed and died between swap and append.
	{"dangling", "whole", "cut; step-down a; run a; tick a; do a site ok; do a arbiter ok; do a arbiter ok; die a"},
}

// SeedNames lists the starts.
func SeedNames() (names []string) {
	for _, s := range seeds {
		names = append(names, s.name)
	}
	return names
}

// Seed makes the start of this name, with these rules off. Moves that a switch makes
// impossible are left out.
func Seed(name string, off Switches) (*World, error) {
	if name == "" {
		name = "new"
	}
	i := slices.IndexFunc(seeds, func(s struct{ name, from, moves string }) bool { return s.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no seed %q", name)
	}
	if seeds[i].from == "" {
		return NewWorld(off), nil
	}
	w, err := Seed(seeds[i].from, off)
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(seeds[i].moves, ";") {
		m, err := ParseMove(line)
		if err != nil {
			return nil, err
		}
		next := *w
		if next.Apply(m) {
			w = &next
		} else if off == 0 {
			return nil, fmt.Errorf("seed %s: %s is not possible: %s", name, m, w)
		}
	}
	return w, nil
}
