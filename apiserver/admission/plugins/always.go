// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	"keelson/apiserver/admission"
)

// alwaysAdmit does nothing; it exists for old configurations. Off by default.
type alwaysAdmit struct{}

func (alwaysAdmit) Name() string { return "AlwaysAdmit" }

// alwaysDeny rejects every write. Off by default.
type alwaysDeny struct{}

func (alwaysDeny) Name() string { return "AlwaysDeny" }

// Validate rejects the request.
func (alwaysDeny) Validate(_ context.Context, r *admission.Request) error {
	return admission.Forbidden(r, "admission control is denying all modifications")
}
