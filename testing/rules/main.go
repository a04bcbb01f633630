package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// later are the rules whose commands do not exist yet, with what is missing.
var later = map[string]string{
	"P18": "forced claims: twok arbiter claim",
	"P19": "drain and undrain",
}

// must are the names that need a test. A1 to A3 are what others promise.
func must() []string {
	names := []string{"A0"}
	for i := 1; i <= 20; i++ {
		names = append(names, "P"+strconv.Itoa(i))
	}
	return names
}

func fields() (names []string) {
	for i := 1; i <= 38; i++ {
		names = append(names, "F"+strconv.Itoa(i))
	}
	return names
}

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object")
	root := flag.String("root", ".", "the module")
	flag.Parse()
	if err := run(*root, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		os.Exit(1)
	}
}

func run(root string, asJSON bool) error {
	tests, bad, err := collect(root)
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(tests); err != nil {
			return err
		}
	} else if err := table(tests); err != nil {
		return err
	}
	for _, name := range must() {
		if len(tests[name]) == 0 && later[name] == "" {
			bad = append(bad, name+": no test names this rule")
		}
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "\n       "))
	}
	return nil
}

func table(tests map[string][]string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, name := range slices.Concat(must(), fields()) {
		ts := tests[name]
		first := ""
		if len(ts) > 0 {
			first = strings.Join(ts[:min(3, len(ts))], ", ")
			if len(ts) > 3 {
				first += ", …"
			}
		} else if why := later[name]; why != "" {
			first = "later: " + why
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", name, len(ts), first)
	}
	return w.Flush()
}

var (
	ruleLine = regexp.MustCompile(`(?ms)^Rules: (.*?)\.?\s*\z`)
	ruleName = regexp.MustCompile(`^(?:P(?:[1-9]|1[0-9]|20)|A[0-3]|F(?:[1-9]|[12][0-9]|3[0-8]))$`)
	spanName = regexp.MustCompile(`^([PFA])(\d+)(?:–|-)[PFA]?(\d+)$`)
)

// collect maps each name to the tests that name it.
func collect(root string) (tests map[string][]string, bad []string, err error) {
	found := map[string]map[string]bool{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || isModule(path)):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !isTest(fn.Name.Name) {
				continue
			}
			test := rel + "." + fn.Name.Name
			names, err := named(fn.Doc.Text())
			if err != nil {
				bad = append(bad, fmt.Sprintf("%s: %v", test, err))
				continue
			}
			for _, n := range names {
				if found[n] == nil {
					found[n] = map[string]bool{}
				}
				found[n][test] = true
			}
		}
		return nil
	})
	tests = map[string][]string{}
	for n, ts := range found {
		tests[n] = slices.Sorted(maps.Keys(ts))
	}
	return tests, bad, err
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz"))
}

// named reads the rules out of a doc comment.
func named(doc string) ([]string, error) {
	m := ruleLine.FindStringSubmatch(doc)
	if m == nil {
		return nil, errors.New(`its doc comment does not end with "Rules: P1, …; F1, …." or "Rules: none (why)."`)
	}
	if strings.HasPrefix(m[1], "none (") {
		return nil, nil
	}
	var names []string
	for _, n := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ';' || r == '\n' }) {
		n = strings.TrimSpace(n)
		if i := strings.IndexByte(n, '('); i > 0 {
			n = strings.TrimSpace(n[:i]) // "P4 (a)"
		}
		if s := spanName.FindStringSubmatch(n); s != nil {
			lo, _ := strconv.Atoi(s[2])
			hi, _ := strconv.Atoi(s[3])
			for i := lo; i <= hi; i++ {
				names = append(names, s[1]+strconv.Itoa(i))
			}
			continue
		}
		if !ruleName.MatchString(n) {
			return nil, fmt.Errorf("%q is no rule, assumption or failure", n)
		}
		names = append(names, n)
	}
	if len(names) == 0 {
		return nil, errors.New("it names no rule")
	}
	return names, nil
}
