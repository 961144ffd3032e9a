// SPDX-License-Identifier: Apache-2.0

// Package plugins holds the scheduler's in-tree plugins, one file each (the volume
// plugins share storage.go and freevolumes.go), and the default profile with their order
// and weights. The package scheduler builds a profile from them. The engine of
// scheduler/framework calls them at the extension points that they implement.
//
// Filter and score plugins are pure: they compute a result from a pod and a snapshot.
// Only DefaultBinder and VolumeBinding write to the API server. No plugin keeps a pod
// waiting in Filter or Score.
package plugins

import (
	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
)

// Options are the dependencies of the plugins.
type Options struct {
	Spread PodTopologySpread
	Fit    NodeResourcesFit
	// Storage holds claims and volumes. Volumes is the plugin that binds them. nil: the claims of pods are ignored.
	Storage *Storage
	Volumes *VolumeBinding
	// Policies are the compiled SchedulingPolicy objects; nil: only the policies of the configuration file apply.
	Policies *policy.Set
}

// Default returns the profile of the default scheduler. Filters run in this order; the weights are those of the scores.
func Default(schedulerName string, options Options, more ...framework.Weighted) *framework.Profile {
	return &framework.Profile{
		SchedulerName: schedulerName,
		Plugins: append([]framework.Weighted{
			{Plugin: SchedulingGates{}},
			{Plugin: PrioritySort{}},
			{Plugin: NodeUnschedulable{}},
			{Plugin: NodeName{}},
			{Plugin: TaintToleration{}, Weight: 3},
			{Plugin: NodeAffinity{}, Weight: 2},
			{Plugin: NodePorts{}},
			{Plugin: NodeDeclaredFeatures{}},
			{Plugin: options.Fit, Weight: 1},
			{Plugin: VolumeRestrictions{options.Storage}},
			{Plugin: NodeVolumeLimits{options.Storage}},
			{Plugin: options.Volumes, Weight: 1},
			{Plugin: VolumeZone{options.Storage}},
			{Plugin: options.Spread, Weight: 2},
			{Plugin: InterPodAffinity{HardWeight: 1}, Weight: 2},
			{Plugin: NodeResourcesBalancedAllocation{}, Weight: 1},
			{Plugin: ImageLocality{}, Weight: 1},
		}, more...),
	}
}
