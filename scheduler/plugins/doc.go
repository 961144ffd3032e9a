// SPDX-License-Identifier: Apache-2.0

// Package plugins holds the scheduler's plugins, a file each, and the profile that
// orders and weighs them. A plugin that filters or scores is pure: from a pod and a
// snapshot to a verdict. Those that write (the binder) say so.
package plugins

import (
	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
)

// Options are what the profile's plugins need from outside.
type Options struct {
	Spread PodTopologySpread
	Fit    NodeResourcesFit
	// Storage is what is known of claims and volumes, and Volumes the plugin that binds them; nil: pods with claims are taken as they are.
	Storage *Storage
	Volumes *VolumeBinding
	// Policies are those that SchedulingPolicy objects say; nil: only those of the configuration.
	Policies *policy.Set
}

// Default is the profile of the default scheduler: the order is that in which filters refuse, the weights are those of scores.
func Default(schedulerName string, o Options, more ...framework.Weighted) *framework.Profile {
	return &framework.Profile{SchedulerName: schedulerName, Plugins: append([]framework.Weighted{
		{Plugin: SchedulingGates{}},
		{Plugin: PrioritySort{}},
		{Plugin: NodeUnschedulable{}},
		{Plugin: NodeName{}},
		{Plugin: TaintToleration{}, Weight: 3},
		{Plugin: NodeAffinity{}, Weight: 2},
		{Plugin: NodePorts{}},
		{Plugin: NodeDeclaredFeatures{}},
		{Plugin: o.Fit, Weight: 1},
		{Plugin: VolumeRestrictions{o.Storage}},
		{Plugin: NodeVolumeLimits{o.Storage}},
		{Plugin: o.Volumes, Weight: 1},
		{Plugin: VolumeZone{o.Storage}},
		{Plugin: o.Spread, Weight: 2},
		{Plugin: InterPodAffinity{HardWeight: 1}, Weight: 2},
		{Plugin: NodeResourcesBalancedAllocation{}, Weight: 1},
		{Plugin: ImageLocality{}, Weight: 1},
	}, more...)}
}
