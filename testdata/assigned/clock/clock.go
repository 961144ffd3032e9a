// SPDX-License-Identifier: Apache-2.0

// Package clock has types with and without a constructor, for TestAssignmentsAreFound.
package clock

import "time"

// Clock has a constructor.
type Clock struct {
	Zone  string
	Ticks int
	now   func() time.Time
}

// New returns a clock. Its own package may assign.
func New() *Clock {
	c := &Clock{}
	c.Zone = "UTC"
	c.now = time.Now
	return c
}

// Config has none.
type Config struct{ Zone string }
