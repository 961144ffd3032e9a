// SPDX-License-Identifier: Apache-2.0

package fairness

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// Stat holds the seats of a level. LowerLimit is the number that it does not lend, and UpperLimit the number including
// those that it may borrow.
type Stat struct {
	Level                           string
	Nominal, LowerLimit, UpperLimit int
	Executing, Waiting              int
}

// Stats lists the levels by name.
func (c *Controller) Stats() []Stat {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Stat
	for _, level := range c.levels {
		upper := level.upperLimit
		if upper == math.MaxInt32 || upper > c.totalSeats {
			upper = c.totalSeats
		}
		out = append(out, Stat{
			Level:      level.name,
			Nominal:    level.nominal,
			LowerLimit: level.lowerLimit,
			UpperLimit: upper,
			Executing:  level.executing,
			Waiting:    level.waiting,
		})
	}
	slices.SortFunc(out, func(a, b Stat) int { return strings.Compare(a.Level, b.Level) })
	return out
}

// SchemaStat holds the counters of one schema at a level: running requests, their seats, waiting requests, and the
// total dispatched.
type SchemaStat struct {
	Schema, Level             string
	Executing, Seats, Waiting int
	Dispatched                int64
}

type schemaStatKey struct{ schema, level string }

func (c *Controller) schemaStatLocked(class Classification) *SchemaStat {
	key := schemaStatKey{class.Schema, class.Level}
	f := c.schemaStats[key]
	if f == nil {
		f = &SchemaStat{Schema: class.Schema, Level: class.Level}
		c.schemaStats[key] = f
	}
	return f
}

// SchemaStats returns the counters, ordered by level and schema.
func (c *Controller) SchemaStats() []SchemaStat {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []SchemaStat
	for _, f := range c.schemaStats {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b SchemaStat) int {
		return cmp.Or(strings.Compare(a.Level, b.Level), strings.Compare(a.Schema, b.Schema))
	})
	return out
}
