// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"keelson/api/kind"
	"keelson/api/kind/kindtest"
)

// FuzzKinds: an object of any kind, begun with those of the golden files, goes through all that the server does with
// it.
func FuzzKinds(f *testing.F) {
	kinds := map[schema.GroupVersionKind]*kind.Kind{}
	for _, k := range stored() {
		kinds[k.GVK()] = k
	}
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range txtar.Parse(b).Files {
			if doc, err := yaml.YAMLToJSON(part.Data); err == nil &&
				(part.Name == "minimal.yaml" || strings.HasPrefix(part.Name, "broken")) {
				f.Add(doc)
			}
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var m metav1.TypeMeta
		if json.Unmarshal(doc, &m) != nil {
			return
		}
		k := kinds[m.GroupVersionKind()]
		if k == nil {
			return
		}
		if obj := k.New(); json.Unmarshal(doc, obj) == nil {
			kindtest.Exercise(t, k, obj)
		}
	})
}
