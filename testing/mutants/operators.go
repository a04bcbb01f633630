package main

import (
	"go/ast"
	"go/token"
	"strconv"
	"strings"
)

var (
	boundary = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	opposite = map[token.Token]string{token.EQL: "!=", token.NEQ: "==", token.LSS: ">=", token.LEQ: ">", token.GTR: "<=", token.GEQ: "<"}
	logic    = map[token.Token]string{token.LAND: "||", token.LOR: "&&"}
	arith    = map[token.Token]string{
		token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "*", token.SHL: ">>", token.SHR: "<<",
		token.INC: "--", token.DEC: "++", token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=",
	}
)

// node adds the mutants of one node.
func (g *generator) node(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		g.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			g.swap("negate", n, "("+g.of(n.X)+")")
		}
	case *ast.BasicLit:
		g.literal(n)
	case *ast.Ident:
		g.ident(n)
	case *ast.CallExpr:
		g.call(n)
	case *ast.CompositeLit:
		g.fields(n)
	case *ast.IfStmt:
		g.condition(n, n.Cond)
		if n.Else != nil {
			g.replace("clause", n, n.Body.End(), n.Else.End(), "else", "", "")
			if !lone(n.Body.List) {
				g.replace("clause", n, n.Body.Pos(), n.Body.End(), "body", "{}", "")
			}
		}
	case *ast.ForStmt:
		if n.Cond != nil {
			g.condition(n, n.Cond)
		}
		g.replace("loop", n, n.Body.Lbrace, n.Body.Lbrace+1, "for", "{ break;", "no round")
	case *ast.RangeStmt:
		g.replace("loop", n, n.Body.Lbrace, n.Body.Lbrace+1, "for", "{ break;", "no round")
	case *ast.CaseClause:
		g.clause(n)
	case *ast.AssignStmt:
		g.assignment(n)
	case *ast.IncDecStmt:
		g.replace("arith", n, n.TokPos, n.End(), "", arith[n.Tok], "")
		g.replace("remove", n, n.Pos(), n.End(), "", "", "")
	case *ast.ExprStmt:
		g.replace("remove", n, n.Pos(), n.End(), "", "", "")
	case *ast.BranchStmt:
		g.replace("remove", n, n.Pos(), n.End(), "", "", "")
		if n.Tok == token.CONTINUE && n.Label == nil {
			g.swap("loop", n, "break")
		}
	case *ast.ReturnStmt:
		g.returned(n)
	}
}

// lone says whether a body is one statement that the operator remove takes out as well.
func lone(body []ast.Stmt) bool {
	if len(body) != 1 {
		return len(body) == 0
	}
	switch s := body[0].(type) {
	case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt:
		return true
	case *ast.AssignStmt:
		return len(s.Lhs) == 1
	case *ast.ReturnStmt:
		return len(s.Results) == 0
	}
	return false
}

func (g *generator) binary(n *ast.BinaryExpr) {
	x, y := g.of(n.X), g.of(n.Y)
	op := func(name, with string) {
		g.replace(name, n, n.Pos(), n.End(), "", "("+x+" "+with+" "+y+")", x+" "+with+" "+y)
	}
	if with, ok := boundary[n.Op]; ok {
		op("boundary", with)
	}
	if with, ok := opposite[n.Op]; ok {
		op("negate", with)
	}
	if with, ok := arith[n.Op]; ok {
		op("arith", with)
	}
	if with, ok := logic[n.Op]; ok {
		op("logic", with)
		// The operand stays, so that what it uses is still used.
		neutral := map[token.Token]string{token.LAND: "true || ", token.LOR: "false && "}[n.Op]
		g.replace("drop", n, n.X.Pos(), n.X.End(), "", "("+neutral+"("+x+"))", "nothing")
		g.replace("drop", n, n.Y.Pos(), n.Y.End(), "", "("+neutral+"("+y+"))", "nothing")
	}
}

// condition is that of an if, a for or a clause.
func (g *generator) condition(at ast.Node, c ast.Expr) {
	text := g.of(c)
	if lit, ok := c.(*ast.Ident); ok && (lit.Name == "true" || lit.Name == "false") {
		return
	}
	b, isBinary := c.(*ast.BinaryExpr)
	u, isUnary := c.(*ast.UnaryExpr)
	if !(isBinary && opposite[b.Op] != "") && !(isUnary && u.Op == token.NOT) {
		g.replace("negate", at, c.Pos(), c.End(), "", "!("+text+")", "")
	}
	g.force(at, c)
}

func (g *generator) force(at ast.Node, c ast.Expr) {
	text := g.of(c)
	g.replace("force", at, c.Pos(), c.End(), "", "(true || ("+text+"))", "true")
	g.replace("force", at, c.Pos(), c.End(), "", "(false && ("+text+"))", "false")
}

