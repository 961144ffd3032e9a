// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

func TestOffByDefault(t *testing.T) {
	admissiontest.WantForbidden(t, "always deny", alwaysDeny{}.Validate(t.Context(), admissiontest.Creation(admissiontest.Pod())),
		"admission control is denying all modifications")
	empty := admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{})
	if err := (namespaceExists{empty}).Validate(t.Context(), admissiontest.Creation(admissiontest.Pod())); !apierrors.IsNotFound(err) {
		t.Errorf("no such namespace: got %v", err)
	}
	there := admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
		admission.Namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev"}}},
	})
	if err := (namespaceExists{there}).Validate(t.Context(), admissiontest.Creation(admissiontest.Pod())); err != nil {
		t.Errorf("namespace: %v", err)
	}
	far := admissiontest.Pod()
	far.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}},
	}}
	if err := (limitPodHardAntiAffinityTopology{}).Validate(t.Context(), admissiontest.Creation(far)); err != nil {
		t.Errorf("by node: %v", err)
	}
	far.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = "zone"
	admissiontest.WantForbidden(t, "by zone", limitPodHardAntiAffinityTopology{}.Validate(t.Context(), admissiontest.Creation(far)),
		"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname "+
			"is allowed")
	wants := admissiontest.Pod()
	wants.Spec.Containers[0].Resources.Requests = admissiontest.Quantities("example.com/b", "1", "example.com/a", "1", "cpu", "1")
	for range 2 { // the second time changes nothing
		if err := (extendedResourceToleration{}).Admit(t.Context(), admissiontest.Creation(wants)); err != nil {
			t.Fatal(err)
		}
		if got := wants.Spec.Tolerations; len(got) != 2 || got[0].Key != "example.com/a" ||
			got[1].Key != "example.com/b" || got[0].Effect != corev1.TaintEffectNoSchedule {
			t.Errorf("tolerations: got %v", got)
		}
	}
}
