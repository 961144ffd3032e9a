// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// globalMetrics are the metrics in variables of packages, with the reason.
var globalMetrics = map[string]string{
	"cluster/agents.ClientMetrics":   "client-go has one global registry of rest_client_*",
	"cluster/agents.ElectionMetrics": "client-go has one global provider of leader_election_*",
}

// TestMetricsBelongToInstances: a metric is made with the instance that counts, so that two clusters in one process
// count apart (docs/decisions/0188).
func TestMetricsBelongToInstances(t *testing.T) {
	used := map[string]bool{}
	for _, found := range metricVariables(t, ".") {
		if globalMetrics[found.name] == "" {
			t.Errorf("%s: %s is a metric of the process: make it with the instance that counts", found.at, found.name)
		}
		used[found.name] = true
	}
	for name := range globalMetrics {
		if !used[name] {
			t.Errorf("the exception %s is not used: take it out", name)
		}
	}
}

// TestGlobalMetricsAreFound: the check finds seeded faults, and nothing more.
func TestGlobalMetricsAreFound(t *testing.T) {
	var got []string
	for _, found := range metricVariables(t, "testdata/globalmetrics") {
		got = append(got, found.name)
	}
	want := []string{"user.direct", "user.once", "user.set", "user.later", "user.registry"}
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// metricVariable is a variable of a package that is, or makes, a metric.
type metricVariable struct{ at, name string }

// metricVariables finds them below root, tests left out.
func metricVariables(t *testing.T, root string) []metricVariable {
	t.Helper()
	var out []metricVariable
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if at == root {
				return nil
			}
			_, err := os.Stat(filepath.Join(at, "go.mod"))
			if err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || at == "bin" {
				return filepath.SkipDir // another module, or no code of this one
			}
			return nil
		}
		if !strings.HasSuffix(at, ".go") || strings.HasSuffix(at, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, at, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(at))
		if err != nil {
			return err
		}
		for _, name := range metricVariablesIn(file) {
			position := files.Position(name.Pos())
			out = append(out, metricVariable{
				at:   fmt.Sprintf("%s:%d", filepath.ToSlash(position.Filename), position.Line),
				name: filepath.ToSlash(rel) + "." + name.Name,
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// metricVariablesIn finds those of one file: by the library's types and constructors, and by what our own are called.
func metricVariablesIn(file *ast.File) []*ast.Ident {
	library := map[string]bool{} // the names by which the file knows the library
	for _, imported := range file.Imports {
		of, _ := strconv.Unquote(imported.Path.Value) // the parser has checked it
		rest, ours := strings.CutPrefix(of, "github.com/prometheus/client_golang/prometheus")
		if !ours {
			continue
		}
		name := strings.TrimPrefix("prometheus"+rest, "prometheus/")
		if imported.Name != nil {
			name = imported.Name.Name
		}
		library[name] = true
	}
	var out []*ast.Ident
	for _, declared := range file.Decls {
		group, ok := declared.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			values, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, name := range values.Names {
				var value ast.Node
				if i < len(values.Values) {
					value = values.Values[i]
				}
				if name.Name == "_" { // a check by the compiler that a type is a collector
					continue
				}
				if isMetricType(values.Type, library) || value != nil && makesMetric(value, library) {
					out = append(out, name)
				}
			}
		}
	}
	return out
}

// isMetricType reports whether a type names one of the library's, or a set of ours.
func isMetricType(of ast.Expr, library map[string]bool) bool {
	found := false
	if of == nil {
		return false
	}
	ast.Inspect(of, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncType:
			return false // a function that gets a metric
		case *ast.SelectorExpr:
			from, ok := n.X.(*ast.Ident)
			found = found || ok && (library[from.Name] && n.Sel.Name != "Desc" || n.Sel.Name == "Metrics")
		case *ast.Ident:
			found = found || n.Name == "Metrics"
		}
		return true
	})
	return found
}

// makesMetric reports whether an expression calls a constructor of a metric, at once or within a function.
func makesMetric(value ast.Node, library map[string]bool) bool {
	found := false
	ast.Inspect(value, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch called := call.Fun.(type) {
		case *ast.SelectorExpr:
			from, ok := called.X.(*ast.Ident)
			found = found || called.Sel.Name == "NewMetrics" || ok && library[from.Name] &&
				strings.HasPrefix(called.Sel.Name, "New") && !strings.HasSuffix(called.Sel.Name, "Desc")
		case *ast.Ident:
			found = found || called.Name == "NewMetrics"
		}
		return true
	})
	return found
}
