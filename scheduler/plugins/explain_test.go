// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/state"
)

// TestAffinityInWords: which expression failed, and what the node has instead.
func TestAffinityInWords(t *testing.T) {
	info := state.NewNodeInfo(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "c", "disk": "ssd"}},
	})
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

// TestDiskInWords: the pod that holds a disk is named.
func TestDiskInWords(t *testing.T) {
	with := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
				VolumeSource: corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{
					PDName: "data",
				}},
			}}},
		}
	}
	n := state.NewNodeInfo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, state.NewPodInfo(with("holder")))
	pod := state.NewPodInfo(with("p"))
	if got, _, _ := (restrictionsFilter{disks: restrictedDisks(pod.Pod)}).Explain(pod, n,
		nil); got != "disk data used by ns/holder" {
		t.Errorf("got %q, want the holder", got)
	}
}
