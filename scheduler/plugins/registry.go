// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
)

// InTree returns the factories of this package's plugins, by name. A plugin with arguments takes a *configv1.XArgs with
// its defaults set. The plugins of all profiles share Storage, Policies and Spread.DefaultSelector of options.
func InTree(options Options) framework.Registry {
	plain := func(p framework.Plugin) framework.Factory {
		return func(any, *framework.Handle) (framework.Plugin, error) { return p, nil }
	}
	return framework.Registry{
		"SchedulingGates":      plain(SchedulingGates{}),
		"PrioritySort":         plain(PrioritySort{}),
		"NodeUnschedulable":    plain(NodeUnschedulable{}),
		"NodeName":             plain(NodeName{}),
		"TaintToleration":      plain(TaintToleration{}),
		"NodePorts":            plain(NodePorts{}),
		"NodeDeclaredFeatures": plain(NodeDeclaredFeatures{}),
		"VolumeRestrictions":   plain(VolumeRestrictions{options.Storage}),
		"NodeVolumeLimits":     plain(NodeVolumeLimits{options.Storage}),
		"VolumeZone":           plain(VolumeZone{options.Storage}),
		"ImageLocality":        plain(ImageLocality{}),
		"NodeAffinity":         newNodeAffinity,
		"NodeResourcesFit":     newFit,
		"InterPodAffinity":     newInterPodAffinity,
		policy.Plugin:          newCELPolicy(options.Policies),
		"DefaultBinder": func(_ any, h *framework.Handle) (framework.Plugin, error) {
			return &DefaultBinder{Client: h.Client}, nil
		},
		"NodeResourcesBalancedAllocation": newBalanced,
		"PodTopologySpread": func(args any, _ *framework.Handle) (framework.Plugin, error) {
			p := options.Spread
			a, ok := args.(*configv1.PodTopologySpreadArgs)
			if !ok {
				return nil, notArgs(p, args)
			}
			if a.DefaultingType == configv1.ListDefaulting {
				p.Defaults = append([]corev1.TopologySpreadConstraint{}, a.DefaultConstraints...)
			}
			return p, nil
		},
		"VolumeBinding": func(args any, _ *framework.Handle) (framework.Plugin, error) {
			p := &VolumeBinding{Storage: options.Storage}
			a, ok := args.(*configv1.VolumeBindingArgs)
			if !ok {
				return nil, notArgs(p, args)
			}
			p.Limit = time.Duration(*a.BindTimeoutSeconds) * time.Second
			p.Rank = RequestedToCapacity(shapePoints(a.Shape))
			return p, nil
		},
	}
}

func notArgs(p framework.Plugin, args any) error {
	return fmt.Errorf("plugin %s: its arguments are a %T", p.Name(), args)
}

func newNodeAffinity(args any, _ *framework.Handle) (framework.Plugin, error) {
	a, ok := args.(*configv1.NodeAffinityArgs)
	if !ok {
		return nil, notArgs(NodeAffinity{}, args)
	}
	return NodeAffinity{Added: a.AddedAffinity}, nil
}

func newInterPodAffinity(args any, _ *framework.Handle) (framework.Plugin, error) {
	a, ok := args.(*configv1.InterPodAffinityArgs)
	if !ok {
		return nil, notArgs(InterPodAffinity{}, args)
	}
	return InterPodAffinity{
		HardWeight:              int64(*a.HardPodAffinityWeight),
		IgnoreExistingPreferred: a.IgnorePreferredTermsOfExistingPods,
	}, nil
}

func newBalanced(args any, _ *framework.Handle) (framework.Plugin, error) {
	a, ok := args.(*configv1.NodeResourcesBalancedAllocationArgs)
	if !ok {
		return nil, notArgs(NodeResourcesBalancedAllocation{}, args)
	}
	var p NodeResourcesBalancedAllocation
	if s := strategyOf(a.Resources); !slices.Equal(s, cpuAndMemory) {
		for _, r := range s {
			p.Resources = append(p.Resources, r.Name)
		}
	}
	return p, nil
}

func strategyOf(in []configv1.ResourceSpec) []WeightedResource {
	out := make([]WeightedResource, len(in))
	for i, r := range in {
		out[i] = WeightedResource{corev1.ResourceName(r.Name), r.Weight}
	}
	return out
}

func shapePoints(shape []configv1.UtilizationShapePoint) (out []Point) {
	for _, at := range shape {
		out = append(out, Point{int64(at.Utilization), int64(at.Score)})
	}
	return out
}

func newFit(args any, h *framework.Handle) (framework.Plugin, error) {
	a, ok := args.(*configv1.NodeResourcesFitArgs)
	if !ok {
		return nil, notArgs(NodeResourcesFit{}, args)
	}
	nodeResourcesFit := NodeResourcesFit{DeviceClass: h.DeviceClass}
	if len(a.IgnoredResources)+len(a.IgnoredResourceGroups) > 0 {
		nodeResourcesFit.Ignored = func(r corev1.ResourceName) bool {
			group, _, _ := strings.Cut(string(r), "/")
			return slices.Contains(a.IgnoredResources, string(r)) || slices.Contains(a.IgnoredResourceGroups, group)
		}
	}
	s := a.ScoringStrategy
	resources := strategyOf(s.Resources)
	switch s.Type {
	case configv1.MostAllocated:
		nodeResourcesFit.Strategy = Strategy{Resources: resources, Rank: MostAllocated}
	case configv1.RequestedToCapacityRatio:
		nodeResourcesFit.Strategy = Strategy{
			Resources: resources,
			Rank:      RequestedToCapacity(shapePoints(s.RequestedToCapacityRatio.Shape)),
			SkipZero:  true,
		}
	default:
		if !slices.Equal(resources, cpuAndMemory) {
			nodeResourcesFit.Strategy = Strategy{Resources: resources, Rank: LeastAllocated}
		}
	}
	return nodeResourcesFit, nil
}
