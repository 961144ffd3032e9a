// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	podapi "keelson/api/core/pod"
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
			far += distance(v, want)
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
		return compare(a.text, b.text)
	})
	if best.text == "" {
		return fmt.Sprintf("%s of namespace %s have no labels", count(best.count, "pod"), objects.Service.Namespace)
	}
	return fmt.Sprintf("nearest: %s on %s", best.text, count(best.count, "pod"))
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

// distance is the edit distance: insertions, deletions, changes and swaps of neighbours. Long texts are cut: labels
// have at most 63 characters.
func distance(a, b string) int {
	const most = 63
	a = a[:min(len(a), most)]
	b = b[:min(len(b), most)]
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range b {
		d[0][j+1] = j + 1
	}
	for i := range a {
		for j := range b {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			d[i+1][j+1] = min(d[i][j+1]+1, d[i+1][j]+1, d[i][j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d[i+1][j+1] = min(d[i+1][j+1], d[i-1][j-1]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
