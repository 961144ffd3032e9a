// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var bannedNames = []string{"pkg", "util", "utils", "common", "helpers", "types", "misc", "base", "shared"}

// unnamed are file names that say only that there was no room elsewhere: x_more.go, x_2.go.
var unnamed = regexp.MustCompile(`(^|_)more(_test)?\.go$|_\d+(_test)?\.go$|[a-z]{2,}\d+(_test)?\.go$`)

// TestHouse holds the house rules that a reader would otherwise have to check by hand.
func TestHouse(t *testing.T) {
	documented := map[string]bool{}
	for path := range goFiles(t) {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		if slices.Contains(bannedNames, filepath.Base(dir)) {
			t.Errorf("%s: name a package by what it does", dir)
		}
		if name := filepath.Base(path); unnamed.MatchString(name) &&
			!strings.HasSuffix(strings.TrimSuffix(name, "_test.go"), "_amd64") {
			t.Errorf("%s: name a file by what is in it", path)
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(src[:min(len(src), 300)], []byte("SPDX-License-Identifier: Apache-2.0")) {
			t.Errorf("%s: no SPDX line", path)
		}
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		documented[dir] = documented[dir] || f.Doc != nil
		checkFile(t, fset, f, src)
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment (what it is, who calls it, what it never does)", dir)
		}
	}
}

// checkFile refuses func init and a bare go statement that nothing explains.
func checkFile(t *testing.T, fset *token.FileSet, f *ast.File, src []byte) {
	t.Helper()
	lines := bytes.Split(src, []byte("\n"))
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Name.Name == "init" && n.Recv == nil {
				t.Errorf("%s: func init", fset.Position(n.Pos()))
			}
		case *ast.GoStmt:
			line := fset.Position(n.Pos()).Line
			if !bytes.Contains(lines[line-1], []byte("//")) &&
				(line < 2 || !bytes.Contains(lines[line-2], []byte("//"))) {
				t.Errorf("%s: a bare go must say in a comment what ends it", fset.Position(n.Pos()))
			}
		}
		return true
	})
}
