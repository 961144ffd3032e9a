// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
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

// Handle is what the scheduler offers the plugins that it makes.
type Handle struct {
	// Profile is the scheduler name that the plugin is made for.
	Profile string
	// Client may be used off the scheduling loop: in PreBind, Bind, PostBind, or on a goroutine of the plugin's.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface // nil in some tests
	// Informers that a plugin takes from here are started by the scheduler, which waits until they are filled before it schedules.
	Informers informers.SharedInformerFactory
	// Waiting are the pods that Permit holds back, of all profiles.
	Waiting *WaitingPods
	// DeviceClass names the class by whose devices an extended resource is served where the node does not offer it itself; "": none. nil is fine.
	DeviceClass func(corev1.ResourceName) string
	Log         *slog.Logger
}

// Factory makes a plugin. args are its arguments, of the type that the plugin documents; nil: none were given. It starts nothing.
type Factory func(args any, h *Handle) (Plugin, error)

// Registry are the plugins that profiles can name.
type Registry map[string]Factory

// Profile is a set of plugins, run for the pods that name it.
type Profile struct {
	SchedulerName string
	// Plugins are all of the profile's, each once, in the order they run, with their weights in scores.
	Plugins []Weighted
	// Points lists the plugins of extension points where it is not all that have something to do there, or not in this order.
	Points map[Point][]Weighted
	// PercentageOfNodes is how many nodes that fit are enough, in a large cluster, of 100; 0: it depends on how large it is.
	PercentageOfNodes int32
}

// Weighted is a plugin with its weight; the weight matters for Scorers only, and those without one do not run.
type Weighted struct {
	Plugin Plugin
	Weight int64
}

// At lists what runs at an extension point, and perhaps plugins that have nothing to do there.
func (p *Profile) At(point Point) []Weighted {
	if at, ok := p.Points[point]; ok {
		return at
	}
	return p.Plugins
}

// Of returns the plugins that run at a point, which is T's, in order.
func Of[T Plugin](p *Profile, at Point) []T {
	var out []T
	for _, w := range p.At(at) {
		if t, ok := w.Plugin.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// All returns the profile's plugins that are a T, in order.
func All[T Plugin](p *Profile) []T {
	var out []T
	for _, w := range p.Plugins {
		if t, ok := w.Plugin.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// Validate checks what every profile must have.
func (p *Profile) Validate() error {
	if n := len(Of[QueueSorter](p, AtQueueSort)); n != 1 {
		return fmt.Errorf("profile %q: one queueSort plugin is wanted, not %d", p.SchedulerName, n)
	}
	if len(Of[Binder](p, AtBind)) == 0 {
		return fmt.Errorf("profile %q: at least one bind plugin is needed", p.SchedulerName)
	}
	return nil
}
