// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/apitest"
	"keelson/scheduler/state"
)

// TestAffinityInWords: which expression failed, and what the node has instead.
func TestAffinityInWords(t *testing.T) {
	info := state.NewNodeInfo(apitest.Node("n", apitest.NodeLabels("zone", "c", "disk", "ssd")))
	is := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	for want, terms := range map[string][][]corev1.NodeSelectorRequirement{
		"affinity: asks zone In (a, b), has c": {
			{is("disk", corev1.NodeSelectorOpIn, "ssd"), is("zone", corev1.NodeSelectorOpIn, "a", "b")},
		},
		"affinity: asks gpu Exists, has none; or asks zone In (a), has c": {
			{is("gpu", corev1.NodeSelectorOpExists)},
			{is("zone", corev1.NodeSelectorOpIn, "a")},
		},
		"affinity: asks disk DoesNotExist, has ssd": {
			{is("disk", corev1.NodeSelectorOpDoesNotExist)},
		},
	} {
		required := &corev1.NodeSelector{}
		for _, es := range terms {
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: es,
			})
		}
		p := state.NewPodInfo(&corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{
			NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required},
		}}})
		if got, _, _ := (NodeAffinity{}).explain(p, info, nil); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
