// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"keelson/api/gates"
	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// stored are the kinds of the table that can be read back.
func stored() []*kind.Kind {
	var out []*kind.Kind
	for _, row := range Table(gates.All()) {
		if !row.Kind.CreateOnly && !slices.Contains(row.ExcludedVerbs, "create") {
			out = append(out, row.Kind)
		}
	}
	return out
}

// TestGolden holds every kind to its golden file; a kind without one fails, and so does a file whose kind has no row in
// the table.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range stored() {
		group := k.Group
		if group == "" {
			group = "core"
		}
		file := filepath.Join("testdata", group, k.Resource+"."+k.Version+".txtar")
		files = slices.DeleteFunc(files, func(found string) bool { return found == file })
		t.Run(group+"/"+k.Resource+"."+k.Version, func(t *testing.T) {
			// where it is always midnight of 2000-01-01, so that ages stay as they are
			synctest.Test(t, func(t *testing.T) { kindtest.Golden(t, k, file) })
		})
	}
	for _, file := range files {
		t.Errorf("no row of Table has the kind of %s", file)
	}
}

// TestRandom fills objects of every kind at random, sends them through both encodings and through all the kind's
// functions.
func TestRandom(t *testing.T) {
	for _, k := range stored() {
		if k.Group == "apiextensions.k8s.io" {
			continue // schemas hold raw JSON, which random bytes are not; the package's own tests cover them
		}
		t.Run(k.Group+"/"+k.Resource+"."+k.Version, func(t *testing.T) {
			for seed := range int64(40) {
				obj := kindtest.Random(k, seed)
				kindtest.RoundTrip(t, k, obj)
				if kindtest.Exercise(t, k, obj); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// TestNames: no two rows may answer to the same name of a resource, or to the same short name within a group.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range Table(gates.All()) {
		n := row.Kind.Names
		if n.Singular == "" || n.Kind == "" || n.Version == "" {
			t.Errorf("%+v: a name is missing", n)
		}
		for _, name := range append([]string{n.Resource}, n.ShortNames...) {
			key := n.Group + "/" + n.Version + "/" + name
			if seen[key] {
				t.Errorf("%s twice", key)
			}
			seen[key] = true
		}
	}
}

// TestIndexed: what an index reads is what the kind's selectable fields say.
func TestIndexed(t *testing.T) {
	for _, row := range Table(gates.All()) {
		for field, value := range row.Indexed {
			for seed := range int64(20) {
				obj := kindtest.Random(row.Kind, seed)
				want, ok := row.Kind.Fields(obj)[field]
				if got := value(obj); got != want || !ok {
					t.Errorf("%s, %s, seed %d: got %q, want %q (a field: %v)", row.Kind.Resource, field, seed, got,
						want, ok)
				}
			}
		}
	}
}
