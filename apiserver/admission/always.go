// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
)

// AlwaysAdmit does nothing; old configurations name it. Off by default.
type AlwaysAdmit struct{}

// Name is the plugin's name.
func (AlwaysAdmit) Name() string { return "AlwaysAdmit" }

// AlwaysDeny refuses every write. Off by default.
type AlwaysDeny struct{}

// Name is the plugin's name.
func (AlwaysDeny) Name() string { return "AlwaysDeny" }

// Validate refuses.
func (AlwaysDeny) Validate(_ context.Context, r *Request) error {
	return Forbidden(r, "admission control is denying all modifications")
}
