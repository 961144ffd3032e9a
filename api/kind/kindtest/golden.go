// SPDX-License-Identifier: Apache-2.0

// Package kindtest is what every kind's description is held to: a golden file
// that shows what becomes of a minimal object and what is said of a broken one,
// and properties that hold for objects filled at random. The registry's tests
// run it over the whole table, the tests of single groups where they need more.
package kindtest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"keelson/api/kind"
)

var update = flag.Bool("update", false, "write the golden files")

// The parts of a golden file. The first three are written by hand, changed.yaml only where an update has rules of its
// own: it is minimal.yaml after a change that is refused. There may be more broken ones: broken-2.yaml. The others are
// written with -update.
const (
	minimalPart, brokenPart, changedPart = "minimal.yaml", "broken.yaml", "changed.yaml"
	storedPart, tablePart, errorsPart    = "stored.yaml", "table", "errors of "
)

// Golden compares what spec does with the objects in file with what file says.
func Golden(t *testing.T, spec *kind.Kind, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("every kind has a golden file with %s and %s: %v", minimalPart, brokenPart, err)
	}
	old := txtar.Parse(b)
	archive := &txtar.Archive{Comment: old.Comment}
	input := func(name string) kind.Object {
		for _, f := range old.Files {
			if f.Name != name {
				continue
			}
			archive.Files = append(archive.Files, f)
			obj := spec.New()
			if err := yaml.UnmarshalStrict(f.Data, obj); err != nil {
				t.Fatalf("%s: %s: %v", file, name, err)
			}
			return obj
		}
		return nil
	}
	minimal := input(minimalPart)
	broken := map[string]kind.Object{brokenPart: input(brokenPart)}
	if minimal == nil || broken[brokenPart] == nil {
		t.Fatalf("%s: no %s or no %s", file, minimalPart, brokenPart)
	}
	for _, f := range old.Files {
		if strings.HasPrefix(f.Name, "broken-") {
			broken[f.Name] = input(f.Name)
		}
	}
	changed := input(changedPart)
	put := func(name string, data []byte) {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: data})
	}
	Create(spec, minimal)
	for _, e := range check(spec, minimal) {
		t.Errorf("the minimal object is invalid: %v", e)
	}
	stored, err := yaml.Marshal(minimal)
	if err != nil {
		t.Fatal(err)
	}
	put(storedPart, now.ReplaceAll(stored, []byte("${1}NOW")))
	put(tablePart, table(t, spec, minimal))
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		Create(spec, broken[name])
		put(errorsPart+name, say(check(spec, broken[name]), spec.Warnings(broken[name], nil)))
	}
	if changed != nil {
		put(errorsPart+changedPart, change(spec, changed, minimal))
	}
	File(t, file, txtar.Format(archive))
}

// File compares got with the content of file, and writes it there with -update.
func File(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got); write it with -update:\n%s", file, d)
	}
}

// now finds the time at which an object was made.
var now = regexp.MustCompile(`((?:lastPhaseTransitionTime|timeAdded): ).*`)

// Create does what the server does before it validates. It returns the warnings that are due by then.
func Create(k *kind.Kind, obj kind.Object) (warnings []string) {
	k.Default(obj)
	warnings = k.EarlyWarnings(obj)
	k.PrepareCreate(obj)
	return warnings
}

func check(k *kind.Kind, obj kind.Object) field.ErrorList {
	return kind.ClientErrors(k.Check(context.Background(), obj))
}

// change does what the server does with an update.
func change(k *kind.Kind, obj, old kind.Object) []byte {
	k.Default(obj)
	old.SetResourceVersion("1")
	obj.SetResourceVersion("1")
	obj.SetGeneration(old.GetGeneration())
	k.PrepareUpdate(obj, old)
	path := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessor(obj, k.Namespaced, k.ValidateName, path)
	errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(obj, old, path)...)
	errs = append(errs, k.ValidateUpdate(obj, old)...)
	return fmt.Appendf(say(kind.ClientErrors(errs), k.Warnings(obj, old)), "generation: %d -> %d\n",
		old.GetGeneration(), obj.GetGeneration())
}

func say(errs field.ErrorList, warnings []string) []byte {
	var out bytes.Buffer
	for _, e := range errs {
		// Further lines are drawings and diffs, whose form may change from build to build.
		first, _, more := strings.Cut(e.Error(), "\n")
		if more {
			first += " ..."
		}
		fmt.Fprintln(&out, first)
	}
	for _, w := range warnings {
		fmt.Fprintln(&out, "Warning:", w)
	}
	return out.Bytes()
}

// table shows the row with its columns, priority first, and what a field selector sees.
func table(t *testing.T, k *kind.Kind, obj kind.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	row := k.Row(obj)
	if len(row) != len(k.Columns) {
		t.Fatalf("%d cells for %d columns", len(row), len(k.Columns))
	}
	for i, c := range k.Columns {
		fmt.Fprintf(&out, "%d %s (%s): %v\n", c.Priority, c.Name, c.Type, row[i])
	}
	fmt.Fprintf(&out, "selectable: %v\n", k.Fields(obj))
	return out.Bytes()
}

// Same compares errors with their texts.
func Same(t *testing.T, name string, errs field.ErrorList, want []string) {
	t.Helper()
	got := []string{}
	for _, e := range errs {
		got = append(got, e.Error())
	}
	if len(want) == 0 {
		want = []string{}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}
