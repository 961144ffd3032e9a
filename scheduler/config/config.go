// SPDX-License-Identifier: Apache-2.0

// Package config reads a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) strictly, sets what it leaves out and checks it by
// Kubernetes' rules. Each thing that is wrong is told with its line and field. It does no I/O and makes no plugins: the scheduler does, from
// the profiles that Read works out.
package config

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/policy"
)

// Configuration is a KubeSchedulerConfiguration with all defaults set.
type Configuration struct {
	configv1.KubeSchedulerConfiguration
	// Profiles are those of the file, or the default one, worked out.
	Profiles []Profile
	// Warnings are about what the file says and has no effect here.
	Warnings []string
}

// Profile says which plugins schedule the pods of a scheduler name.
type Profile struct {
	SchedulerName string
	// PercentageOfNodes is how many nodes that fit are enough, of 100; 0: it depends on how many there are.
	PercentageOfNodes int32
	// Points lists the plugins that an extension point is to run if they have something to do there, in order.
	Points map[framework.Point][]Plugin
	// Args are the plugins' arguments: a *configv1.XArgs with its defaults of each of Kubernetes' plugins that has arguments,
	// a json.RawMessage of others.
	Args map[string]any
}

// Plugin is a plugin at an extension point. Weight is that of its scores, at least 1.
type Plugin struct {
	Name   string
	Weight int64
}

// Default is what holds without a file.
func Default() *Configuration {
	c := &Configuration{}
	setDefaults(&c.KubeSchedulerConfiguration)
	c.resolve(nil)
	return c
}

// InitialBackoff and MaxBackoff are how long a pod waits after its first failure, and at most.
func (c *Configuration) InitialBackoff() time.Duration {
	return time.Duration(*c.PodInitialBackoffSeconds) * time.Second
}

// MaxBackoff is the longest a pod waits.
func (c *Configuration) MaxBackoff() time.Duration {
	return time.Duration(*c.PodMaxBackoffSeconds) * time.Second
}

// Plugins lists all plugins of the profile, each once, in the order of the extension points.
func (p *Profile) Plugins() []string {
	var out []string
	for _, point := range points {
		for _, pl := range p.Points[point] {
			if !slices.Contains(out, pl.Name) {
				out = append(out, pl.Name)
			}
		}
	}
	return out
}

// defaultPlugins are Kubernetes' of this version, in its order, with the weights of their scores; and the one that runs policies, after the
// filters that cost less.
var defaultPlugins = []Plugin{
	{"SchedulingGates", 1}, {"PrioritySort", 1}, {"NodeUnschedulable", 1}, {"NodeName", 1}, {"TaintToleration", 3}, {"NodeAffinity", 2},
	{"NodePorts", 1}, {"NodeDeclaredFeatures", 1}, {"NodeResourcesFit", 1}, {"VolumeRestrictions", 1}, {"NodeVolumeLimits", 1}, {"VolumeBinding", 1}, {"VolumeZone", 1},
	{"PodTopologySpread", 2}, {"InterPodAffinity", 2}, {policy.Plugin, 1}, {"DynamicResources", 2}, {"DefaultPreemption", 1}, {"NodeResourcesBalancedAllocation", 1},
	{"ImageLocality", 1}, {"DefaultBinder", 1},
}

// absent are plugins of Kubernetes that are not in this scheduler: files that name them are read.
var absent = []string{"GangScheduling", "DeferredPodScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount"}

// points are the extension points that have lists of their own, in the order of an attempt.
var points = []framework.Point{
	framework.AtPreEnqueue, framework.AtQueueSort, framework.AtFilter, framework.AtPostFilter, framework.AtScore, framework.AtReserve,
	framework.AtPermit, framework.AtPreBind, framework.AtBind, framework.AtPostBind,
}

func setOf(p *configv1.Plugins, point framework.Point) configv1.PluginSet {
	switch point {
	case framework.AtPreEnqueue:
		return p.PreEnqueue
	case framework.AtQueueSort:
		return p.QueueSort
	case framework.AtFilter:
		return p.Filter
	case framework.AtPostFilter:
		return p.PostFilter
	case framework.AtScore:
		return p.Score
	case framework.AtReserve:
		return p.Reserve
	case framework.AtPermit:
		return p.Permit
	case framework.AtPreBind:
		return p.PreBind
	case framework.AtBind:
		return p.Bind
	default:
		return p.PostBind
	}
}

