// SPDX-License-Identifier: Apache-2.0

package cron

import "time"

// Latest is the last time after from, and not after until, at which the schedule was due, and how many such times there were:
// most if there were that many or more. It is zero and 0 if there was none. However long ago from is, it takes little time.
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

// before is the last due time from first, which is one, to until. It looks back from until by more and more.
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
