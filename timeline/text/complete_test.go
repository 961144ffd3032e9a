// SPDX-License-Identifier: Apache-2.0

package text

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"keelson/event"
	"keelson/timeline/ledger"
)

// TestEveryStepHasItsParts: each step of event has a template, can be read from a mark of another process, and is sent
// by an agent or by the API server itself. See docs/checklists/fact.md.
func TestEveryStepHasItsParts(t *testing.T) {
	own := []event.Step{event.StepRequest, event.StepDelivery, event.StepEndpoint, event.StepResolvable}
	sent := slices.Concat(ledger.NodeSteps, ledger.SchedulerSteps, ledger.ControllerSteps, own)
	steps := declaredSteps(t)
	if len(steps) < 20 {
		t.Fatalf("found %d steps in event/details.go, want all", len(steps))
	}
	for _, step := range steps {
		if templates[step] == nil {
			t.Errorf("step %q has no row in templates (timeline/text/facts.go)", step)
		}
		if !slices.Contains(sent, step) {
			t.Errorf("step %q is in no list of timeline/ledger/sender.go, nor the API server's own", step)
		}
		mark := []byte(`{"step":` + strconv.Quote(string(step)) + `,"subject":{"resource":"pods","name":"x"}}`)
		if _, err := event.Decode(mark, ledger.Details); err != nil {
			t.Errorf("step %q has no row in details (event/details.go): %v", step, err)
		}
	}
	for step := range templates {
		if !slices.Contains(steps, step) {
			t.Errorf("templates has a row for %q, which is no step", step)
		}
	}
}

// declaredSteps are the constants of type Step.
func declaredSteps(t *testing.T) []event.Step {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../event/details.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var steps []event.Step
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Step") {
			return true
		}
		if value, ok := spec.Values[0].(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(value.Value)
			steps = append(steps, event.Step(name))
		}
		return true
	})
	return steps
}

// TestStoryHasNoWords: timeline/story reads no words. (The one What that it sets is the request of a watcher, a fact.)
func TestStoryHasNoWords(t *testing.T) {
	files, err := filepath.Glob("../story/*.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			use, ok := n.(*ast.SelectorExpr)
			if ok && (use.Sel.Name == "What" || use.Sel.Name == "Ended") {
				t.Errorf("%s uses %s, which is words: ask Step.Mark or Why.End", name, use.Sel.Name)
			}
			return true
		})
	}
}
