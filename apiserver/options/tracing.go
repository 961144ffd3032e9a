// SPDX-License-Identifier: Apache-2.0

package options

import (
	"keelson/apiserver/pipeline"
	"keelson/lib/option"
)

// Tracing configures the export of spans.
type Tracing struct {
	// ConfigFile is a TracingConfiguration.
	ConfigFile string
}

func (o *Tracing) rows() []option.Row {
	return []option.Row{
		option.New(&o.ConfigFile, "tracing-config-file", "",
			"export OpenTelemetry spans as the TracingConfiguration in `FILE` says"),
	}
}

// New returns the tracer; nil: tracing is off.
func (o *Tracing) New() (*pipeline.Tracing, error) {
	if o.ConfigFile == "" {
		return nil, nil // tracing is off
	}
	return pipeline.LoadTracing(o.ConfigFile)
}
