// SPDX-License-Identifier: Apache-2.0

package options

import (
	"github.com/spf13/pflag"

	"keelson/apiserver/pipeline"
)

// Tracing says where spans go, and how many.
type Tracing struct {
	// ConfigFile is a TracingConfiguration.
	ConfigFile string
}

func (o *Tracing) addFlags(fl *pflag.FlagSet) {
	fl.StringVar(&o.ConfigFile, "tracing-config-file", "", "export OpenTelemetry spans as the TracingConfiguration in `FILE` says")
}

// New is where spans go; nil: nowhere.
func (o *Tracing) New() (*pipeline.Tracing, error) {
	if o.ConfigFile == "" {
		return nil, nil //nolint:nilnil // no tracing is no error
	}
	return pipeline.LoadTracing(o.ConfigFile)
}
