package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// file is one Go file of the module.
type file struct {
	dir, name string // slash-separated, relative to the root
	hasDoc    bool
	imports   []string
}

func (f file) test() bool { return strings.HasSuffix(f.name, "_test.go") }

// layers from the outside to the inside: a package imports only packages of
// its own layer or further in. A package that is not listed has the layer of the
// longest listed path above it.
var layers = map[string]int{
	"testing":             0,
	"cmd":                 1,
	"internal/lab":        1,
	"internal/agent":      2,
	"rejoin":              3,
	"internal/bind":       3,
	"internal/force":      3,
	"internal/etcdproc":   3,
	"internal/preflight":  3,
	"internal/lostwrites": 3,
	"internal/member":     3,
	"internal/etcdapi":    4,
	"walsurgery":          4,
	"internal/failover":   5,
	"internal/probe":      5,
	"arbiter":             6,
	"internal/certfile":   7,
	"internal/failpoint":  7,
	"internal/freeport":   7,
}

func layer(dir string) (int, bool) {
	for d := dir; d != "." && d != "/"; d = path.Dir(d) {
		if l, ok := layers[d]; ok {
			return l, true
		}
	}
	return 0, false
}

func under(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

// check returns every breach of the rules of doc.go.
func check(files []file) []string {
	var bad []string
	say := func(f file, format string, args ...any) {
		bad = append(bad, path.Join(f.dir, f.name)+": "+fmt.Sprintf(format, args...))
	}
	docs := map[string]bool{}
	for _, f := range files {
		if !f.test() {
			docs[f.dir] = docs[f.dir] || f.name == "doc.go" && f.hasDoc
		}
	}
	for dir, ok := range docs {
		// A command's contract may stand in main.go, where godoc looks for usage.
		if !ok && dir != "cmd/twok" {
			bad = append(bad, dir+": no doc.go with a package comment")
		}
	}
	for _, f := range files {
		from, known := layer(f.dir)
		if !known {
			say(f, "its package has no layer; add it to layers in testing/layout")
		}
		for _, imp := range f.imports {
			if strings.HasSuffix(imp, "/raftpb") || strings.HasSuffix(imp, "/walpb") {
				if !f.test() && !under(f.dir, "walsurgery") && !under(f.dir, "testing") {
					say(f, "imports %s, which is walsurgery's part", imp)
				}
			}
			to, ours := strings.CutPrefix(imp, "twok/")
			if !ours {
				if f.dir == "internal/failover" && !f.test() && strings.Contains(strings.Split(imp, "/")[0], ".") {
					say(f, "imports %s; the core imports the standard library and arbiter only", imp)
				}
				continue
			}
			if l, ok := layer(to); ok && l < from && !f.test() {
				say(f, "imports %s, which is further out", imp)
			}
			if under(to, "testing") && !under(f.dir, "testing") {
				say(f, "imports %s from outside testing/", imp)
			}
			if f.dir == "internal/failover" && !f.test() && to != "arbiter" {
				say(f, "imports %s; the core imports the standard library and arbiter only", imp)
			}
			if under(f.dir, "arbiter") && to != "arbiter" && to != f.dir && !(f.test() && to == "arbiter/arbitertest") && !(f.dir == "arbiter/arbitertest" && to == "internal/freeport") {
				say(f, "imports %s; a store imports arbiter only", imp)
			}
			if to == "internal/lab" && !f.test() && !under(f.dir, "testing") && !under(f.dir, "internal/lab") &&
				!(f.dir == "cmd/twok" && strings.HasPrefix(f.name, "demo")) {
				say(f, "imports %s, which is for the demo, tests and testing/", imp)
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// module parses the imports of all Go files below root, without nested modules.
func module(t *testing.T, root string) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p == root {
				return nil
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		src, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		f := file{dir: path.Dir(rel), name: path.Base(rel), hasDoc: hasDoc(src)}
		for _, i := range src.Imports {
			s, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, s)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func hasDoc(f *ast.File) bool { return f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != "" }

// TestLayout checks the repository.
//
// Rules: none (layout).
func TestLayout(t *testing.T) {
	files := module(t, filepath.Join("..", ".."))
	if len(files) < 10 {
		t.Fatalf("only %d files were found", len(files))
	}
	for _, s := range check(files) {
		t.Error(s)
	}
}

// TestLayoutBites: each rule is broken once.
//
// Rules: none (layout).
func TestLayoutBites(t *testing.T) {
	ok := []file{
		{dir: "arbiter", name: "doc.go", hasDoc: true},
		{dir: "cmd/twok", name: "demo_x.go", imports: []string{"twok/internal/lab", "twok/internal/agent"}},
		{dir: "internal/agent", name: "doc.go", hasDoc: true, imports: []string{"twok/internal/failover", "go.uber.org/zap"}},
		{dir: "internal/agent", name: "x_test.go", imports: []string{"twok/internal/lab", "go.etcd.io/raft/v3/raftpb"}},
		{dir: "arbiter/s3", name: "doc.go", hasDoc: true, imports: []string{"twok/arbiter"}},
		{dir: "arbiter/s3", name: "x_test.go", imports: []string{"twok/arbiter/arbitertest"}},
		{dir: "walsurgery", name: "doc.go", hasDoc: true, imports: []string{"go.etcd.io/raft/v3/raftpb"}},
		{dir: "testing/sim", name: "doc.go", hasDoc: true, imports: []string{"twok/internal/lab", "twok/internal/failover"}},
	}
	if bad := check(ok); len(bad) > 0 {
		t.Errorf("nothing is wrong, but: %q", bad)
	}
	for _, c := range []struct {
		f    file
		want string
	}{
		{file{dir: "internal/agent", name: "a.go", imports: []string{"twok/cmd/twok"}}, "further out"},
		{file{dir: "internal/failover", name: "a.go", imports: []string{"twok/walsurgery"}}, "further out"},
		{file{dir: "internal/failover", name: "a.go", imports: []string{"twok/arbiter/httpcas"}}, "the core imports"},
		{file{dir: "internal/failover", name: "a.go", imports: []string{"go.uber.org/zap"}}, "the core imports"},
		{file{dir: "arbiter/s3", name: "a.go", imports: []string{"twok/arbiter/httpcas"}}, "a store imports"},
		{file{dir: "arbiter/s3", name: "a.go", imports: []string{"twok/arbiter/arbitertest"}}, "a store imports"},
		{file{dir: "cmd/twok", name: "a.go", imports: []string{"twok/testing/sim"}}, "outside testing/"},
		{file{dir: "internal/agent", name: "a_test.go", imports: []string{"twok/testing/sim"}}, "outside testing/"},
		{file{dir: "internal/agent", name: "a.go", imports: []string{"go.etcd.io/etcd/server/v3/storage/wal/walpb"}}, "walsurgery's part"},
		{file{dir: "cmd/twok", name: "agent.go", imports: []string{"twok/internal/lab"}}, "for the demo"},
		{file{dir: "internal/agent", name: "a.go", imports: []string{"twok/internal/lab"}}, "for the demo"},
		{file{dir: "internal/agent/sub", name: "a.go"}, "no doc.go"},
		{file{dir: "newpackage", name: "doc.go", hasDoc: true}, "no layer"},
	} {
		bad := check(append(slices.Clone(ok), c.f))
		if !slices.ContainsFunc(bad, func(s string) bool { return strings.Contains(s, c.want) }) {
			t.Errorf("%+v: %q, want %q", c.f, bad, c.want)
		}
	}
}
