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
// once was; TestDecisions checks their links.
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

var (
	decisionRow = regexp.MustCompile(`(?m)^\| \[(\d{4})\]\((\d{4}-[a-z0-9-]+\.md)\) \| (.+?) \| ` +
		`.+ \| (?:binds|detail|replaced by \d{4}) \|`)
	decisionTitle  = regexp.MustCompile(`^# (\d{4}): (.+)\n`)
	decisionNumber = regexp.MustCompile(`\bdecisions?[/ ](\d{4})\b`)
)

// TestDecisions: the index has a row with the number and title of each decision, and every decision that a file refers
// to is there.
func TestDecisions(t *testing.T) {
	index, err := os.ReadFile("docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // number and title by file
	for _, m := range decisionRow.FindAllStringSubmatch(string(index), -1) {
		rows[m[2]] = m[1] + ": " + m[3]
	}
	files, err := filepath.Glob("docs/decisions/[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	present := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(file)
		present[name[:4]] = true
		title := decisionTitle.FindStringSubmatch(string(text))
		if title == nil || title[1] != name[:4] {
			t.Errorf("%s does not begin with \"# %s: TITLE\"", file, name[:4])
			continue
		}
		if want := title[1] + ": " + title[2]; rows[name] != want {
			t.Errorf("docs/decisions/README.md has the row %q for %s, want %q", rows[name], name, want)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") && !exists(filepath.Join("docs/decisions", m[1])) {
				t.Errorf("%s leads to %s, which is not there", file, m[1])
			}
		}
	}
	if len(rows) != len(files) {
		t.Errorf("docs/decisions/README.md has %d rows for %d decisions", len(rows), len(files))
	}
	referring := documents(t)
	for file := range goFiles(t) {
		referring = append(referring, file)
	}
	for _, file := range referring {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range decisionNumber.FindAllStringSubmatch(string(text), -1) {
			if !present[m[1]] {
				t.Errorf("%s refers to decision %s, which is not there", file, m[1])
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
