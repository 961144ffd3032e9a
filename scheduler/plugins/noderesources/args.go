// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
)

// NewBalanced returns the plugin of some arguments, which have their defaults.
func NewBalanced(a *configv1.NodeResourcesBalancedAllocationArgs, h *framework.Handle) BalancedAllocation {
	p := BalancedAllocation{Devices: h.Devices}
	if s := strategyOf(a.Resources); !slices.Equal(s, cpuAndMemory) {
		for _, r := range s {
			p.Resources = append(p.Resources, r.Name)
		}
	}
	return p
}

// NewFit returns the plugin of some arguments, which have their defaults. The default strategy is left out: it has a
// fast path.
func NewFit(a *configv1.NodeResourcesFitArgs, h *framework.Handle) Fit {
	fit := Fit{DeviceClass: h.DeviceClass, Devices: h.Devices}
	if len(a.IgnoredResources)+len(a.IgnoredResourceGroups) > 0 {
		fit.Ignored = func(r corev1.ResourceName) bool {
			group, _, _ := strings.Cut(string(r), "/")
			return slices.Contains(a.IgnoredResources, string(r)) || slices.Contains(a.IgnoredResourceGroups, group)
		}
	}
	s := a.ScoringStrategy
	resources := strategyOf(s.Resources)
	switch s.Type {
	case configv1.MostAllocated:
		fit.Strategy = Strategy{Resources: resources, Rank: MostAllocated}
	case configv1.RequestedToCapacityRatio:
		fit.Strategy = Strategy{
			Resources: resources,
			Rank:      RequestedToCapacity(s.RequestedToCapacityRatio.Shape),
			SkipZero:  true,
		}
	default:
		if !slices.Equal(resources, cpuAndMemory) {
			fit.Strategy = Strategy{Resources: resources, Rank: LeastAllocated}
		}
	}
	return fit
}

func strategyOf(in []configv1.ResourceSpec) []WeightedResource {
	out := make([]WeightedResource, len(in))
	for i, r := range in {
		out[i] = WeightedResource{corev1.ResourceName(r.Name), r.Weight}
	}
	return out
}
