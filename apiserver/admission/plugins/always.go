// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	"keelson/apiserver/admission"
)

// AlwaysAdmit does nothing; it exists for old configurations. Off by default.
type AlwaysAdmit struct{}

// Name is the plugin's name.
func (AlwaysAdmit) Name() string { return "AlwaysAdmit" }

// AlwaysDeny rejects every write. Off by default.
type AlwaysDeny struct{}

// Name is the plugin's name.
func (AlwaysDeny) Name() string { return "AlwaysDeny" }

// Validate rejects the request.
func (AlwaysDeny) Validate(_ context.Context, r *admission.Request) error {
	return admission.Forbidden(r, "admission control is denying all modifications")
}