// resolve works out which plugins run where. args are decoded, by profile and plugin.
func (c *Configuration) resolve(args []map[string]any) {
	c.Profiles = nil
	for i := range c.KubeSchedulerConfiguration.Profiles {
		in := &c.KubeSchedulerConfiguration.Profiles[i]
		p := Profile{Points: map[framework.Point][]Plugin{}, Args: map[string]any{}}
		if in.SchedulerName != nil {
			p.SchedulerName = *in.SchedulerName
		}
		if in.PercentageOfNodesToScore != nil {
			p.PercentageOfNodes = *in.PercentageOfNodesToScore
		} else if c.PercentageOfNodesToScore != nil {
			p.PercentageOfNodes = *c.PercentageOfNodesToScore
		}
		custom := in.Plugins
		if custom == nil {
			custom = &configv1.Plugins{}
		}
		multi := multiPoint(custom.MultiPoint)
		for _, point := range points {
			p.Points[point] = expand(multi, setOf(custom, point))
		}
		// A plugin does its PreFilter and Filter in one, and its PreScore and Score.
		p.Points[framework.AtFilter] = without(p.Points[framework.AtFilter], custom.PreFilter)
		p.Points[framework.AtScore] = without(p.Points[framework.AtScore], custom.PreScore)
		for _, name := range p.Plugins() {
			if a := defaultArgs(name); a != nil {
				p.Args[name] = a
			}
		}
		if args != nil {
			maps.Copy(p.Args, args[i])
		}
		c.Profiles = append(c.Profiles, p)
	}
}

// multiPoint are the plugins of all extension points: the default ones, each with what the file says of it, and then the file's own.
func multiPoint(custom configv1.PluginSet) []Plugin {
	var out []Plugin
	named := func(name string) *configv1.Plugin {
		i := slices.IndexFunc(custom.Enabled, func(p configv1.Plugin) bool { return p.Name == name })
		if i < 0 {
			return nil
		}
		return &custom.Enabled[i]
	}
	for _, p := range defaultPlugins {
		if disables(custom, p.Name) {
			continue
		}
		if own := named(p.Name); own != nil {
			p = weighted(*own)
		}
		out = append(out, p)
	}
	for _, p := range custom.Enabled {
		if !slices.ContainsFunc(out, func(o Plugin) bool { return o.Name == p.Name }) {
			out = append(out, weighted(p))
		}
	}
	return known(out)
}

// expand lists the plugins of one point: first those of multiPoint that the point's own list names again, in the list's order, then the
// others of multiPoint that the point does not disable, then the others of the list.
func expand(multi []Plugin, own configv1.PluginSet) []Plugin {
	inMulti := func(name string) bool {
		return slices.ContainsFunc(multi, func(p Plugin) bool { return p.Name == name })
	}
	inOwn := func(name string) bool {
		return slices.ContainsFunc(own.Enabled, func(p configv1.Plugin) bool { return p.Name == name })
	}
	var first, last []Plugin
	for _, p := range own.Enabled {
		if inMulti(p.Name) {
			first = append(first, weighted(p))
		} else {
			last = append(last, weighted(p))
		}
	}
	for _, p := range multi {
		if !inOwn(p.Name) && !disables(own, p.Name) {
			first = append(first, p)
		}
	}
	return known(append(first, last...))
}

func without(list []Plugin, pre configv1.PluginSet) []Plugin {
	return slices.DeleteFunc(list, func(p Plugin) bool {
		return disables(pre, p.Name) && !slices.ContainsFunc(pre.Enabled, func(o configv1.Plugin) bool { return o.Name == p.Name })
	})
}

func known(list []Plugin) []Plugin {
	return slices.DeleteFunc(list, func(p Plugin) bool { return slices.Contains(absent, p.Name) })
}

func disables(s configv1.PluginSet, name string) bool {
	return slices.ContainsFunc(s.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
}

func weighted(p configv1.Plugin) Plugin {
	out := Plugin{Name: p.Name, Weight: 1}
	if p.Weight != nil && *p.Weight > 0 {
		out.Weight = int64(*p.Weight)
	}
	return out
}

// decodeArgs decodes the arguments of a profile's plugins. A *runtime.RawExtension of a plugin that is not Kubernetes' stays as it is.
func decodeArgs(name string, raw runtime.RawExtension) (any, []error) {
	if name == policy.Plugin {
		return decodePolicies(raw)
	}
	into := emptyArgs(name)
	if into == nil {
		return json.RawMessage(raw.Raw), nil
	}
	if len(raw.Raw) == 0 {
		return defaultArgs(name), nil
	}
	errs := strict(raw.Raw, into)
	if k := into.GetObjectKind().GroupVersionKind(); k.Kind != "" && k.Kind != name+"Args" {
		errs = append(errs, fieldError{"kind", "is not " + name + "Args, but " + k.Kind})
	} else if v := k.GroupVersion().String(); k.Version != "" && !strings.EqualFold(v, configv1.SchemeGroupVersion.String()) {
		errs = append(errs, fieldError{"apiVersion", "is not " + configv1.SchemeGroupVersion.String() + ", but " + v})
	}
	setArgsDefaults(into)
	return into, errs
}

func decodePolicies(raw runtime.RawExtension) (any, []error) {
	a := &policy.Args{}
	if len(raw.Raw) == 0 {
		return a, nil
	}
	errs := strict(raw.Raw, a)
	if a.Kind != "" && a.Kind != policy.Plugin+"Args" {
		errs = append(errs, fieldError{"kind", "is not " + policy.Plugin + "Args, but " + a.Kind})
	}
	return a, errs
}
