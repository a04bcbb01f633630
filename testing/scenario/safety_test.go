package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"twok/testing/cluster"
	"twok/testing/network"
)

// wanted says that scenarios are to be played: they need root, which make test does not.
var wanted = os.Getenv("TWOK_SAFETY") != ""

func TestMain(m *testing.M) {
	status, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func run(m *testing.M) (status int, err error) {
	if !wanted {
		return m.Run(), nil
	}
	if cluster.Proxy() || network.Outside() {
		drop, rerr := runDir()
		defer func() { err = errors.Join(err, drop()) }()
		if rerr != nil {
			return 1, rerr
		}
		// The apiserver takes too long: who wants it has built it.
		clean, perr := Prepare(context.Background(), Default(), "", "", os.Stderr)
		defer func() { err = errors.Join(err, clean()) }()
		if perr != nil {
			return 1, perr
		}
	}
	if !cluster.Proxy() {
		if inside, status, err := network.Enter(); !inside {
			return status, err
		}
	}
	return m.Run(), nil
}

// envRun is the directory of what the scenarios leave, as the outer program hands it to the one in its namespaces.
const envRun = "TWOK_SAFETY_RUN"

// runDir makes that directory, with this program's process ID, so that the next run finds it if this one is killed. clean
// removes it, but not where a scenario was red.
func runDir() (clean func() error, err error) {
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", runPrefix, os.Getpid()))
	if err != nil {
		return func() error { return nil }, err
	}
	return func() error {
		if _, err := os.Stat(filepath.Join(dir, keptFile)); err == nil {
			return nil
		}
		return os.RemoveAll(dir)
	}, os.Setenv(envRun, dir)
}

// TestSafety plays the cells that -run selects, FAULT/ROLE/VERSION/ARBITER/MODE; without -run the whole matrix,
// which takes half a day. In the place of FAULT a row of docs/scenarios.md, or several ("F32", "(F31|F32)"), stands for every fault that shows it, as one
// level more: TestSafety/F32/leader/3.7/serve/signal/both-down. A selection that plays nothing fails. TWOK_SAFETY_SEED is the seed, 1 by default.
//
// Rules: P1, P2, P3, P4, P5, P7, P8, P9, P10, P12, P13, P14, P16; F1, F2, F3, F4, F5, F6, F7, F8, F9, F10, F12, F13, F14, F15, F17, F18, F19, F20, F21, F22, F23, F24, F25, F26, F27, F28, F29, F31, F32, F33, F34, F35, F37.
func TestSafety(t *testing.T) {
	if !wanted {
		t.Skip("needs root and minutes: make test-safety, or TWOK_SAFETY=1 go test ./testing/scenario -run 'TestSafety/cut-both/pair/3.6'")
	}
	dir, err := os.MkdirTemp(os.Getenv(envRun), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(filepath.Dir(dir), keptFile)); err == nil {
			t.Logf("logs, traces and histories are kept in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cfg := Config{Dir: dir, Seed: 1, TraceLimit: 300_000, Log: os.Stderr}
	if s := os.Getenv("TWOK_SAFETY_SEED"); s != "" {
		if cfg.Seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	played := 0
	all, err := groups(Matrix(), flag.Lookup("test.run").Value.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range all {
		t.Run(g.name, func(t *testing.T) {
			nest(t, g.cells, 1, g.row, func(t *testing.T, c Cell) {
				played++
				r := Play(t.Context(), c, cfg)
				t.Log(r.Line())
				if r.Red() {
					t.Errorf("%s: %s", r.Verdict(), r.Error)
					if err := os.WriteFile(filepath.Join(filepath.Dir(dir), keptFile), nil, 0o600); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
	if played == 0 {
		t.Fatalf("no scenario was played: -run %q selects none; go run ./testing/scenario/cmd --list --select . lists them all", flag.Lookup("test.run").Value)
	}
}

// group is a first level of subtests: a fault's cells, or those of all faults that show a row.
type group struct {
	name  string
	row   bool
	cells []Cell
}

var (
	rowsOnly = regexp.MustCompile(`^\^?(F[0-9]+|\(F[0-9]+(\|F[0-9]+)*\))\$?$`)
	someRow  = regexp.MustCompile(`\bF[0-9]+\b`)
	inParens = regexp.MustCompile(`\([^()]*\)`)
)

// groups are the faults, or the rows that a -run names: a cell is in one group then for each row that its fault shows. A row
// beside a fault, in another alternative or in a larger expression would select something else, and is an error.
func groups(cells []Cell, run string) (all []group, err error) {
	parts := strings.Split(run, "/")
	rows := len(parts) > 1 && rowsOnly.MatchString(parts[1])
	for _, row := range someRow.FindAllString(run, -1) {
		if !rows || strings.Contains(inParens.ReplaceAllString(run, ""), "|") {
			return nil, fmt.Errorf("-run %q: %s is a row of docs/scenarios.md, and rows are selected by themselves: TestSafety/F32, TestSafety/(F31|F32)//3.6", run, row)
		}
	}
	if rows {
		for _, row := range someRow.FindAllString(parts[1], -1) {
			g := group{name: row, row: true}
			g.cells = slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool {
				return c.Fault.Name != row && !slices.Contains(c.Fault.Rows, row)
			})
			all = append(all, g)
		}
		return all, nil
	}
	for _, c := range cells {
		if n := len(all); n == 0 || all[n-1].name != c.Fault.Name {
			all = append(all, group{name: c.Fault.Name})
		}
		all[len(all)-1].cells = append(all[len(all)-1].cells, c)
	}
	return all, nil
}

// nest makes a subtest of each role, version, arbiter and mode, below a row of each fault as well, and calls f with its cell.
func nest(t *testing.T, cells []Cell, level int, row bool, f func(*testing.T, Cell)) {
	if level == 6 || level == 5 && !row {
		f(t, cells[0])
		return
	}
	var order []string
	by := map[string][]Cell{}
	for _, c := range cells {
		part := []string{c.Role, c.Minor, c.Arbiter, c.Mode, c.Fault.Name}[level-1]
		if by[part] == nil {
			order = append(order, part)
		}
		by[part] = append(by[part], c)
	}
	for _, part := range order {
		t.Run(part, func(t *testing.T) { nest(t, by[part], level+1, row, f) })
	}
}
