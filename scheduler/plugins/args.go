// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func pointTo[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// SetArgsDefaults sets kube-scheduler's defaults in the arguments of a plugin.
func SetArgsDefaults(o runtime.Object) {
	switch a := o.(type) {
	case *configv1.DefaultPreemptionArgs:
		pointTo(&a.MinCandidateNodesPercentage, 10)
		pointTo(&a.MinCandidateNodesAbsolute, 100)
	case *configv1.InterPodAffinityArgs:
		pointTo(&a.HardPodAffinityWeight, 1)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		a.Resources = resources(a.Resources)
	case *configv1.NodeResourcesFitArgs:
		pointTo(&a.ScoringStrategy, configv1.ScoringStrategy{Type: configv1.LeastAllocated})
		a.ScoringStrategy.Resources = resources(a.ScoringStrategy.Resources)
	case *configv1.PodTopologySpreadArgs:
		a.DefaultingType = cmp.Or(a.DefaultingType, configv1.SystemDefaulting)
	case *configv1.VolumeBindingArgs:
		pointTo(&a.BindTimeoutSeconds, 600)
		if len(a.Shape) == 0 {
			a.Shape = []configv1.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
		}
	case *configv1.DynamicResourcesArgs:
		pointTo(&a.FilterTimeout, metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault})
		pointTo(&a.BindingTimeout, metav1.Duration{Duration: configv1.DynamicResourcesBindingTimeoutDefault})
	}
}

func resources(in []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(in) == 0 {
		return []configv1.ResourceSpec{
			{Name: string(corev1.ResourceCPU), Weight: 1},
			{Name: string(corev1.ResourceMemory), Weight: 1},
		}
	}
	for i := range in {
		in[i].Weight = cmp.Or(in[i].Weight, 1)
	}
	return in
}
