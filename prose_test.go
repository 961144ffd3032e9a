// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// prose are the fields that hold sentences for people, by "package.Type". What a program needs to know of an answer is
// in another field (docs/decisions/0173).
var prose = map[string][]string{
	"timeline/cause.Answer":   {"Why", "Next", "Unknown", "State"},
	"timeline/packet.Service": {"Wrong", "Ports", "Names"},
	"timeline/packet.Pod":     {"Why", "Ports"},
	"timeline/packet.Trace":   {"Rules", "Why", "NoProbe", "Verdict", "Unread"},
	"timeline/packet.Hop":     {"Way", "NoWay", "Egress", "Ingress"},
	"timeline/story.Story":    {"Waits"},
	"timeline/story.Step":     {"What"},
	"timeline/story.Why":      {"Reason", "Ended", "NotReady", "Terminating", "Help"},
	"scheduler/whatif.Answer": {"Notes"},
}

// TestNoSentenceIsParsed: no code takes a sentence apart that other code of this program has made.
func TestNoSentenceIsParsed(t *testing.T) {
	fields := map[string]bool{}
	for _, found := range parsedProse(t, ".", "keelson", prose, fields) {
		t.Errorf("%s: a field of its own says it to programs", found)
	}
	for typeName, names := range prose {
		for _, name := range names {
			if !fields[typeName+"."+name] {
				t.Errorf("no code reads %s.%s: take it out of the list", typeName, name)
			}
		}
	}
}

// TestParsedProseIsFound: the check finds seeded faults, and nothing more.
func TestParsedProseIsFound(t *testing.T) {
	list := map[string][]string{"answer.Answer": {"Why", "State"}}
	got := parsedProse(t, "testdata/prose", "prose", list, map[string]bool{})
	want := []string{
		"testdata/prose/answer/answer.go:18 searches answer.Answer.Why",
		"testdata/prose/user/user.go:16 searches answer.Answer.State",
		"testdata/prose/user/user.go:19 compares answer.Answer.State",
		"testdata/prose/user/user.go:23 searches answer.Answer.Why",
		"testdata/prose/user/user.go:28 searches answer.Answer.State",
		"testdata/prose/user/user.go:30 searches answer.Answer.Why",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// parsedProse finds where a sentence of a field is searched or compared. fields gets the fields that are read.
func parsedProse(t *testing.T, root, module string, list map[string][]string, fields map[string]bool) []string {
	t.Helper()
	m := newCheckedModule(root, module)
	readers := &proseReaders{m: m, list: list, fields: fields, holds: map[types.Object]string{}}
	m.visit = readers.look
	m.walk(t)
	slices.Sort(readers.found)
	return readers.found
}

// proseReaders follows sentences from their fields: into variables, loops and function literals of the same file.
type proseReaders struct {
	m      *checkedModule
	list   map[string][]string
	fields map[string]bool
	holds  map[types.Object]string // variables, with the field of which their value is
	found  []string
}

func (r *proseReaders) look(_ *types.Package, file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			r.assigned(n)
		case *ast.RangeStmt:
			r.hold(n.Value, r.fieldIn(n.X))
		case *ast.CallExpr:
			r.called(n)
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				r.compared(n.X, n.Y)
				r.compared(n.Y, n.X)
			}
		case *ast.SelectorExpr:
			r.fieldIn(n)
		}
		return true
	})
}

// assigned notes variables that get a sentence.
func (r *proseReaders) assigned(assign *ast.AssignStmt) {
	if len(assign.Lhs) != len(assign.Rhs) {
		return
	}
	for i, to := range assign.Lhs {
		r.hold(to, r.fieldIn(assign.Rhs[i]))
	}
}

func (r *proseReaders) hold(to ast.Expr, field string) {
	if name, ok := to.(*ast.Ident); ok && field != "" && r.m.info.Defs[name] != nil {
		r.holds[r.m.info.Defs[name]] = field
	}
}

// searching are the functions of strings that take a text apart. The others print it.
var searching = []string{
	"Contains", "HasPrefix", "HasSuffix", "Index", "LastIndex", "Cut", "Split", "Fields", "EqualFold", "Count", "TrimPrefix",
}

// called looks at the arguments of a call.
func (r *proseReaders) called(call *ast.CallExpr) {
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return
	}
	name := function.Sel.Name
	switch r.packageOf(function.X) {
	case "strings":
		if !slices.ContainsFunc(searching, func(s string) bool { return strings.HasPrefix(name, s) }) {
			return
		}
	case "slices": // the elements go to a function literal
		if literal, ok := call.Args[len(call.Args)-1].(*ast.FuncLit); ok && strings.HasSuffix(name, "Func") {
			for _, parameter := range literal.Type.Params.List {
				for _, of := range parameter.Names {
					r.hold(of, r.fieldIn(call.Args[0]))
				}
			}
		}
		return
	default: // methods of regular expressions
		if !strings.HasPrefix(name, "Match") && !strings.HasPrefix(name, "Find") {
			return
		}
	}
	for _, argument := range call.Args {
		if field := r.fieldIn(argument); field != "" {
			r.report(call.Pos(), "searches", field)
			return
		}
	}
}

// packageOf is the path of the package that an expression names; empty: it is none.
func (r *proseReaders) packageOf(of ast.Expr) string {
	name, ok := of.(*ast.Ident)
	if !ok {
		return ""
	}
	if imported, ok := r.m.info.Uses[name].(*types.PkgName); ok {
		return imported.Imported().Path()
	}
	return ""
}

// compared reports a comparison with a text that is not empty.
func (r *proseReaders) compared(sentence, with ast.Expr) {
	literal, ok := with.(*ast.BasicLit)
	if field := r.fieldIn(sentence); field != "" && ok && literal.Kind == token.STRING && len(literal.Value) > 2 {
		r.report(sentence.Pos(), "compares", field)
	}
}

func (r *proseReaders) report(at token.Pos, what, field string) {
	position := r.m.fset.Position(at)
	r.found = append(r.found, fmt.Sprintf("%s:%d %s %s", filepath.ToSlash(position.Filename), position.Line, what, field))
}

// fieldIn is the field of which a sentence is in an expression; empty: there is none. A call returns something else.
func (r *proseReaders) fieldIn(of ast.Expr) string {
	switch e := of.(type) {
	case *ast.Ident:
		return r.holds[r.m.info.Uses[e]]
	case *ast.ParenExpr:
		return r.fieldIn(e.X)
	case *ast.IndexExpr:
		return r.fieldIn(e.X)
	case *ast.SliceExpr:
		return r.fieldIn(e.X)
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return ""
		}
		if field := r.fieldIn(e.X); field != "" {
			return field
		}
		return r.fieldIn(e.Y)
	case *ast.SelectorExpr:
		selection := r.m.info.Selections[e]
		if selection == nil || selection.Kind() != types.FieldVal {
			return ""
		}
		owner := ownerOf(selection)
		if owner == nil {
			return ""
		}
		typeName := strings.TrimPrefix(owner.Pkg().Path(), r.m.module+"/") + "." + owner.Name()
		if !slices.Contains(r.list[typeName], e.Sel.Name) {
			return ""
		}
		r.fields[typeName+"."+e.Sel.Name] = true
		return typeName + "." + e.Sel.Name
	}
	return ""
}
