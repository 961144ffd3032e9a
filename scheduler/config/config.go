// SPDX-License-Identifier: Apache-2.0

// Package config decodes a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) strictly, sets kube-scheduler's
// defaults and validates it by kube-scheduler's rules. Each error has its line and field. The command line and cluster
// call Read with the content of a file. The package does no I/O and creates no plugins: the scheduler creates them from
// Configuration.Profiles.
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
	"keelson/scheduler/plugins"
	"keelson/scheduler/policy"
)

// Configuration is a KubeSchedulerConfiguration with all defaults set.
type Configuration struct {
	configv1.KubeSchedulerConfiguration
	// Profiles are the resolved profiles of the file, or the default profile.
	Profiles []Profile
	// Warnings are about settings without effect, and unsafe settings.
	Warnings []string
}

// Profile is a resolved profile: the plugins for the pods of one scheduler name.
type Profile struct {
	SchedulerName string
	// PercentageOfNodesToScore is percentageOfNodesToScore; 0: not set.
	PercentageOfNodesToScore int32
	// Points lists the enabled plugins of each extension point, in order. A plugin may not implement the extension
	// point.
	Points map[framework.Point][]Plugin
	// Args are the plugins' arguments: a *configv1.XArgs with its defaults for an in-tree plugin with arguments, a
	// json.RawMessage for others.
	Args map[string]any
}

// Plugin is a plugin at an extension point. Weight is its score weight, at least 1.
type Plugin struct {
	Name   string
	Weight int64
}

// Default returns the configuration without a file.
func Default() *Configuration {
	c := &Configuration{}
	setDefaults(&c.KubeSchedulerConfiguration)
	c.resolve(nil)
	return c
}

// InitialBackoff is podInitialBackoffSeconds.
func (c *Configuration) InitialBackoff() time.Duration {
	return time.Duration(*c.PodInitialBackoffSeconds) * time.Second
}

// MaxBackoff is podMaxBackoffSeconds.
func (c *Configuration) MaxBackoff() time.Duration {
	return time.Duration(*c.PodMaxBackoffSeconds) * time.Second
}

// Plugins lists all plugins of the profile, each once, in the order of the extension points.
func (p *Profile) Plugins() []string {
	var out []string
	for _, point := range extensionPoints {
		for _, pl := range p.Points[point] {
			if !slices.Contains(out, pl.Name) {
				out = append(out, pl.Name)
			}
		}
	}
	return out
}

// notImplemented are plugins of kube-scheduler that this scheduler does not have, or adds by itself (GangScheduling). A
// file may name them.
var notImplemented = []string{
	"GangScheduling", "DeferredPodScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount",
}

// extensionPoints are the extension points in the order of an attempt. PreFilter belongs to Filter here, and PreScore
// to Score.
var extensionPoints = []framework.Point{
	framework.AtPreEnqueue, framework.AtQueueSort, framework.AtFilter, framework.AtPostFilter, framework.AtScore,
	framework.AtReserve,
	framework.AtPermit, framework.AtPreBind, framework.AtBind, framework.AtPostBind,
}

func pluginSet(plugins *configv1.Plugins, point framework.Point) configv1.PluginSet {
	switch point {
	case framework.AtPreEnqueue:
		return plugins.PreEnqueue
	case framework.AtQueueSort:
		return plugins.QueueSort
	case framework.AtFilter:
		return plugins.Filter
	case framework.AtPostFilter:
		return plugins.PostFilter
	case framework.AtScore:
		return plugins.Score
	case framework.AtReserve:
		return plugins.Reserve
	case framework.AtPermit:
		return plugins.Permit
	case framework.AtPreBind:
		return plugins.PreBind
	case framework.AtBind:
		return plugins.Bind
	default:
		return plugins.PostBind
	}
}

// resolve sets c.Profiles. args are the decoded arguments by profile and plugin.
func (c *Configuration) resolve(args []map[string]any) {
	c.Profiles = nil
	for i := range c.KubeSchedulerConfiguration.Profiles {
		in := &c.KubeSchedulerConfiguration.Profiles[i]
		profile := Profile{Points: map[framework.Point][]Plugin{}, Args: map[string]any{}}
		if in.SchedulerName != nil {
			profile.SchedulerName = *in.SchedulerName
		}
		if in.PercentageOfNodesToScore != nil {
			profile.PercentageOfNodesToScore = *in.PercentageOfNodesToScore
		} else if c.PercentageOfNodesToScore != nil {
			profile.PercentageOfNodesToScore = *c.PercentageOfNodesToScore
		}
		custom := in.Plugins
		if custom == nil {
			custom = &configv1.Plugins{}
		}
		multi := multiPoint(custom.MultiPoint)
		for _, point := range extensionPoints {
			profile.Points[point] = expand(multi, pluginSet(custom, point))
		}
		// Here PreFilter and Filter are one extension point, and PreScore and Score. Disabling the first disables both.
		profile.Points[framework.AtFilter] = withoutDisabled(profile.Points[framework.AtFilter], custom.PreFilter)
		profile.Points[framework.AtScore] = withoutDisabled(profile.Points[framework.AtScore], custom.PreScore)
		for _, name := range profile.Plugins() {
			if row := plugins.Find(name); row != nil && row.Args != nil {
				profile.Args[name] = row.DefaultArgs()
			}
		}
		if args != nil {
			maps.Copy(profile.Args, args[i])
		}
		c.Profiles = append(c.Profiles, profile)
	}
}

