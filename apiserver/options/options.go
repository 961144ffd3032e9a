// SPDX-License-Identifier: Apache-2.0

// Package options holds the flags of the API server, one file per topic: a struct with its flags, validation, and the
// parts of the server built from it. Names and meaning are kube-apiserver's. Package cluster adds the flags to its
// commands and builds the server. The package starts nothing, and changes a running server only through files that
// configreload reloads.
package options

import (
	"errors"

	"github.com/spf13/pflag"

	"keelson/lib/flaggroup"
)

// Options configures the API server. The zero value is the default.
type Options struct {
	// Flags are the process's flags, for /flagz; may be nil.
	Flags          func() map[string]string
	Serving        Serving
	Authentication Authentication
	Tokens         ServiceAccountTokens
	Authorization  Authorization
	Admission      Admission
	Audit          Audit
	Encryption     Encryption
	Tracing        Tracing
}

// AddFlags adds kube-apiserver's flags.
func (o *Options) AddFlags(fl *pflag.FlagSet) {
	o.Flags = Values(fl)
	for group, add := range o.groups() {
		flaggroup.Add(fl, group, add)
	}
}

// groups are the topics with their flags, under the names of kube-apiserver's flag groups.
func (o *Options) groups() map[string]func(*pflag.FlagSet) {
	return map[string]func(*pflag.FlagSet){
		"Secure serving": o.Serving.addFlags,
		"Authentication": func(fl *pflag.FlagSet) {
			o.Authentication.addFlags(fl)
			o.Tokens.addFlags(fl)
		},
		"Authorization": o.Authorization.addFlags,
		"Admission":     o.Admission.addFlags,
		"Auditing":      o.Audit.addFlags,
		"Etcd":          o.Encryption.addFlags,
		"Traces":        o.Tracing.addFlags,
	}
}

// Validate returns one sentence for each error.
func (o *Options) Validate() error {
	return errors.Join(
		o.Audit.validate(), o.Authentication.validate(), o.Authorization.validate(), o.Encryption.validate(),
		o.Serving.validate(),
		o.Tokens.validate(), o.Admission.validate(),
	)
}

// Values returns the values of all visible flags, when it is called.
func Values(fl *pflag.FlagSet) func() map[string]string {
	return func() map[string]string {
		out := map[string]string{}
		fl.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				out[f.Name] = f.Value.String()
			}
		})
		return out
	}
}
