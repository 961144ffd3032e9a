// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins/noderesources"
	"keelson/scheduler/plugins/volumes"
	"keelson/scheduler/policy"
)

// Table has the in-tree plugins: the default plugins of kube-scheduler v1.37 in its order, and CELPolicy after the
// cheaper filters. Filters and scores run in this order. GangScheduling is not in it: the feature gate adds it to every
// profile.
var Table = []Row{
	{"SchedulingGates", 1, nil, plain(SchedulingGates{}.Plugin()), false},
	{"PrioritySort", 1, nil, plain(PrioritySort{}.Plugin()), false},
	{"NodeUnschedulable", 1, nil, plain(NodeUnschedulable{}.Plugin()), true},
	{"NodeName", 1, nil, plain(NodeName{}.Plugin()), true},
	{"TaintToleration", 3, nil, plain(TaintToleration{}.Plugin()), true},
	{"NodeAffinity", 2, &configv1.NodeAffinityArgs{}, typed(newNodeAffinity), true},
	{"NodePorts", 1, nil, plain(NodePorts{}.Plugin()), true},
	{"NodeDeclaredFeatures", 1, nil, plain(NodeDeclaredFeatures{}.Plugin()), false},
	{"NodeResourcesFit", 1, &configv1.NodeResourcesFitArgs{}, typed(newFit), true},
	{"VolumeRestrictions", 1, nil, newVolumeRestrictions, true},
	{"NodeVolumeLimits", 1, nil, newVolumeLimits, true},
	{"VolumeBinding", 1, &configv1.VolumeBindingArgs{}, typed(newVolumeBinding), true},
	{"VolumeZone", 1, nil, newVolumeZone, true},
	{"PodTopologySpread", 2, &configv1.PodTopologySpreadArgs{}, typed(newTopologySpread), true},
	{"InterPodAffinity", 2, &configv1.InterPodAffinityArgs{}, typed(newInterPodAffinity), true},
	{policy.Plugin, 1, nil, newCELPolicy, false},
	{"DynamicResources", 2, &configv1.DynamicResourcesArgs{}, typed(newDynamicResources), false},
	{"DefaultPreemption", 1, &configv1.DefaultPreemptionArgs{}, typed(newPreemption), false},
	{"NodeResourcesBalancedAllocation", 1, &configv1.NodeResourcesBalancedAllocationArgs{}, typed(newBalanced), true},
	{"ImageLocality", 1, nil, plain(ImageLocality{}.Plugin()), true},
	{"DefaultBinder", 1, nil, newBinder, false},
}

// Row is a plugin of the Table.
type Row struct {
	Name string
	// Weight is the default weight of its score.
	Weight int64
	// Args is an empty value of the type of its arguments; nil: it has none, or (CELPolicy) may have none.
	Args runtime.Object
	make factory
	// Reference: schedtest/reference has the plugin's rules, and its test compares them.
	Reference bool
}

// factory makes a plugin from its arguments, with their defaults set. nil, nil: what it needs is not in Shared.
type factory func(args any, h *framework.Handle, s *Shared) (*framework.Plugin, error)

// Shared has what the plugins of all profiles share. Its zero value is for a cluster without an API server.
type Shared struct {
	// Storage holds claims and volumes; nil: the claims of pods are ignored.
	Storage *volumes.Storage
	// Policies are the compiled SchedulingPolicy objects; nil: only the policies of the configuration file apply.
	Policies *policy.Set
	// DefaultSelector: see PodTopologySpread.
	DefaultSelector func(pod *corev1.Pod) labels.Selector
	// Preemption and Devices make the plugins of the packages preempt and dynamicresources, which write to the API
	// server while pods are scheduled; nil: there are none.
	Preemption func(*configv1.DefaultPreemptionArgs) *framework.Plugin
	Devices    func(*configv1.DynamicResourcesArgs) *framework.Plugin
}

// Make makes the plugin. args are of the type of r.Args, with their defaults set.
func (r *Row) Make(args any, h *framework.Handle, s *Shared) (*framework.Plugin, error) {
	if r.Args != nil && reflect.TypeOf(args) != reflect.TypeOf(r.Args) {
		return nil, fmt.Errorf("plugin %s: its arguments are a %T", r.Name, args)
	}
	return r.make(args, h, s)
}

// DefaultArgs returns the arguments of a plugin that the configuration gives none; nil: it has none.
func (r *Row) DefaultArgs() runtime.Object {
	if r.Args == nil {
		return nil
	}
	a := r.Args.DeepCopyObject()
	SetArgsDefaults(a)
	return a
}

