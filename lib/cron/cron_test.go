// SPDX-License-Identifier: Apache-2.0

package cron

import (
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	for _, c := range []struct{ spec, from, want string }{
		{"*/15 * * * *", "2026-07-09T14:45:00Z", "2026-07-09T15:00:00Z"},
		{"*/15 * * * *", "2026-07-09T14:59:59Z", "2026-07-09T15:00:00Z"},
		{"20-35/15 * * * *", "2026-07-09T14:46:00Z", "2026-07-09T15:20:00Z"},
		{"*/35 23 * * *", "2026-07-09T23:35:51Z", "2026-07-10T23:00:00Z"},
		{"0 0 * feb mon", "2026-07-09T23:35:00Z", "2027-02-01T00:00:00Z"},
		{"0 0 29 2 ?", "2026-07-09T23:35:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 29 2 *", "2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 30 2 ?", "2026-07-09T23:35:00Z", ""},
		{"0 0 13 * fri", "2026-07-09T00:00:00Z", "2026-07-10T00:00:00Z"},  // a Friday or the 13th
		{"0 0 */2 * sun", "2026-07-09T00:00:00Z", "2026-07-11T00:00:00Z"}, // a step is no star
		{"@hourly", "2026-12-31T23:00:00Z", "2027-01-01T00:00:00Z"},
		{"@weekly", "2026-07-09T00:00:00Z", "2026-07-12T00:00:00Z"},
		{"@every 1h30m", "2026-07-09T00:00:00.5Z", "2026-07-09T01:30:00Z"},
		{"TZ=America/New_York 30 8 * * *", "2026-01-10T00:00:00Z", "2026-01-10T13:30:00Z"},
		// Clocks go forward at 02:00: 02:30 does not exist that day, backward: 01:30 comes twice.
		{"TZ=America/New_York 30 2 * * *", "2026-03-08T05:00:00Z", "2026-03-09T06:30:00Z"},
		{"CRON_TZ=America/New_York 0 3 * * *", "2026-11-01T05:00:00Z", "2026-11-01T08:00:00Z"},
	} {
		s, err := Parse(c.spec)
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		from, err := time.Parse(time.RFC3339Nano, c.from)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if next := s.Next(from); !next.IsZero() {
			got = next.UTC().Format(time.RFC3339)
		}
		if got != c.want {
			t.Errorf("%s after %s: got %q, want %q", c.spec, c.from, got, c.want)
		}
	}
}

func TestIn(t *testing.T) {
	zone, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Parse("0 9 * * *")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.In(zone).Next(time.Date(2026, 7, 9, 0, 0, 0, 0, time.UTC)); got.Format(
		time.RFC3339) != "2026-07-10T00:00:00Z" {
		t.Errorf("nine in Tokyo: got %s", got)
	}
}

func TestErrors(t *testing.T) {
	for spec, want := range map[string]string{
		"":                   "empty spec string",
		"* * *":              "expected exactly 5 fields, found 3: [* * *]",
		"60 * * * *":         "end of range (60) above maximum (59): 60",
		"* * 0 * *":          "beginning of range (0) below minimum (1): 0",
		"* * * * 7":          "end of range (7) above maximum (6): 7",
		"5-3 * * * *":        "beginning of range (5) beyond end of range (3): 5-3",
		"*/0 * * * *":        "step of range should be a positive number: */0",
		"1/2/3 * * * *":      "too many slashes: 1/2/3",
		"1-2-3 * * * *":      "too many hyphens: 1-2-3",
		"x * * * *":          `failed to parse int from x: strconv.Atoi: parsing "x": invalid syntax`,
		"@often":             "unrecognized descriptor: @often",
		"@every x":           `failed to parse duration @every x: time: invalid duration "x"`,
		"TZ=Nowhere * * * *": "provided bad location Nowhere: unknown time zone Nowhere",
	} {
		if _, err := Parse(spec); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", spec, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("*/5 1-3,7 * jan-mar sun", int64(1_800_000_000))
	f.Add("@every 5s", int64(0))
	f.Add("0 0 29 2 *", int64(1_709_164_800))
	f.Fuzz(func(t *testing.T, spec string, unix int64) {
		s, err := Parse(spec)
		if err != nil {
			return
		}
		from := time.Unix(unix%4_000_000_000, 0).UTC()
		if next := s.Next(from); !next.IsZero() && !next.After(from) {
			t.Errorf("%q after %s is %s", spec, from, next)
		}
	})
}
