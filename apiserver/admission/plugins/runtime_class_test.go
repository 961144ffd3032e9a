// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission/admissiontest"
)

func TestRuntimeClass(t *testing.T) {
	runtimeClass := runtimeClass{
		admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{runtimeClasses: {&nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "vm"},
			Overhead:   &nodev1.Overhead{PodFixed: admissiontest.Quantities("cpu", "250m")},
			Scheduling: &nodev1.Scheduling{
				NodeSelector: map[string]string{"vm": "yes"},
				Tolerations: []corev1.Toleration{
					{Key: "vm"},
				},
			},
		}}}),
	}
	named := func(class string) *corev1.Pod {
		o := admissiontest.Pod()
		o.Spec.RuntimeClassName = &class
		return o
	}
	got := named("vm")
	for range 2 { // twice changes nothing more
		if err := runtimeClass.Admit(t.Context(), admissiontest.Creation(got)); err != nil {
			t.Fatal(err)
		}
	}
	if got.Spec.Overhead.Cpu().String() != "250m" || got.Spec.NodeSelector["vm"] != "yes" ||
		len(got.Spec.Tolerations) != 1 {
		t.Errorf("got overhead %v, selector %v, tolerations %v", got.Spec.Overhead, got.Spec.NodeSelector,
			got.Spec.Tolerations)
	}
	if err := runtimeClass.Validate(t.Context(), admissiontest.Creation(got)); err != nil {
		t.Error(err)
	}
	admissiontest.WantForbidden(t, "unknown class", runtimeClass.Admit(t.Context(), admissiontest.Creation(named("gone"))),
		`pod rejected: RuntimeClass "gone" not found`)
	own := admissiontest.Pod()
	own.Spec.Overhead = admissiontest.Quantities("cpu", "1")
	admissiontest.WantForbidden(t, "overhead without a class", runtimeClass.Validate(t.Context(), admissiontest.Creation(own)),
		"Pod Overhead set without corresponding RuntimeClass defined Overhead")
	other := named("vm")
	other.Spec.NodeSelector = map[string]string{"vm": "no"}
	admissiontest.WantForbidden(t, "selectors in conflict", runtimeClass.Admit(t.Context(), admissiontest.Creation(other)),
		"conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no")
}
