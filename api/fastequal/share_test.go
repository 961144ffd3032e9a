// SPDX-License-Identifier: Apache-2.0

package fastequal_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"keelson/api/fastequal"
)

// TestShare: what is the same is one, what differs is kept, and obj means what it meant.
func TestShare(t *testing.T) {
	grace := int64(30)
	old := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "p",
			Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{
				"n": "1",
			},
		},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{{Name: "c", Image: "i"}},
			Volumes:                       []corev1.Volume{{Name: "v"}},
			TerminationGracePeriodSeconds: &grace,
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady}}},
	}
	obj := old.DeepCopy()
	obj.Annotations["n"] = "2"
	obj.Spec.Volumes[0].Name = "w"
	obj.Spec.Tolerations = []corev1.Toleration{}
	want := obj.DeepCopy()
	before := old.DeepCopy()
	fastequal.Share(obj, old)
	if d := cmp.Diff(want, obj); d != "" {
		t.Errorf("sharing changed the object:\n%s", d)
	}
	if d := cmp.Diff(before, old); d != "" {
		t.Errorf("sharing changed the older object:\n%s", d)
	}
	for what, shared := range map[string]bool{
		"containers": &obj.Spec.Containers[0] == &old.Spec.Containers[0],
		"conditions": &obj.Status.Conditions[0] == &old.Status.Conditions[0],
		"grace":      obj.Spec.TerminationGracePeriodSeconds == &grace,
	} {
		if !shared {
			t.Errorf("the %s are held twice", what)
		}
	}
	if &obj.Spec.Volumes[0] == &old.Spec.Volumes[0] {
		t.Error("volumes that differ are shared")
	}
	obj.Labels["seen"] = "1" // only to see that the map is one
	if old.Labels["seen"] != "1" {
		t.Error("the labels are held twice")
	}
	// Nothing to share, nothing harmed.
	fastequal.Share(&unstructured.Unstructured{}, &unstructured.Unstructured{})
	fastequal.Share(obj, obj)
	fastequal.Share(obj, &corev1.Node{})
}
