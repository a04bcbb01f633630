package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func root(t *testing.T) string {
	t.Helper()
	if r := os.Getenv("TWOK_ROOT"); r != "" {
		return r
	}
	return filepath.Join("..", "..")
}

// survivors.txt parses, explains each key, and each still names a mutant of the core as it is.
//
// Rules: none (the mutation pass: make mutants).
func TestSurvivorsExist(t *testing.T) {
	files, err := load(filepath.Join(root(t), core))
	if err != nil {
		t.Fatal(err)
	}
	all := generate(files)
	list, err := readSurvivors("survivors.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range gone(list, all) {
		t.Errorf("survivors.txt:%d: there is no such mutant any more; run make mutants: %s", s.line, s.key)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.key] {
			t.Errorf("two mutants have the key %s", m.key)
		}
		seen[m.key] = true
	}
	t.Logf("%d mutants, %d listed", len(all), len(list))
	if len(all) < 2000 {
		t.Errorf("only %d mutants: a pass that changes nothing finds nothing", len(all))
	}
}

// Every mutant is Go, and so is a file with a clone of its function for each.
//
// Rules: none (the mutation pass: make mutants).
func TestMutantsParse(t *testing.T) {
	files, err := load(filepath.Join(root(t), core))
	if err != nil {
		t.Fatal(err)
	}
	all := generate(files)
	numbers := make([]int, len(all))
	for i, m := range all {
		numbers[i] = i + 1
		for _, f := range files {
			if f.name != m.file {
				continue
			}
			if string(f.apply(m)) == string(f.text) {
				t.Errorf("changes nothing: %s", m.key)
			}
			if !m.alone {
				continue
			}
			if _, err := parser.ParseFile(token.NewFileSet(), f.name, f.apply(m), 0); err != nil {
				t.Errorf("%s: %v", m.key, err)
			}
		}
	}
	for _, f := range files {
		text, spans, err := f.instrument(all, numbers)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		if _, err := parser.ParseFile(fset, f.name, text, 0); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		lines := strings.Split(string(text), "\n")
		for _, s := range spans {
			if all := strings.Join(lines[s.from-1:s.to], "\n"); !strings.Contains(all, fmt.Sprintf("Mutant%d(", s.mutant)) && !strings.Contains(all, fmt.Sprintf("Mutant%d[", s.mutant)) {
				t.Fatalf("%s: mutant %d is not in lines %d to %d", f.name, s.mutant, s.from, s.to)
			}
		}
	}
}

const example = `package p

type Reason uint8

const (
	None Reason = iota
	Bad
	Worse
)

const limit = 3

func (m *T) f(a, b int) (Reason, bool) {
	switch {
	case a < b && m.ok:
		m.call()
	case !m.ok:
		m.x, m.y = 1, a
		return Worse, true
	}
	for range limit {
		a++
	}
	return None, a == max(a, b)
}
`

// The operators, on an example.
//
// Rules: none (the mutation pass: make mutants).
func TestOperators(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(example), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range generate(files) {
		got = append(got, m.key)
	}
	for _, want := range []string{
		"p.go const: number: 3 => 4 in limit = 3",
		"p.go T.f: logic: a < b && m.ok => a < b || m.ok in case a < b && m.ok",
		"p.go T.f: drop: a < b => nothing in case a < b && m.ok",
		"p.go T.f: drop: m.ok => nothing in case a < b && m.ok",
		"p.go T.f: boundary: a < b => a <= b in case a < b && m.ok",
		"p.go T.f: negate: a < b => a >= b in case a < b && m.ok",
		"p.go T.f: force: a < b && m.ok => true in case a < b && m.ok",
		"p.go T.f: remove: m.call() => nothing in case a < b && m.ok: m.call()",
		"p.go T.f: negate: !m.ok => (m.ok) in case !m.ok",
		"p.go T.f: force: !m.ok => false in case !m.ok",
		"p.go T.f: remove: m.y => nothing in case !m.ok: m.x, m.y = 1, a",
		"p.go T.f: number: 1 => 2 in case !m.ok: m.x, m.y = 1, a",
		"p.go T.f: constant: Worse => None in case !m.ok: return Worse, true",
		"p.go T.f: bool: true => false in case !m.ok: return Worse, true",
		"p.go T.f: clause: body => nothing in case !m.ok",
		"p.go T.f: loop: for => no round in for range limit",
		"p.go T.f: arith: ++ => -- in for range limit: a++",
		"p.go T.f: remove: a++ => nothing in for range limit: a++",
		"p.go T.f: constant: None => Bad in return None, a == max(a, b)",
		"p.go T.f: minmax: max => min in return None, a == max(a, b)",
		"p.go T.f: force: a == max(a, b) => true in return None, a == max(a, b)",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log("\n" + strings.Join(got, "\n"))
	}
}

// Rules: none (the mutation pass: make mutants).
func TestSurvivorsFormat(t *testing.T) {
	list, err := parseSurvivors(strings.NewReader("# head\na\nb\n  both,\n  at length\n\nc\n  one\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []survivor{{"a", "both, at length", 2}, {"b", "both, at length", 3}, {"c", "one", 7}}
	if !slices.Equal(list, want) {
		t.Errorf("got %+v", list)
	}
	for _, bad := range []string{"  why\n", "a\n", "a\n  why\nb\n", "a\na\n  why\n"} {
		if list, err := parseSurvivors(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: read as %+v", bad, list)
		}
	}
	all := []mutant{{key: "a"}, {key: "b"}}
	if g := gone(list, all); len(g) != 1 || g[0].key != "c" {
		t.Errorf("gone: %+v", g)
	}
}

// Survivors that are not listed and listed ones that die are told apart.
//
// Rules: none (the mutation pass: make mutants).
func TestTotals(t *testing.T) {
	tot := totals{checks: checks(), listed: map[string]bool{"known": true, "dies": true}, ends: map[string]int{}}
	for key, end := range map[string]string{"known": lives, "new": lives, "dies": "sim", "hangs": timedOut, "odd": noMutant} {
		tot.add(result{mutant{key: key}, end, ""})
	}
	if tot.explained != 1 || len(tot.unexplained) != 1 || tot.unexplained[0].key != "new" || len(tot.wrong) != 1 || tot.wrong[0].key != "dies" {
		t.Errorf("%+v", tot)
	}
	if got := tot.String(); !strings.HasPrefix(got, "2 killed (") || !strings.Contains(got, "1 timed out") {
		t.Error(got)
	}
}
