// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	podapi "keelson/api/core/pod"
	"keelson/lib/words"
)

// nearest finds the labels that are most similar to a selector that matches nothing.
func nearest(objects *Objects) string {
	type candidate struct {
		text  string
		far   int
		count int
	}
	found := map[string]*candidate{}
	for i := range objects.Pods {
		pod := &objects.Pods[i]
		if podapi.Terminal(pod) {
			continue
		}
		far := 0
		has := labels.Set{}
		for k, want := range objects.Service.Spec.Selector {
			v, ok := pod.Labels[k]
			if !ok {
				far += len(k) + len(want)
				continue
			}
			has[k] = v
			far += words.Distance(cut(v), cut(want))
		}
		text := has.String()
		if len(has) == 0 {
			text = labels.Set(pod.Labels).String() // perhaps the key is wrong
		}
		if found[text] == nil {
			found[text] = &candidate{text: text, far: far}
		}
		found[text].count++
	}
	if len(found) == 0 {
		return "there is no pod in namespace " + objects.Service.Namespace
	}
	var all []*candidate
	for _, c := range found {
		all = append(all, c)
	}
	best := slices.MinFunc(all, func(a, b *candidate) int {
		if a.far != b.far {
			return a.far - b.far
		}
		return strings.Compare(a.text, b.text)
	})
	if best.text == "" {
		return fmt.Sprintf("%s of namespace %s %s no labels", words.Count(best.count, "pod"), objects.Service.Namespace,
			words.Verb(best.count, "has", "have"))
	}
	return fmt.Sprintf("nearest: %s on %s", best.text, words.Count(best.count, "pod"))
}

// cut shortens a label's value: those that are read have at most 63 characters.
func cut(value string) string {
	const most = 63
	return value[:min(len(value), most)]
}
