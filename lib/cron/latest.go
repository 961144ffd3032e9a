// SPDX-License-Identifier: Apache-2.0

package cron

import "time"

// Latest returns the last time of the schedule after from and not after until, and the number of such times, at most
// most. It returns zero and 0 if there is none. Its cost does not depend on from.
func (s *Schedule) Latest(from, until time.Time, most int) (last time.Time, n int) {
	for t := s.Next(from); !t.IsZero() && !t.After(until); t = s.Next(t) {
		last = t
		if n++; n < most {
			continue
		}
		if s.every > 0 {
			return last.Add(until.Sub(last) / s.every * s.every), most
		}
		return s.before(last, until), most
	}
	return last, n
}

// before returns the last time of the schedule from first, which is one, to until. It searches back from until in
// growing steps.
func (s *Schedule) before(first, until time.Time) time.Time {
	for back := time.Hour; ; back *= 8 {
		from := until.Add(-back)
		if !from.After(first) {
			from = first.Add(-time.Minute)
		}
		var last time.Time
		for t := s.Next(from); !t.IsZero() && !t.After(until); t = s.Next(t) {
			last = t
		}
		if !last.IsZero() {
			return last
		}
	}
}