// Find returns the row of a plugin; nil: it is not in-tree.
func Find(name string) *Row {
	i := slices.IndexFunc(Table, func(r Row) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &Table[i]
}

// Default returns the profile of the default scheduler, for tests: the plugins of the Table that s has the parts for,
// with default arguments and weights.
func Default(schedulerName string, h *framework.Handle, s *Shared, more ...framework.Weighted) *framework.Profile {
	profile := &framework.Profile{SchedulerName: schedulerName}
	for i := range Table {
		row := &Table[i]
		var args any
		if a := row.DefaultArgs(); a != nil {
			args = a
		}
		p, err := row.Make(args, h, s)
		if err != nil {
			panic(err) // default arguments are valid
		}
		if p != nil {
			profile.Plugins = append(profile.Plugins, framework.Weighted{Plugin: p, Weight: row.Weight})
		}
	}
	profile.Plugins = append(profile.Plugins, more...)
	return profile
}

// plain is the factory of a plugin without arguments.
func plain(p *framework.Plugin) factory {
	return func(any, *framework.Handle, *Shared) (*framework.Plugin, error) { return p, nil }
}

// typed is a factory with arguments of type A; Make has checked that they are.
func typed[A any](of func(a A, h *framework.Handle, s *Shared) *framework.Plugin) factory {
	return func(args any, h *framework.Handle, s *Shared) (*framework.Plugin, error) {
		a, _ := args.(A)
		return of(a, h, s), nil
	}
}

func newVolumeRestrictions(_ any, _ *framework.Handle, s *Shared) (*framework.Plugin, error) {
	return volumes.Restrictions{Storage: s.Storage}.Plugin(), nil
}

func newVolumeLimits(_ any, _ *framework.Handle, s *Shared) (*framework.Plugin, error) {
	return volumes.Limits{Storage: s.Storage}.Plugin(), nil
}

func newVolumeZone(_ any, _ *framework.Handle, s *Shared) (*framework.Plugin, error) {
	return volumes.Zone{Storage: s.Storage}.Plugin(), nil
}

func newBinder(_ any, h *framework.Handle, _ *Shared) (*framework.Plugin, error) {
	return (&DefaultBinder{Client: h.Client}).Plugin(), nil
}

func newDynamicResources(a *configv1.DynamicResourcesArgs, _ *framework.Handle, s *Shared) *framework.Plugin {
	if s.Devices == nil {
		return nil
	}
	return s.Devices(a)
}

func newPreemption(a *configv1.DefaultPreemptionArgs, _ *framework.Handle, s *Shared) *framework.Plugin {
	if s.Preemption == nil {
		return nil
	}
	return s.Preemption(a)
}

func newTopologySpread(a *configv1.PodTopologySpreadArgs, _ *framework.Handle, s *Shared) *framework.Plugin {
	p := PodTopologySpread{DefaultSelector: s.DefaultSelector}
	if a.DefaultingType == configv1.ListDefaulting {
		p.Defaults = append([]corev1.TopologySpreadConstraint{}, a.DefaultConstraints...)
	}
	return p.Plugin()
}

func newVolumeBinding(a *configv1.VolumeBindingArgs, _ *framework.Handle, s *Shared) *framework.Plugin {
	if s.Storage == nil {
		return nil
	}
	return (&volumes.Binding{
		Storage: s.Storage,
		Limit:   time.Duration(*a.BindTimeoutSeconds) * time.Second,
		Rank:    noderesources.RequestedToCapacity(a.Shape),
	}).Plugin()
}

func newNodeAffinity(a *configv1.NodeAffinityArgs, _ *framework.Handle, _ *Shared) *framework.Plugin {
	return NodeAffinity{Added: a.AddedAffinity}.Plugin()
}

func newInterPodAffinity(a *configv1.InterPodAffinityArgs, _ *framework.Handle, _ *Shared) *framework.Plugin {
	return InterPodAffinity{
		HardWeight:              int64(*a.HardPodAffinityWeight),
		IgnoreExistingPreferred: a.IgnorePreferredTermsOfExistingPods,
	}.Plugin()
}

func newBalanced(
	a *configv1.NodeResourcesBalancedAllocationArgs, h *framework.Handle, _ *Shared,
) *framework.Plugin {
	return noderesources.NewBalanced(a, h).Plugin()
}

func newFit(a *configv1.NodeResourcesFitArgs, h *framework.Handle, _ *Shared) *framework.Plugin {
	return noderesources.NewFit(a, h).Plugin()
}
