// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOffByDefault(t *testing.T) {
	wantForbidden(t, "always deny", AlwaysDeny{}.Validate(t.Context(), creation(pod())),
		"admission control is denying all modifications")
	empty := cacheOf(map[schema.GroupVersionResource][]runtime.Object{})
	if err := (NamespaceExists{empty}).Validate(t.Context(), creation(pod())); !apierrors.IsNotFound(err) {
		t.Errorf("no such namespace: got %v", err)
	}
	there := cacheOf(map[schema.GroupVersionResource][]runtime.Object{
		namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev"}}},
	})
	if err := (NamespaceExists{there}).Validate(t.Context(), creation(pod())); err != nil {
		t.Errorf("namespace: %v", err)
	}
	far := pod()
	far.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}},
	}}
	if err := (LimitPodHardAntiAffinityTopology{}).Validate(t.Context(), creation(far)); err != nil {
		t.Errorf("by node: %v", err)
	}
	far.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = "zone"
	wantForbidden(t, "by zone", LimitPodHardAntiAffinityTopology{}.Validate(t.Context(), creation(far)),
		"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname "+
			"is allowed")
	wants := pod()
	wants.Spec.Containers[0].Resources.Requests = quantities("example.com/b", "1", "example.com/a", "1", "cpu", "1")
	for range 2 { // the second time changes nothing
		if err := (ExtendedResourceToleration{}).Admit(t.Context(), creation(wants)); err != nil {
			t.Fatal(err)
		}
		if got := wants.Spec.Tolerations; len(got) != 2 || got[0].Key != "example.com/a" ||
			got[1].Key != "example.com/b" || got[0].Effect != corev1.TaintEffectNoSchedule {
			t.Errorf("tolerations: got %v", got)
		}
	}
}
