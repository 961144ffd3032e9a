// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// assignedFields are the fields that other packages may assign although their type has a constructor, by
// "package.Type.Field", or "package.Type" for all, with the reason.
var assignedFields = map[string]string{
	"apiserver/audit.Event":        "a record: the pipeline adds what it learns while the request runs",
	"scheduler/framework.Refusals": "a record of one attempt, in which the explainer notes its result",
}

// TestFieldsAreAssignedByTheirPackage: what has a constructor is complete when the constructor returns. No other
// package assigns its fields (docs/decisions/0204).
func TestFieldsAreAssignedByTheirPackage(t *testing.T) {
	used := map[string]bool{}
	for _, found := range assignments(t, ".", "keelson") {
		typeName := found.field[:strings.LastIndexByte(found.field, '.')]
		switch {
		case assignedFields[found.field] != "":
			used[found.field] = true
		case assignedFields[typeName] != "":
			used[typeName] = true
		default:
			t.Errorf("%s assigns %s, whose type has the constructor %s: pass it to the constructor", found.at,
				found.field, found.constructor)
		}
	}
	for name := range assignedFields {
		if !used[name] {
			t.Errorf("the exception %s is not used: take it out", name)
		}
	}
}

// TestAssignmentsAreFound: the check finds a seeded fault, and nothing more.
func TestAssignmentsAreFound(t *testing.T) {
	var got []string
	for _, found := range assignments(t, "testdata/assigned", "assigned") {
		got = append(got, found.at+" "+found.field+" "+found.constructor)
	}
	want := []string{
		"testdata/assigned/user/user.go:14 clock.Clock.Zone New",
		"testdata/assigned/user/user.go:15 clock.Clock.Ticks New",
		"testdata/assigned/user/user.go:16 clock.Clock.Zone New",
	}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// assignment is a field of a type with a constructor that another package assigns.
type assignment struct{ at, field, constructor string }

// assignments finds them in the packages below root, whose import paths begin with module. It checks the types of the
// module alone: what comes from elsewhere is unknown, so that the check needs no compiled packages and no program.
func assignments(t *testing.T, root, module string) []assignment {
	t.Helper()
	m := newCheckedModule(root, module)
	m.visit = m.look
	m.walk(t)
	return m.found
}

func newCheckedModule(root, module string) *checkedModule {
	return &checkedModule{
		root:     root,
		module:   module,
		fset:     token.NewFileSet(),
		packages: map[string]*types.Package{},
		info: &types.Info{
			Selections: map[*ast.SelectorExpr]*types.Selection{},
			Defs:       map[*ast.Ident]types.Object{},
			Uses:       map[*ast.Ident]types.Object{},
		},
	}
}

// walk checks all packages.
func (m *checkedModule) walk(t *testing.T) {
	t.Helper()
	root := m.root
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if at != root {
			_, err := os.Stat(filepath.Join(at, "go.mod"))
			if err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || at == "bin" {
				return filepath.SkipDir // another module, or no code of this one
			}
		}
		rel, err := filepath.Rel(root, at)
		if err != nil {
			return err
		}
		_, err = m.Import(path.Join(m.module, filepath.ToSlash(rel)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkedModule is a module whose packages are checked from their source. It is an importer of them.
type checkedModule struct {
	root, module string
	fset         *token.FileSet
	packages     map[string]*types.Package
	info         *types.Info
	visit        func(*types.Package, *ast.File) // each file, when the types of its package are known
	found        []assignment
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// Import implements types.Importer. A package of another module has a name and nothing else.
func (m *checkedModule) Import(of string) (*types.Package, error) {
	if p := m.packages[of]; p != nil {
		return p, nil
	}
	if of != m.module && !strings.HasPrefix(of, m.module+"/") {
		name := path.Base(of)
		if majorVersion.MatchString(name) {
			name = path.Base(path.Dir(of))
		}
		name, _, _ = strings.Cut(name, ".")
		p := types.NewPackage(of, strings.ReplaceAll(name, "-", ""))
		p.MarkComplete()
		m.packages[of] = p
		return p, nil
	}
	dir := filepath.Join(m.root, filepath.FromSlash(strings.TrimPrefix(of, m.module)))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		if built, err := build.Default.MatchFile(dir, e.Name()); err != nil || !built {
			continue
		}
		f, err := parser.ParseFile(m.fset, filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	config := types.Config{Importer: m, Error: func(error) {}} // what other modules declare is unknown
	p, _ := config.Check(of, m.fset, files, m.info)
	m.packages[of] = p
	for _, f := range files {
		m.visit(p, f)
	}
	return p, nil
}

// look collects the assignments in a file of p.
func (m *checkedModule) look(p *types.Package, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				m.assigned(p, to)
			}
		case *ast.IncDecStmt:
			m.assigned(p, n.X)
		}
		return true
	})
}

// assigned collects the assignment to an expression in p.
func (m *checkedModule) assigned(p *types.Package, to ast.Expr) {
	selector, ok := ast.Unparen(to).(*ast.SelectorExpr)
	if !ok {
		return
	}
	selection := m.info.Selections[selector]
	if selection == nil || selection.Kind() != types.FieldVal {
		return
	}
	owner := ownerOf(selection)
	if owner == nil || owner.Pkg() == p || m.packages[owner.Pkg().Path()] == nil {
		return
	}
	if constructor := constructorOf(owner); constructor != "" {
		at := m.fset.Position(selector.Pos())
		m.found = append(m.found, assignment{
			at: fmt.Sprintf("%s:%d", filepath.ToSlash(at.Filename), at.Line),
			field: strings.TrimPrefix(owner.Pkg().Path(), m.module+"/") + "." + owner.Name() + "." +
				selector.Sel.Name,
			constructor: constructor,
		})
	}
}

// ownerOf is the named type that declares a selected field, which may be promoted; nil: there is none.
func ownerOf(selection *types.Selection) *types.TypeName {
	at := selection.Recv()
	index := selection.Index()
	for _, i := range index[:len(index)-1] {
		structure, ok := deref(at).Underlying().(*types.Struct)
		if !ok {
			return nil
		}
		at = structure.Field(i).Type()
	}
	named, ok := types.Unalias(deref(at)).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return nil
	}
	return named.Origin().Obj()
}

func deref(t types.Type) types.Type {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

// constructorOf is the function New... of the type's package that returns it; empty: there is none.
func constructorOf(of *types.TypeName) string {
	scope := of.Pkg().Scope()
	for _, name := range scope.Names() {
		f, ok := scope.Lookup(name).(*types.Func)
		if !ok || !strings.HasPrefix(name, "New") {
			continue
		}
		for result := range f.Signature().Results().Variables() {
			if named, ok := types.Unalias(deref(result.Type())).(*types.Named); ok && named.Origin().Obj() == of {
				return name
			}
		}
	}
	return ""
}
