// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"keelson/api/apitest"
	"keelson/scheduler/core"
	"keelson/scheduler/plugins"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// TestRememberedVerdicts: cached verdicts about a node for a class of pods end with the node's labels, taints and
// cordon.
func TestRememberedVerdicts(t *testing.T) {
	cache := state.NewCache()
	node := func(change func(*corev1.Node)) {
		n := apitest.Node("n", apitest.NodeLabels("disk", "ssd"))
		n.Status.Allocatable = corev1.ResourceList{
			corev1.ResourcePods:   *quantity("110"),
			corev1.ResourceCPU:    *quantity("8"),
			corev1.ResourceMemory: *quantity("8Gi"),
		}
		change(n)
		cache.SetNode(n)
	}
	engine := core.NewEngine(schedtest.Default(&plugins.Shared{}), 1, 1)
	pod := state.NewPodInfo(&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}})
	tolerant := state.NewPodInfo(&corev1.Pod{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"disk": "ssd"},
		Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}})
	for _, step := range []struct {
		name           string
		change         func(*corev1.Node)
		fits, tolerant bool
	}{
		{"plain", func(*corev1.Node) {}, true, true},
		{
			"tainted", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			}, false, true,
		},
		{"taint gone", func(*corev1.Node) {}, true, true},
		{"cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }, false, true},
		{"relabelled", func(n *corev1.Node) { n.Labels["disk"] = "hdd" }, false, false},
		{"as at first", func(*corev1.Node) {}, true, true},
		{"full", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = *quantity("0") }, false, false},
	} {
		node(step.change)
		for range 2 { // the second time from memory
			if got := engine.Decide(pod, cache.Refresh(), nil).Chosen != nil; got != step.fits {
				t.Errorf("%s: pod fits: got %v, want %v", step.name, got, step.fits)
			}
			if got := engine.Decide(tolerant, cache.Refresh(), nil).Chosen != nil; got != step.tolerant {
				t.Errorf("%s: tolerant pod fits: got %v, want %v", step.name, got, step.tolerant)
			}
		}
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}