func (g *generator) literal(n *ast.BasicLit) {
	switch n.Kind {
	case token.INT:
		v, err := strconv.ParseUint(n.Value, 0, 64)
		if err != nil {
			return
		}
		g.swap("number", n, strconv.FormatUint(v+1, 10))
		if v > 0 {
			g.swap("number", n, strconv.FormatUint(v-1, 10))
		}
	case token.STRING:
		if len(n.Value) > 2 {
			g.swap("string", n, `""`)
		} else {
			g.swap("string", n, `"mutant"`)
		}
	}
}

func (g *generator) ident(n *ast.Ident) {
	switch p := g.parent(0).(type) {
	case *ast.SelectorExpr:
		if p.Sel == n {
			return
		}
	case *ast.KeyValueExpr:
		if p.Key == n {
			return
		}
	}
	switch n.Name {
	case "true":
		g.swap("bool", n, "false")
	case "false":
		g.swap("bool", n, "true")
	}
	_, returned := g.parent(0).(*ast.ReturnStmt)
	for _, with := range g.enums.others(n.Name, returned) {
		g.swap("constant", n, with)
	}
}

func (g *generator) call(n *ast.CallExpr) {
	f, ok := n.Fun.(*ast.Ident)
	if !ok || (f.Name != "min" && f.Name != "max") {
		return
	}
	g.swap("minmax", f, map[string]string{"min": "max", "max": "min"}[f.Name])
	for i, a := range n.Args {
		var rest []string
		for j, b := range n.Args {
			if j != i {
				rest = append(rest, g.of(b))
			}
		}
		with := f.Name + "(" + strings.Join(rest, ", ") + ")"
		g.replace("drop", n, n.Pos(), n.End(), g.of(a), with, "nothing")
	}
}

// fields drops each field of a literal.
func (g *generator) fields(n *ast.CompositeLit) {
	for i, e := range n.Elts {
		if _, ok := e.(*ast.KeyValueExpr); !ok {
			return
		}
		var rest []string
		for j, b := range n.Elts {
			if j != i {
				rest = append(rest, g.of(b))
			}
		}
		g.replace("drop", n, n.Lbrace, n.Rbrace+1, g.of(e), "{"+strings.Join(rest, ", ")+"}", "nothing")
	}
}

func (g *generator) clause(n *ast.CaseClause) {
	sw, ok := g.parent(1).(*ast.SwitchStmt)
	if !ok {
		return
	}
	switch {
	case sw.Tag == nil && len(n.List) == 1:
		g.condition(n, n.List[0]) // never: as if it were gone
	case len(n.List) > 1:
		for i := range n.List {
			var rest []string
			for j, b := range n.List {
				if j != i {
					rest = append(rest, g.of(b))
				}
			}
			g.replace("drop", n, n.List[0].Pos(), n.List[len(n.List)-1].End(), g.of(n.List[i]), strings.Join(rest, ", "), "nothing")
		}
		fallthrough
	default:
		g.replace("clause", n, n.Pos(), n.End(), "clause", "", "")
	}
	if !lone(n.Body) {
		g.replace("clause", n, n.Body[0].Pos(), n.Body[len(n.Body)-1].End(), "body", "", "")
	}
}

func (g *generator) assignment(n *ast.AssignStmt) {
	switch {
	case n.Tok == token.DEFINE:
	case n.Tok == token.ASSIGN:
		for _, l := range n.Lhs {
			if id, ok := l.(*ast.Ident); ok && id.Name == "_" {
				continue
			}
			g.replace("remove", n, l.Pos(), l.End(), "", "_", "nothing")
		}
	default:
		if with, ok := arith[n.Tok]; ok {
			g.replace("arith", n, n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), "", with, "")
		}
		g.replace("remove", n, n.Pos(), n.End(), "", "_ = "+g.of(n.Rhs[0]), "nothing")
	}
}

// returned makes what a return gives back the zero value, or either truth.
func (g *generator) returned(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		g.replace("remove", n, n.Pos(), n.End(), "", "", "")
		return
	}
	for _, s := range g.stack {
		if _, ok := s.(*ast.FuncLit); ok {
			return // of another type than the function's
		}
	}
	var types []string
	for _, f := range g.kind.Results.List {
		for range max(len(f.Names), 1) {
			types = append(types, g.of(f.Type))
		}
	}
	if len(types) != len(n.Results) {
		return
	}
	for i, r := range n.Results {
		switch x := r.(type) {
		case *ast.BasicLit:
			continue
		case *ast.CompositeLit:
			if len(x.Elts) == 0 {
				continue
			}
		case *ast.Ident:
			if x.Name == "true" || x.Name == "false" || x.Name == "nil" || g.enums.of[x.Name] != "" {
				continue
			}
		}
		if types[i] == "bool" {
			g.force(n, r)
			continue
		}
		g.replace("zero", n, r.Pos(), r.End(), "", "*new("+types[i]+")", "zero")
	}
}
