// SPDX-License-Identifier: Apache-2.0

package state

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/api/apitest"
)

// TestNilSelectorCountsNoPod: a term without a label selector counts no pod, also where one whose selector is empty was
// counted before. Both selectors are written as nothing.
func TestNilSelectorCountsNoPod(t *testing.T) {
	c := NewCache()
	c.SetNode(apitest.Node("n", apitest.NodeLabels("zone", "a")))
	c.SetPod(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"},
		Spec: corev1.PodSpec{
			NodeName: "n",
		},
	})
	s := c.Refresh()
	for _, tc := range []struct {
		of   labels.Selector
		want int64
	}{{labels.Everything(), 1}, {labels.Nothing(), 0}, {labels.Everything(), 1}} {
		q := Query{Terms: []*Term{NewTerm("zone", []string{"default"}, nil, tc.of)}}
		if got := s.Count(q).By("zone")["a"]; got != tc.want {
			t.Errorf("%#v: counted %d pods, want %d", tc.of, got, tc.want)
		}
	}
}
