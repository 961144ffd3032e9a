// SPDX-License-Identifier: Apache-2.0

package schedtest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ServeGroups has a fake server know pod groups.
func ServeGroups(server kubernetes.Interface) {
	discoveryOf(server).Resources = []*metav1.APIResourceList{{
		GroupVersion: schedulingv1beta1.SchemeGroupVersion.String(),
		APIResources: []metav1.APIResource{{Name: "podgroups", Namespaced: true, Kind: "PodGroup"}},
	}, {
		GroupVersion: "policy/v1",
		APIResources: []metav1.APIResource{
			{Name: "poddisruptionbudgets", Namespaced: true, Kind: "PodDisruptionBudget"},
		},
	}}
}

// Gang returns a pod group of which at least so many pods must have nodes.
func Gang(name string, least int32) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("group-" + name)},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: least},
		}},
	}
}

// InGroup puts the pod into a pod group.
func InGroup(group string) PodOption {
	return With(func(s *corev1.PodSpec) {
		s.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	})
}

// Members returns n pods of a group: group-0 and so on.
func Members(group string, n int, cpu string, o ...PodOption) []runtime.Object {
	var out []runtime.Object
	for i := range n {
		out = append(out,
			Pod(fmt.Sprintf("%s-%d", group, i), append(o, InGroup(group), Requests(cpu, ""))...))
	}
	return out
}

// Important sets the priority of a pod group.
func Important(g *schedulingv1beta1.PodGroup, priority int32) *schedulingv1beta1.PodGroup {
	g.Spec.Priority = &priority
	return g
}
