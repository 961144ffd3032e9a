// SPDX-License-Identifier: Apache-2.0

// Package options holds the flags of the API server, one file per topic: a struct with its flags, validation, and the
// parts of the server built from it. Names and meaning are kube-apiserver's. Package cluster adds the flags to its
// commands and builds the server. The package starts nothing, and changes a running server only through files that
// configreload reloads.
package options

import (
	"errors"
	"slices"

	"keelson/lib/option"
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

// Rows are kube-apiserver's options, in its groups of flags.
func (o *Options) Rows() []option.Row {
	return slices.Concat(
		option.In("Secure serving", o.Serving.rows()...),
		option.In("Authentication", o.Authentication.rows()...),
		option.In("Authentication", o.Tokens.rows()...),
		option.In("Authorization", o.Authorization.rows()...),
		option.In("Admission", o.Admission.rows()...),
		option.In("Auditing", o.Audit.rows()...),
		option.In("Etcd", o.Encryption.rows()...),
		option.In("Traces", o.Tracing.rows()...),
	)
}

// Validate returns one sentence for each error.
func (o *Options) Validate() error {
	return errors.Join(
		o.Audit.validate(), o.Authentication.validate(), o.Authorization.validate(), o.Encryption.validate(),
		o.Serving.validate(),
		o.Tokens.validate(), o.Admission.validate(),
	)
}
