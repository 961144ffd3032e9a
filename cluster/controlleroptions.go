// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"keelson/controllers"
)

// ControllerOptions select and configure the controllers.
type ControllerOptions = controllers.Options

// ControllerInfo describes one controller.
type ControllerInfo = controllers.Info

// KnownControllers lists all controllers.
func KnownControllers() []ControllerInfo { return controllers.Known() }
