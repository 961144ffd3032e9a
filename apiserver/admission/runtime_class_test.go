// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRuntimeClass(t *testing.T) {
	runtimeClass := RuntimeClass{
		cacheOf(map[schema.GroupVersionResource][]runtime.Object{runtimeClasses: {&nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "vm"},
			Overhead:   &nodev1.Overhead{PodFixed: quantities("cpu", "250m")},
			Scheduling: &nodev1.Scheduling{
				NodeSelector: map[string]string{"vm": "yes"},
				Tolerations: []corev1.Toleration{
					{Key: "vm"},
				},
			},
		}}}),
	}
	named := func(class string) *corev1.Pod {
		o := pod()
		o.Spec.RuntimeClassName = &class
		return o
	}
	got := named("vm")
	for range 2 { // twice changes nothing more
		if err := runtimeClass.Admit(t.Context(), creation(got)); err != nil {
			t.Fatal(err)
		}
	}
	if got.Spec.Overhead.Cpu().String() != "250m" || got.Spec.NodeSelector["vm"] != "yes" ||
		len(got.Spec.Tolerations) != 1 {
		t.Errorf("got overhead %v, selector %v, tolerations %v", got.Spec.Overhead, got.Spec.NodeSelector,
			got.Spec.Tolerations)
	}
	if err := runtimeClass.Validate(t.Context(), creation(got)); err != nil {
		t.Error(err)
	}
	wantForbidden(t, "unknown class", runtimeClass.Admit(t.Context(), creation(named("gone"))),
		`pod rejected: RuntimeClass "gone" not found`)
	own := pod()
	own.Spec.Overhead = quantities("cpu", "1")
	wantForbidden(t, "overhead without a class", runtimeClass.Validate(t.Context(), creation(own)),
		"Pod Overhead set without corresponding RuntimeClass defined Overhead")
	other := named("vm")
	other.Spec.NodeSelector = map[string]string{"vm": "no"}
	wantForbidden(t, "selectors in conflict", runtimeClass.Admit(t.Context(), creation(other)),
		"conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no")
}
