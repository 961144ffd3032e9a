// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"

	"keelson/client"
)

// Point is an extension point, by its name in a KubeSchedulerConfiguration.
type Point string

// The extension points. PreFilter and PreScore belong to a plugin's Filter and Score, and have no list of their own.
const (
	AtPreEnqueue Point = "preEnqueue"
	AtQueueSort  Point = "queueSort"
	AtFilter     Point = "filter"
	AtPostFilter Point = "postFilter"
	AtScore      Point = "score"
	AtReserve    Point = "reserve"
	AtPermit     Point = "permit"
	AtPreBind    Point = "preBind"
	AtBind       Point = "bind"
	AtPostBind   Point = "postBind"
)

// Handle gives plugins access to the scheduler's clients and data.
type Handle struct {
	// Profile is the scheduler name that the plugin is made for.
	Profile string
	// Client may be used only off the scheduling loop: in PreBind, Bind, PostBind, or on the plugin's own goroutines.
	Client  client.Interface
	Dynamic dynamic.Interface // nil in some tests
	// Informers is the shared factory. The scheduler starts the informers that a plugin requests, and schedules nothing
	// before they have synced.
	Informers informers.SharedInformerFactory
	// Waiting holds the pods of all profiles that wait because of Permit.
	Waiting *WaitingPods
	// DeviceClass returns the DeviceClass that serves an extended resource on nodes that do not have the resource
	// themselves; "": none. It may be nil.
	DeviceClass func(corev1.ResourceName) string
	// Devices counts the devices that serve an extended resource on such nodes; it returns nil for a resource that no
	// DeviceClass serves. It may be nil.
	Devices func(corev1.ResourceName) func(*corev1.Node) (all, allocated int64)
	Log     *slog.Logger
}

// Factory makes a plugin. args are its arguments, of the type that the plugin documents; nil: none are configured. A
// Factory starts nothing.
type Factory func(args any, h *Handle) (*Plugin, error)

// Registry maps the names of plugins, which profiles use, to their factories.
type Registry map[string]Factory

// Profile is the set of plugins for the pods whose spec.schedulerName is SchedulerName.
type Profile struct {
	SchedulerName string
	// Plugins are all plugins of the profile, each once, in the order in which they run, with their score weights.
	Plugins []Weighted
	// Points has the plugins of an extension point that uses only some of the Plugins, or uses them in another order.
	Points map[Point][]Weighted
	// PercentageOfNodesToScore: see FeasibleNodesToFind; 0: it depends on the size of the cluster.
	PercentageOfNodesToScore int32
	// Observe receives the durations of plugins in some attempts; nil: they are not measured.
	Observe Observe
}

// Weighted is a plugin with its score weight. It matters for scorers only; a scorer with weight 0 does not run.
type Weighted struct {
	*Plugin
	Weight int64
}

// does reports whether the plugin does anything at an extension point.
func (p *Plugin) does(at Point) bool {
	switch at {
	case AtPreEnqueue:
		return p.PreEnqueue != nil
	case AtQueueSort:
		return p.QueueSort != nil
	case AtFilter:
		return p.PreFilter != nil
	case AtPostFilter:
		return p.PostFilter != nil || p.GroupPostFilter != nil
	case AtScore:
		return p.PreScore != nil
	case AtReserve:
		return p.Reserve != nil || p.Unreserve != nil
	case AtPermit:
		return p.Permit != nil
	case AtPreBind:
		return p.PreBind != nil
	case AtBind:
		return p.Bind != nil
	case AtPostBind:
		return p.PostBind != nil
	}
	return false
}

// At returns the plugins that do something at an extension point, in order.
func (p *Profile) At(at Point) []Weighted {
	all, ok := p.Points[at]
	if !ok {
		all = p.Plugins
	}
	var out []Weighted
	for _, w := range all {
		if w.does(at) {
			out = append(out, w)
		}
	}
	return out
}

// Validate checks that the profile has one queueSort plugin and at least one bind plugin.
func (p *Profile) Validate() error {
	if n := len(p.At(AtQueueSort)); n != 1 {
		return fmt.Errorf("profile %q: there must be one queueSort plugin, not %d", p.SchedulerName, n)
	}
	if len(p.At(AtBind)) == 0 {
		return fmt.Errorf("profile %q: there must be at least one bind plugin", p.SchedulerName)
	}
	return nil
}
