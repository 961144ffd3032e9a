// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is the top of this one, from here.
const repository = "../.."

// gate is a row of docs/gates.md.
type gate struct{ promise, state, proof string }

// TestPage: docs/gates.md has a row for each gate that is on or can be turned, and no others; a row is absent when the
// table says so; the tests that it names are there; and it counts its rows.
func TestPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(repository, "docs/gates.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows, duplicates := readPage(string(page))
	for _, name := range duplicates {
		t.Errorf("%s: two rows", name)
	}
	for name, absent := range wanted() {
		row, found := rows[name]
		switch {
		case !found:
			t.Errorf("%s: no row in docs/gates.md", name)
		case (row.state == "absent") != absent:
			t.Errorf("%s: the page says %s, the table absent: %v", name, row.state, absent)
		}
	}
	tests := testsOf(t)
	for name, row := range rows {
		if _, on := wanted()[name]; !on {
			t.Errorf("%s: a row of a gate that is not on", name)
		}
		if err := row.check(tests); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	count := map[string]int{}
	for _, row := range rows {
		count[row.state]++
	}
	if want := fmt.Sprintf("%d gates: %d holds, %d fixed, %d absent, %d n/a.", len(rows), count["holds"], count["fixed"],
		count["absent"], count["n/a"]); !strings.Contains(string(page), "\n"+want+"\n") {
		t.Errorf("docs/gates.md must say: %s", want)
	}
}

// wanted are the gates that are on in the release or can be turned here, and whether what they switch is absent.
func wanted() map[string]bool {
	out := map[string]bool{}
	for _, row := range table {
		for name := range strings.FieldsSeq(row.names) {
			if row.on {
				out[name] = row.absent
			}
		}
	}
	for _, g := range turnable {
		out[g.name] = false
	}
	return out
}

func readPage(page string) (rows map[string]gate, duplicates []string) {
	rows = map[string]gate{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || strings.HasPrefix(line, "| gate") || strings.HasPrefix(line, "| ---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if _, twice := rows[cells[0]]; twice {
			duplicates = append(duplicates, cells[0])
		}
		rows[cells[0]] = gate{promise: cells[2], state: cells[3], proof: cells[4]}
	}
	return rows, duplicates
}

func (g gate) check(tests map[string]bool) error {
	switch g.state {
	case "holds", "fixed":
		if !tests[g.proof] {
			return fmt.Errorf("there is no test %q", g.proof)
		}
	case "absent", "n/a":
		if g.proof == "" {
			return fmt.Errorf("%s without a reason", g.state)
		}
	default:
		return fmt.Errorf("state %q, want holds, fixed, absent or n/a", g.state)
	}
	if g.promise == "" && g.state != "n/a" {
		return fmt.Errorf("it does not say what the gate promises")
	}
	return nil
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// testsOf are all tests of the repository, as DIRECTORY.NAME, and the files of its scripts.
func testsOf(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(repository, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := filepath.ToSlash(strings.TrimPrefix(file, repository+"/"))
		switch {
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && file != repository, rel == "bin":
			return fs.SkipDir
		case path.Dir(rel) == "test/scripts":
			out[rel] = true
		case strings.HasSuffix(rel, "_test.go"):
			source, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for _, name := range testName.FindAllSubmatch(source, -1) {
				out[path.Dir(rel)+"."+string(name[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
