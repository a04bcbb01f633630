package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// mutant is one replaced piece of text in one file.
type mutant struct {
	file     string // base name
	from, to int    // byte offsets of what is replaced
	with     string
	key      string
	alone    bool // stands in no function
}

// source is one parsed file of the package.
type source struct {
	name string // base name
	text []byte
	fset *token.FileSet
	ast  *ast.File
}

// apply is the file's text with the mutant in it.
func (s *source) apply(m mutant) []byte {
	return append(append(append([]byte(nil), s.text[:m.from]...), m.with...), s.text[m.to:]...)
}

func (s *source) offset(p token.Pos) int { return s.fset.Position(p).Offset }

func (s *source) of(n ast.Node) string { return string(s.text[s.offset(n.Pos()):s.offset(n.End())]) }

// load parses the package's files but tests and doc.go.
func load(dir string) ([]*source, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var out []*source
	for _, path := range names {
		name := filepath.Base(path)
		if strings.HasSuffix(name, "_test.go") || name == "doc.go" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		s := &source{name: name, text: text, fset: token.NewFileSet()}
		if s.ast, err = parser.ParseFile(s.fset, path, text, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no Go files in %s", dir)
	}
	return out, nil
}

// enums are the package's enumerations: constants of a named type, counted by iota.
type enums struct {
	of    map[string]string   // constant to type
	names map[string][]string // type to constants, in order
}

func enumerations(files []*source) enums {
	e := enums{map[string]string{}, map[string][]string{}}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			kind := ""
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				if t, ok := v.Type.(*ast.Ident); ok {
					kind = t.Name
				} else if len(v.Values) > 0 {
					kind = ""
				}
				for _, n := range v.Names {
					if kind == "" || strings.HasPrefix(n.Name, "num") {
						continue
					}
					e.of[n.Name] = kind
					e.names[kind] = append(e.names[kind], n.Name)
				}
			}
		}
	}
	return e
}

// others are the constants that stand in for this one: the next of its kind and, where it is returned, the
// first, which for most kinds means "nothing".
func (e enums) others(name string, returned bool) []string {
	names := e.names[e.of[name]]
	for i, n := range names {
		if n != name {
			continue
		}
		next := names[(i+1)%len(names)]
		if i == 0 || next == names[0] || !returned {
			return []string{next}
		}
		return []string{next, names[0]}
	}
	return nil
}

// generate makes every mutant of the files.
func generate(files []*source) []mutant {
	e := enumerations(files)
	var out []mutant
	for _, f := range files {
		g := &generator{source: f, enums: e}
		for _, d := range f.ast.Decls {
			g.declaration(d)
		}
		sort.SliceStable(g.out, func(i, j int) bool { return g.out[i].from < g.out[j].from })
		out = append(out, g.out...)
	}
	count := map[string]int{}
	for i, m := range out {
		count[m.key]++
		if n := count[m.key]; n > 1 {
			out[i].key = fmt.Sprintf("%s #%d", m.key, n)
		}
	}
	return out
}

type generator struct {
	*source
	enums enums
	fn    string
	kind  *ast.FuncType
	stack []ast.Node
	out   []mutant
}

func (g *generator) declaration(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Body == nil {
			return
		}
		g.fn, g.kind = d.Name.Name, d.Type
		if d.Recv != nil && len(d.Recv.List) == 1 {
			g.fn = strings.TrimPrefix(g.of(d.Recv.List[0].Type), "*") + "." + g.fn
		}
		g.walk(d.Body)
	case *ast.GenDecl:
		if d.Tok != token.CONST {
			return // types; the tables of names
		}
		g.fn, g.kind = "const", nil
		for _, spec := range d.Specs {
			for _, v := range spec.(*ast.ValueSpec).Values {
				if lit, ok := v.(*ast.BasicLit); ok {
					g.stack = []ast.Node{spec}
					g.literal(lit)
				}
			}
		}
	}
}

func (g *generator) walk(n ast.Node) {
	g.stack = nil
	ast.Inspect(n, func(n ast.Node) bool {
		if n == nil {
			g.stack = g.stack[:len(g.stack)-1]
			return true
		}
		g.node(n)
		g.stack = append(g.stack, n)
		return true
	})
}

// parent is the i-th node above the one at hand, nil if there is none.
func (g *generator) parent(i int) ast.Node {
	if i >= len(g.stack) {
		return nil
	}
	return g.stack[len(g.stack)-1-i]
}

// replace adds a mutant. what says in the key what was replaced; it stands in the statement around at.
func (g *generator) replace(op string, at ast.Node, from, to token.Pos, what, with, say string) {
	a, b := g.offset(from), g.offset(to)
	if what == "" {
		what = string(g.text[a:b])
	}
	if say == "" {
		say = with
	}
	key := fmt.Sprintf("%s %s: %s: %s => %s", g.name, g.fn, op, short(what), short(say))
	if in := g.context(at); in != short(what) {
		key += " in " + in
	}
	g.out = append(g.out, mutant{file: g.name, from: a, to: b, with: with, key: key, alone: g.kind == nil})
}

func (g *generator) swap(op string, n ast.Node, with string) {
	g.replace(op, n, n.Pos(), n.End(), "", with, "")
}

// context is the smallest statement, or head of one, around n, with the condition that it stands under.
func (g *generator) context(n ast.Node) string {
	inner, head := "", ""
	nodes := append(append([]ast.Node(nil), g.stack...), n)
	for i := len(nodes) - 1; i >= 0 && head == ""; i-- {
		var next ast.Node
		if i+1 < len(nodes) {
			next = nodes[i+1]
		}
		text := ""
		switch x := nodes[i].(type) {
		case *ast.AssignStmt, *ast.ExprStmt, *ast.IncDecStmt, *ast.ReturnStmt, *ast.BranchStmt, *ast.DeclStmt, *ast.ValueSpec:
			if inner == "" {
				inner = g.of(x)
			}
			continue
		case *ast.IfStmt:
			text = "if " + g.of(x.Cond)
			if next == x.Else && next != nil {
				text = "else of " + text
			}
		case *ast.ForStmt, *ast.RangeStmt:
			text = strings.SplitN(g.of(x), "{", 2)[0]
		case *ast.SwitchStmt:
			if i != len(nodes)-1 && next == x.Body {
				continue // the clause says more
			}
			text = "switch"
			if x.Tag != nil {
				text += " " + g.of(x.Tag)
			}
		case *ast.CaseClause:
			text = "default"
			if len(x.List) > 0 {
				text = string(g.text[g.offset(x.Pos()):g.offset(x.List[len(x.List)-1].End())])
			}
		default:
			continue
		}
		if inner == "" {
			inner = text
			continue
		}
		head = text
	}
	if head == "" {
		return short(inner)
	}
	return short(head) + ": " + short(inner)
}

// short is text on one line, cut where it is long.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 90 {
		text = string(r[:87]) + "..."
	}
	if text == "" {
		return "nothing"
	}
	return text
}
