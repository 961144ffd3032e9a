// SPDX-License-Identifier: Apache-2.0

// Package user assigns fields of another package, for TestAssignmentsAreFound.
package user

import "assigned/clock"

type wall struct{ *clock.Clock }

// Use assigns three fields that it must not assign.
func Use() {
	made := clock.New()
	promoted := wall{made}
	made.Zone = "CET"
	made.Ticks++
	promoted.Zone, made = "CEST", nil
	config := clock.Config{}
	config.Zone = "CET" // it has no constructor
	_ = config
}
