// SPDX-License-Identifier: Apache-2.0

package options

import (
	"keelson/apiserver/access"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/config"
	"keelson/apiserver/admission/plugins"
	"keelson/lib/option"
)

// Admission selects the admission plugins.
type Admission struct {
	// Enable adds plugins that are off by default, Disable removes others.
	Enable, Disable []string
	// ConfigFile is an AdmissionConfiguration with the plugins' configuration.
	ConfigFile string
}

func (o *Admission) rows() []option.Row {
	return []option.Row{
		option.New(&o.Enable, "enable-admission-plugins", nil,
			"admission `PLUGINS` to run in addition to the default ones, separated by commas"),
		option.New(&o.Disable, "disable-admission-plugins", nil,
			"default admission `PLUGINS` not to run, separated by commas"),
		option.New(&o.ConfigFile, "admission-control-config-file", "",
			"configure admission plugins by the AdmissionConfiguration in `FILE`"),
	}
}

func (o *Admission) validate() error { return plugins.Check(o.Enable, o.Disable) }

// New returns the chain of admission plugins over the server's own objects, and the resources that the plugins follow.
func (o *Admission) New(c plugins.Config) (*admission.Chain, []access.EventHandler, error) {
	c.Enable = o.Enable
	c.Disable = o.Disable
	if o.ConfigFile != "" {
		var err error
		if c.File, err = config.Load(o.ConfigFile, plugins.Names()); err != nil {
			return nil, nil, err
		}
	}
	return plugins.New(c)
}
