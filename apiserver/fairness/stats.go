// SPDX-License-Identifier: Apache-2.0

package fairness

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// Stat holds the seats of a level. Least is the number that it does not lend, and Most the number including those that it may borrow.
type Stat struct {
	Level                string
	Nominal, Least, Most int
	Executing, Waiting   int
}

// Stats lists the levels by name.
func (c *Controller) Stats() []Stat {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Stat
	for _, l := range c.levels {
		most := l.most
		if most == math.MaxInt32 || most > c.total {
			most = c.total
		}
		out = append(out, Stat{Level: l.name, Nominal: l.nominal, Least: l.kept, Most: most, Executing: l.executing, Waiting: l.waiting})
	}
	slices.SortFunc(out, func(a, b Stat) int { return strings.Compare(a.Level, b.Level) })
	return out
}

// Flow holds the counters of one schema at a level: running requests, their seats, waiting requests, and the total dispatched.
type Flow struct {
	Schema, Level             string
	Executing, Seats, Waiting int
	Dispatched                int64
}

type flowKey struct{ schema, level string }

func (c *Controller) flowLocked(at Place) *Flow {
	key := flowKey{at.Schema, at.Level}
	f := c.flows[key]
	if f == nil {
		f = &Flow{Schema: at.Schema, Level: at.Level}
		c.flows[key] = f
	}
	return f
}

// Flows returns the counters, ordered by level and schema.
func (c *Controller) Flows() []Flow {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Flow
	for _, f := range c.flows {
		out = append(out, *f)
	}
	slices.SortFunc(out, func(a, b Flow) int {
		return cmp.Or(strings.Compare(a.Level, b.Level), strings.Compare(a.Schema, b.Schema))
	})
	return out
}
