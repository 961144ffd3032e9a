// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	quotedPath = regexp.MustCompile("`([\\w./*-]+/[\\w./*-]*)`")
	link       = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
)

// TestDocs: the files and directories of this repository that the documents name are there. Decisions may name what
// once was.
func TestDocs(t *testing.T) {
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checklists, err := filepath.Glob("docs/checklists/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range slices.Concat(docs, checklists, []string{"README.md"}) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range quotedPath.FindAllStringSubmatch(string(text), -1) {
			room, _, _ := strings.Cut(m[1], "/")
			// pki/ is that of a data directory
			if mayImport[room] == nil && !slices.Contains([]string{"docs", "hack", "examples"}, room) || room == "pki" {
				continue
			}
			if found, err := filepath.Glob(m[1]); err != nil || len(found) == 0 && !exists(m[1]+".go") {
				t.Errorf("%s names %s, which is not there", doc, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") && !exists(filepath.Join(filepath.Dir(doc), m[1])) {
				t.Errorf("%s leads to %s, which is not there", doc, m[1])
			}
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var goFile = regexp.MustCompile(`\b[a-z][a-z0-9_]*\.go\b`)

// TestCommentsNameFiles: the Go files that comments name are there.
func TestCommentsNameFiles(t *testing.T) {
	present := map[string]bool{}
	for path := range goFiles(t) {
		present[filepath.Base(path)] = true
	}
	for path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Comments {
			for _, name := range goFile.FindAllString(c.Text(), -1) {
				if !present[name] {
					t.Errorf("%s names %s, which is not there", fset.Position(c.Pos()), name)
				}
			}
		}
	}
}
