// SPDX-License-Identifier: Apache-2.0

// Package options are the flags of the API server, one file per concern: a struct, its flags, what is wrong with them, and what the server
// is built of by them. Flags have kube-apiserver's names and meanings. Package cluster adds them to its commands and builds the server.
// Nothing here starts anything or changes a server that runs, but for files that configreload reads again.
package options

import (
	"errors"

	"github.com/spf13/pflag"

	"keelson/lib/flaggroup"
)

// Options are what can be chosen about the API server. The zero value is a server without any of it.
type Options struct {
	// Flags are those that the process was started with, for people who look (/flagz); may be nil.
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

// AddFlags adds kube-apiserver's flags, by name and meaning.
func (o *Options) AddFlags(fl *pflag.FlagSet) {
	o.Flags = func() map[string]string { return values(fl) }
	for group, add := range o.groups() {
		flaggroup.Add(fl, group, add)
	}
}

// groups are the concerns with their flags, by kube-apiserver's names of its groups.
func (o *Options) groups() map[string]func(*pflag.FlagSet) {
	return map[string]func(*pflag.FlagSet){
		"Secure serving": o.Serving.addFlags,
		"Authentication": func(fl *pflag.FlagSet) { o.Authentication.addFlags(fl); o.Tokens.addFlags(fl) },
		"Authorization":  o.Authorization.addFlags,
		"Admission":      o.Admission.addFlags,
		"Auditing":       o.Audit.addFlags,
		"Etcd":           o.Encryption.addFlags,
		"Traces":         o.Tracing.addFlags,
	}
}

// Validate returns one sentence per thing that is wrong.
func (o *Options) Validate() error {
	return errors.Join(
		o.Audit.validate(), o.Authentication.validate(), o.Authorization.validate(), o.Encryption.validate(), o.Serving.validate(),
		o.Tokens.validate(), o.Admission.validate(),
	)
}

// values are all flags that people may give, with what they are.
func values(fl *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	fl.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			out[f.Name] = f.Value.String()
		}
	})
	return out
}
