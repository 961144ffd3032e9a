// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"maps"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

// ChangedFields names the fields in which two objects of one type differ, two levels deep ("spec.tolerations", "metadata.labels"), sorted.
// It is for plugins that cannot know: those that apply what others wrote.
func ChangedFields(before, after runtime.Object) []string {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		return nil
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if err != nil {
		return nil
	}
	var out []string
	for _, top := range differing(was, is) {
		a, ok1 := was[top].(map[string]any)
		b, ok2 := is[top].(map[string]any)
		if !ok1 && !ok2 {
			out = append(out, top)
			continue
		}
		for _, field := range differing(a, b) {
			out = append(out, top+"."+field)
		}
	}
	return out
}

// differing are the keys under which a and b hold different values.
func differing(a, b map[string]any) []string {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	maps.DeleteFunc(keys, func(k string, _ bool) bool { return apiequality.Semantic.DeepEqual(a[k], b[k]) })
	return slices.Sorted(maps.Keys(keys))
}
