package scenario

import (
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"

	"twok/internal/lab"
	"twok/testing/cluster"
	"twok/testing/fault"
)

// Cell is one scenario.
type Cell struct {
	Fault   fault.Fault
	Role    string
	Minor   string
	Arbiter string
	Mode    string
}

// Name is FAULT/ROLE/VERSION/ARBITER/MODE.
func (c Cell) Name() string {
	return strings.Join([]string{c.Fault.Name, c.Role, c.Minor, c.Arbiter, c.Mode}, "/")
}

// Seed is the cell's own, of the run's.
func (c Cell) Seed(run uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", run, c.Name())
	return h.Sum64()
}

var modes = []string{"supervise", "signal"}

func modesOf(f fault.Fault) []string {
	if len(f.Needs.Modes) > 0 {
		return f.Needs.Modes
	}
	return modes
}

func arbitersOf(f fault.Fault) []string {
	if len(f.Needs.Arbiters) > 0 {
		return f.Needs.Arbiters
	}
	return cluster.Arbiters
}

func minorsOf(f fault.Fault) []string {
	if len(f.Needs.Minors) > 0 {
		return f.Needs.Minors
	}
	return lab.Minors
}

// Matrix is every cell, faults in the order of the catalogue.
func Matrix() (all []Cell) {
	for _, f := range fault.All() {
		for _, role := range f.Roles {
			for _, minor := range minorsOf(f) {
				for _, arb := range arbitersOf(f) {
					for _, mode := range modesOf(f) {
						all = append(all, Cell{f, role, minor, arb, mode})
					}
				}
			}
		}
	}
	return all
}

var aRow = regexp.MustCompile(`^F[0-9]+$`)

// Select is the cells whose name matches. A whole name selects its cell; a row of docs/scenarios.md ("F32", or as the first
// part) the cells of each fault that shows it. Like go test's -run, an expression with slashes is matched
// part by part, from the left; one without is searched for in the whole name.
func Select(cells []Cell, expr string) ([]Cell, error) {
	for _, c := range cells {
		if c.Name() == expr {
			return []Cell{c}, nil
		}
	}
	if row, rest, _ := strings.Cut(expr, "/"); aRow.MatchString(row) {
		cells = slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool {
			return c.Fault.Name != row && !slices.Contains(c.Fault.Rows, row)
		})
		expr = "/" + rest
	}
	var parts []*regexp.Regexp
	for p := range strings.SplitSeq(expr, "/") {
		re, err := regexp.Compile(p)
		if err != nil {
			return nil, fmt.Errorf("select %q: %w", expr, err)
		}
		parts = append(parts, re)
	}
	return slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool {
		if len(parts) == 1 {
			return !parts[0].MatchString(c.Name())
		}
		names := strings.Split(c.Name(), "/")
		for i, re := range parts {
			if i >= len(names) || !re.MatchString(names[i]) {
				return true
			}
		}
		return false
	}), nil
}

// quick are the faults of the default selection. doc.go says what is left out, and why.
var quick = []string{
	"cut-both", "cut-one-way", "cut-new", "cut-large", "loss", "flap", "cut-twice", "isolated", "arbiter-gone",
	"store-kill", "store-failing", "store-slow",
	"site-loss", "etcd-kill", "etcd-freeze", "site-freeze", "agent-kill", "agent-freeze", "both-down", "both-down-one-back", "both-down-apart", "survivor-loss", "chaos",
	"disk-full", "slow-fsync", "auth", "snapshot", "compaction",
	"F2", "F4", "F8", "F20", "F33",
	"step-claim-swap-after", "step-claim-append-before", "step-return-add-learner-after", "step-return-promote-after", "step-token-write-token-before",
	"store-lies-probe", "store-lies-split", "store-lies-stale",
	"F7", "F23", "F9", "F14", "F17", "F18", "F21", "F3", "quota", "F24", "wiped", "store-mute", // F23 with a supervising agent: with another parent it takes half a minute
}

// Default is what make test-safety plays. Roles, versions, arbiters and modes go round. The apiserver is not among
// the arbiters: it takes too long to start.
func Default() (cells []Cell) {
	for i, name := range quick {
		all := fault.All()
		k := slices.IndexFunc(all, func(f fault.Fault) bool { return f.Name == name })
		if k < 0 {
			panic("scenario: no fault " + name)
		}
		f := all[k]
		as := slices.DeleteFunc(slices.Clone(arbitersOf(f)), func(a string) bool { return a == "configmap" })
		ms, minors := modesOf(f), minorsOf(f)
		cells = append(cells, Cell{f, f.Roles[i%len(f.Roles)], minors[i%len(minors)], as[(i/2)%len(as)], ms[(i/3)%len(ms)]})
	}
	return cells
}

// Possible are the cells that can be played here.
func Possible(cells []Cell) []Cell {
	return slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool {
		return errors.Is(c.Fault.Possible(), cluster.ErrNoNamespaces)
	})
}