// multiPoint returns the plugins of all extension points: the default ones with the file's changes, then the additional
// ones of the file.
func multiPoint(custom configv1.PluginSet) []Plugin {
	var out []Plugin
	named := func(name string) *configv1.Plugin {
		i := slices.IndexFunc(custom.Enabled, func(p configv1.Plugin) bool { return p.Name == name })
		if i < 0 {
			return nil
		}
		return &custom.Enabled[i]
	}
	for _, row := range plugins.Table {
		p := Plugin{row.Name, row.Weight}
		if disables(custom, p.Name) {
			continue
		}
		if own := named(p.Name); own != nil {
			p = withWeight(*own)
		}
		out = append(out, p)
	}
	for _, p := range custom.Enabled {
		if !slices.ContainsFunc(out, func(o Plugin) bool { return o.Name == p.Name }) {
			out = append(out, withWeight(p))
		}
	}
	return implemented(out)
}

// expand returns the plugins of one extension point: first those of multiPoint that the point's list names again, in
// the order of the list, then the others of multiPoint that the point does not disable, then the others of the list.
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
			first = append(first, withWeight(p))
		} else {
			last = append(last, withWeight(p))
		}
	}
	for _, p := range multi {
		if !inOwn(p.Name) && !disables(own, p.Name) {
			first = append(first, p)
		}
	}
	return implemented(append(first, last...))
}

func withoutDisabled(list []Plugin, pre configv1.PluginSet) []Plugin {
	return slices.DeleteFunc(list, func(p Plugin) bool {
		return disables(pre, p.Name) && !slices.ContainsFunc(pre.Enabled, func(o configv1.Plugin) bool {
			return o.Name == p.Name
		})
	})
}

func implemented(list []Plugin) []Plugin {
	return slices.DeleteFunc(list, func(p Plugin) bool { return slices.Contains(notImplemented, p.Name) })
}

func disables(s configv1.PluginSet, name string) bool {
	return slices.ContainsFunc(s.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
}

func withWeight(p configv1.Plugin) Plugin {
	out := Plugin{Name: p.Name, Weight: 1}
	if p.Weight != nil && *p.Weight > 0 {
		out.Weight = int64(*p.Weight)
	}
	return out
}

// decodeArgs decodes the arguments of a plugin. Those of a plugin that is not in-tree stay a json.RawMessage.
func decodeArgs(name string, raw runtime.RawExtension) (any, []error) {
	if name == policy.Plugin {
		return decodePolicies(raw)
	}
	row := plugins.Find(name)
	if row == nil || row.Args == nil {
		return json.RawMessage(raw.Raw), nil
	}
	if len(raw.Raw) == 0 {
		return row.DefaultArgs(), nil
	}
	into := row.Args.DeepCopyObject()
	errs := strict(raw.Raw, into)
	if k := into.GetObjectKind().GroupVersionKind(); k.Kind != "" && k.Kind != name+"Args" {
		errs = append(errs, fieldError{"kind", "must be " + name + "Args, not " + k.Kind})
	} else if v := k.GroupVersion().String(); k.Version != "" &&
		!strings.EqualFold(v, configv1.SchemeGroupVersion.String()) {
		errs = append(errs, fieldError{"apiVersion", "must be " + configv1.SchemeGroupVersion.String() + ", not " + v})
	}
	plugins.SetArgsDefaults(into)
	return into, errs
}

func decodePolicies(raw runtime.RawExtension) (any, []error) {
	a := &policy.Args{}
	if len(raw.Raw) == 0 {
		return a, nil
	}
	errs := strict(raw.Raw, a)
	if a.Kind != "" && a.Kind != policy.Plugin+"Args" {
		errs = append(errs, fieldError{"kind", "must be " + policy.Plugin + "Args, not " + a.Kind})
	}
	return a, errs
}
