// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// avoided are words that comments, strings and documents do without, each with what to write in its place. The reasons
// are in docs/style.md.
var avoided = map[string]string{
	"tell":      "report, return, notify or print",
	"tells":     "reports, returns, notifies or prints",
	"told":      "reported, returned, notified or printed",
	"telling":   "reporting, returning, notifying or printing",
	"hear":      "receive, learn or see",
	"hears":     "receives, learns or sees",
	"heard":     "received, learned or seen",
	"whoever":   "the noun: client, caller, user",
	"nobody":    "no one, or the noun: no client, no caller, no user",
	"anew":      "again, or start over",
	"beside":    "next to, with, in addition to, or while",
	"for ever":  "forever",
	"mend":      "repair",
	"mends":     "repairs",
	"mended":    "repaired",
	"mending":   "repairing",
	"believe":   "trust or assume",
	"believes":  "trusts or assumes",
	"believed":  "trusted or assumed",
	"of before": "previous, earlier",
	"as it was": "unchanged, or the previous one",
	"deed":      "event or action",
	"deeds":     "events or actions",
}

// spoken are places where an avoided word is a name or a term of the field.
var spoken = regexp.MustCompile(`(?i)user nobody|\bnobody:|\bnobody\.[a-z]|name: nobody|http\.NoBody|noBody`)

// avoidedWord finds an avoided word; words of several parts may be spread over a line's end.
func avoidedWord() *regexp.Regexp {
	var parts []string
	for word := range avoided {
		parts = append(parts, strings.ReplaceAll(word, " ", `\s+`))
	}
	slices.Sort(parts)
	return regexp.MustCompile(`(?i)\b(` + strings.Join(parts, "|") + `)\b`)
}

// TestWords: comments, strings and documents are written in plain English.
func TestWords(t *testing.T) {
	find := avoidedWord()
	check := func(where, text string) {
		for _, found := range find.FindAllString(spoken.ReplaceAllString(text, ""), -1) {
			word := strings.Join(strings.Fields(strings.ToLower(found)), " ")
			t.Errorf("%s: %q: write %s", where, word, avoided[word])
		}
	}
	for file := range goFiles(t) {
		for where, text := range commentsAndStrings(t, file) {
			check(where, text)
		}
	}
	for _, file := range documents(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			check(fmt.Sprintf("%s:%d", file, i+1), line)
		}
	}
}

// commentsAndStrings returns the comments and string literals of a Go file by their positions.
func commentsAndStrings(t *testing.T, file string) map[string]string {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var s scanner.Scanner
	s.Init(fset.AddFile(file, -1, len(src)), src, nil, scanner.ScanComments)
	out := map[string]string{}
	for {
		pos, tok, text := s.Scan()
		switch tok {
		case token.EOF:
			return out
		case token.COMMENT, token.STRING:
			out[fset.Position(pos).String()] = text
		}
	}
}

// documents lists the documents of the tree, as Markdown.
func documents(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || file == "bin") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(file, ".md") && file != "docs/style.md" { // style.md shows the words
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
