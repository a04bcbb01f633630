package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"strings"
)

// chosen is the environment variable that names the mutant, by its number from 1; unset or 0 is the core as it is.
const chosen = "TWOK_MUTANT"

// selector is the file that is added to the package.
const selector = `package failover

import (
	"os"
	"strconv"
)

var chosenMutant, _ = strconv.Atoi(os.Getenv("` + chosen + `"))
`

// span is where a clone stands in an instrumented file, in lines.
type span struct {
	from, to int
	mutant   int
}

// instrument gives each function with mutants a clone for each, behind the function, and a switch at
// its start. numbers are the mutants' numbers by their place in ms; zero leaves one out.
func (s *source) instrument(ms []mutant, numbers []int) (text []byte, spans []span, err error) {
	type insert struct {
		at   int
		text string
	}
	var inserts []insert
	var clones bytes.Buffer
	lines := 0
	for _, d := range s.ast.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		from, to := s.offset(f.Pos()), s.offset(f.End())
		call, err := s.call(f)
		if err != nil {
			return nil, nil, err
		}
		var cases strings.Builder
		for i, m := range ms {
			if m.file != s.name || numbers[i] == 0 || m.from < from || m.to > to {
				continue
			}
			suffix := fmt.Sprintf("Mutant%d", numbers[i])
			fmt.Fprintf(&cases, "case %d: %s; ", numbers[i], strings.Replace(call, "\x00", suffix, 1))
			name := s.offset(f.Name.End())
			clone := "\n" + string(s.text[from:name]) + suffix + string(s.text[name:m.from]) + m.with + string(s.text[m.to:to]) + "\n"
			n := strings.Count(clone, "\n")
			spans = append(spans, span{lines, lines + n, numbers[i]})
			lines += n
			clones.WriteString(clone)
		}
		if cases.Len() > 0 {
			inserts = append(inserts, insert{s.offset(f.Body.Lbrace) + 1, " switch chosenMutant { " + cases.String() + "}; "})
		}
	}
	var out bytes.Buffer
	last := 0
	for _, in := range inserts {
		out.Write(s.text[last:in.at])
		out.WriteString(in.text)
		last = in.at
	}
	out.Write(s.text[last:])
	above := bytes.Count(out.Bytes(), []byte("\n")) + 1
	for i := range spans {
		spans[i].from += above
		spans[i].to += above
	}
	out.Write(clones.Bytes())
	return out.Bytes(), spans, nil
}

// call is the text that calls a clone of f and returns what it returns; \x00 stands for the clone's suffix.
func (s *source) call(f *ast.FuncDecl) (string, error) {
	text := f.Name.Name + "\x00("
	if f.Recv != nil {
		if len(f.Recv.List[0].Names) != 1 {
			return "", fmt.Errorf("%s: the receiver of %s needs a name", s.name, f.Name.Name)
		}
		text = f.Recv.List[0].Names[0].Name + "." + text
	}
	for _, p := range f.Type.Params.List {
		if len(p.Names) == 0 {
			return "", fmt.Errorf("%s: a parameter of %s needs a name", s.name, f.Name.Name)
		}
		for _, n := range p.Names {
			if n.Name == "_" {
				return "", fmt.Errorf("%s: a parameter of %s needs a name", s.name, f.Name.Name)
			}
			text += n.Name
			if _, ok := p.Type.(*ast.Ellipsis); ok {
				text += "..."
			}
			text += ", "
		}
	}
	text += ")"
	if f.Type.Results == nil {
		return text + "; return", nil
	}
	return "return " + text, nil
}
