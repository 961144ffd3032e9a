// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	"keelson/scheduler/config"
	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
)

// Profile is a profile with its plugins by extension point, and an engine for each lane.
type Profile struct {
	*framework.Profile
	// Engine decides about most pods, ExtenderEngine about those that HTTP extenders are interested in: its attempts
	// overlap those of Engine, and an attempt is valid only until the next one of its engine.
	Engine, ExtenderEngine *Engine

	PostFilter, Reserve, Permit, PreBind, Bind, PostBind []framework.Weighted
	QueueSort                                            *framework.Plugin
}

func (c *Core) newProfile(profile *config.Profile) (*Profile, error) {
	of, err := c.makePlugins(profile)
	if err != nil {
		return nil, fmt.Errorf("profile %q: %w", profile.SchedulerName, err)
	}
	if err := of.Validate(); err != nil {
		return nil, err
	}
	p := &Profile{
		Profile:        of,
		Engine:         NewEngine(of, c.cfg.Parallelism, c.cfg.Seed),
		ExtenderEngine: NewEngine(of, c.cfg.Parallelism, c.cfg.Seed+1),
		PostFilter:     of.At(framework.AtPostFilter),
		Reserve:        of.At(framework.AtReserve),
		Permit:         of.At(framework.AtPermit),
		PreBind:        of.At(framework.AtPreBind),
		Bind:           of.At(framework.AtBind),
		PostBind:       of.At(framework.AtPostBind),
		QueueSort:      of.At(framework.AtQueueSort)[0].Plugin,
	}
	if binder := c.cfg.Binder; binder != nil {
		by := framework.Weighted{Plugin: binder}
		p.Bind = append([]framework.Weighted{by}, p.Bind...)
		p.PreBind = append(p.PreBind, by)
	}
	return p, nil
}

// makePlugins makes each plugin of a profile once, and lists them by extension point.
func (c *Core) makePlugins(profile *config.Profile) (*framework.Profile, error) {
	handle := c.cfg.Handle
	handle.Profile = profile.SchedulerName
	of := &framework.Profile{
		SchedulerName:            profile.SchedulerName,
		Points:                   map[framework.Point][]framework.Weighted{},
		PercentageOfNodesToScore: profile.PercentageOfNodesToScore,
		Observe:                  c.cfg.Observe,
	}
	made := map[string]*framework.Plugin{}
	for _, name := range profile.Plugins() {
		p, err := c.makePlugin(name, profile.Args[name], &handle)
		if err != nil {
			return nil, err
		}
		if p == nil { // Shared lacks what it needs
			continue
		}
		made[name] = p
		of.Plugins = append(of.Plugins, framework.Weighted{Plugin: p, Weight: 1})
	}
	for point, list := range profile.Points {
		at := []framework.Weighted{}
		for _, p := range list {
			if plugin := made[p.Name]; plugin != nil {
				at = append(at, framework.Weighted{Plugin: plugin, Weight: p.Weight})
			}
		}
		of.Points[point] = at
	}
	if c.Groups != nil { // no configuration names the plugin: the feature gate adds it
		gang := framework.Weighted{
			Plugin: plugins.GangScheduling{Groups: c.Groups, Waiting: handle.Waiting}.Plugin(),
			Weight: 1,
		}
		of.Plugins = append(of.Plugins, gang)
		for _, point := range []framework.Point{framework.AtPreEnqueue, framework.AtPermit} {
			of.Points[point] = append(of.Points[point], gang)
		}
	}
	return of, nil
}

// makePlugin makes a plugin. An out-of-tree plugin takes the place of the in-tree one of its name.
func (c *Core) makePlugin(name string, args any, handle *framework.Handle) (*framework.Plugin, error) {
	if factory, ok := c.cfg.Plugins[name]; ok {
		return factory(args, handle)
	}
	if row := plugins.Find(name); row != nil {
		return row.Make(args, handle, c.cfg.Shared)
	}
	return nil, fmt.Errorf("there is no plugin %q", name)
}
