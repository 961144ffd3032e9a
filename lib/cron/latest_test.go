// SPDX-License-Identifier: Apache-2.0

package cron

import (
	"testing"
	"time"
)

func TestLatest(t *testing.T) {
	at := func(text string) time.Time {
		d, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, c := range []struct {
		spec, from, until, want string
		n                       int
	}{
		{"0 * * * *", "2026-07-09T00:00:00Z", "2026-07-09T00:59:59Z", "", 0},
		{"0 * * * *", "2026-07-09T00:00:00Z", "2026-07-09T01:00:00Z", "2026-07-09T01:00:00Z", 1},
		{"0 * * * *", "2026-07-09T00:00:00Z", "2026-07-09T05:30:00Z", "2026-07-09T05:00:00Z", 5},
		{"* * * * *", "1970-01-01T00:00:00Z", "2026-07-09T05:30:59Z", "2026-07-09T05:30:00Z", 101},
		// the last was on a Friday
		{"30 6-16/4 * * 1-5", "2020-07-09T00:00:00Z", "2026-07-12T12:00:00Z", "2026-07-10T14:30:00Z", 101},
		{"0 0 29 2 *", "1905-01-01T00:00:00Z", "2026-07-12T12:00:00Z", "2024-02-29T00:00:00Z", 30},
		{"0 0 1 1 *", "1700-01-01T00:00:00Z", "2026-07-12T12:00:00Z", "2026-01-01T00:00:00Z", 101},
		{"@every 7s", "2026-07-09T00:00:00Z", "2026-07-09T00:00:20Z", "2026-07-09T00:00:14Z", 2},
		// in step with its beginning
		{"@every 7s", "2020-01-01T00:00:00Z", "2026-07-09T00:00:20Z", "2026-07-09T00:00:15Z", 101},
		{"0 0 30 2 *", "2020-01-01T00:00:00Z", "2026-07-09T00:00:20Z", "", 0},
	} {
		s, err := Parse(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		last, n := s.Latest(at(c.from), at(c.until), 101)
		if !last.IsZero() {
			got = last.UTC().Format(time.RFC3339)
		}
		if got != c.want || n != c.n {
			t.Errorf("%s from %s until %s: got %q of %d, want %q of %d", c.spec, c.from, c.until, got, n, c.want, c.n)
		}
	}
}

// TestYear compares a year of each zone, with its changes of the clock, with what a look at the clock each minute
// finds.
func TestYear(t *testing.T) {
	for _, zone := range []string{
		"America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Tehran",
		"Africa/Casablanca", "UTC",
	} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range []string{"30 2 * * *", "0 0 * * *", "15 1 * * sun", "*/20 0-3 * * *", "59 23 31 12 *"} {
			schedule, err := Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			end := at.AddDate(1, 0, 0)
			next := schedule.In(loc).Next(at.Add(-time.Minute))
			for ; at.Before(end); at = at.Add(time.Minute) {
				local := at.In(loc)
				due := has(schedule.minute, local.Minute()) && has(schedule.hour, local.Hour()) &&
					has(schedule.month, int(local.Month())) && schedule.day(local)
				if due != next.Equal(at) {
					t.Errorf("%s in %s: at %s due is %v, and the next time is %s", spec, zone, local, due, next)
					break
				}
				if due {
					next = schedule.In(loc).Next(at)
				}
			}
		}
	}
}
