// SPDX-License-Identifier: Apache-2.0

// Package cron parses schedules in cron's five-field format and computes their
// next times. The validation of CronJobs and the CronJob controller use it. It
// has no clock and no timer.
//
// A schedule is "minute hour day-of-month month day-of-week" (each a list of
// numbers, ranges, "*", steps; months and weekdays also by their first three
// letters), or "@hourly", "@daily", "@midnight", "@weekly", "@monthly",
// "@yearly", "@annually", or "@every <duration>". "TZ=Zone " or "CRON_TZ=Zone "
// may precede it. Error messages are those of Kubernetes' cron library.
package cron

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones must not depend on what is installed on the node
)

// Schedule is a parsed schedule.
type Schedule struct {
	minute, hour, dom, month, dow uint64 // bit n: n is in the list
	anyDOM, anyDOW                bool   // the field is "*"
	every                         time.Duration
	zone                          *time.Location // nil: that of the argument of Next
}

type field struct {
	min, max uint
	names    map[string]uint
}

var (
	minutes = field{0, 59, nil}
	hours   = field{0, 23, nil}
	days    = field{1, 31, nil}
	months  = field{1, 12, map[string]uint{
		"jan": 1,
		"feb": 2,
		"mar": 3,
		"apr": 4,
		"may": 5,
		"jun": 6,
		"jul": 7,
		"aug": 8,
		"sep": 9,
		"oct": 10,
		"nov": 11,
		"dec": 12,
	}}
	weekdays = field{0, 6, map[string]uint{
		"sun": 0,
		"mon": 1,
		"tue": 2,
		"wed": 3,
		"thu": 4,
		"fri": 5,
		"sat": 6,
	}}
)

var descriptors = map[string]string{
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
	"@monthly":  "0 0 1 * *",
	"@weekly":   "0 0 * * 0",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@hourly":   "0 * * * *",
}

// Parse parses a schedule.
func Parse(spec string) (*Schedule, error) {
	if spec == "" {
		return nil, errors.New("empty spec string")
	}
	schedule := &Schedule{}
	if strings.HasPrefix(spec, "TZ=") || strings.HasPrefix(spec, "CRON_TZ=") {
		prefix, rest, _ := strings.Cut(spec, " ")
		_, name, _ := strings.Cut(prefix, "=")
		zone, err := time.LoadLocation(name)
		if err != nil {
			return nil, fmt.Errorf("provided bad location %s: %w", name, err)
		}
		schedule.zone = zone
		spec = strings.TrimSpace(rest)
	}
	if strings.HasPrefix(spec, "@") {
		if d, ok := strings.CutPrefix(spec, "@every "); ok {
			every, err := time.ParseDuration(d)
			if err != nil {
				return nil, fmt.Errorf("failed to parse duration %s: %w", spec, err)
			}
			schedule.every = max(every.Truncate(time.Second), time.Second)
			return schedule, nil
		}
		plain, ok := descriptors[spec]
		if !ok {
			return nil, fmt.Errorf("unrecognized descriptor: %s", spec)
		}
		spec = plain
	}
	return schedule, schedule.parseFields(strings.Fields(spec))
}

func (s *Schedule) parseFields(fields []string) error {
	if len(fields) != 5 {
		return fmt.Errorf("expected exactly 5 fields, found %d: %s", len(fields), fields)
	}
	var star [5]bool
	for i, f := range []struct {
		field
		into *uint64
	}{{minutes, &s.minute}, {hours, &s.hour}, {days, &s.dom}, {months, &s.month}, {weekdays, &s.dow}} {
		var err error
		if *f.into, star[i], err = f.list(fields[i]); err != nil {
			return err
		}
	}
	s.anyDOM = star[2]
	s.anyDOW = star[4]
	return nil
}

// list parses "a,b-c,*/d".
func (f field) list(text string) (set uint64, star bool, err error) {
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		one, isStar, err := f.span(part)
		if err != nil {
			return 0, false, err
		}
		set |= one
		star = star || isStar
	}
	return set, star, nil
}

// span parses one number, range or star, with or without a step.
func (f field) span(text string) (set uint64, star bool, err error) {
	parts := strings.Split(text, "/")
	limits := strings.Split(parts[0], "-")
	var low, high uint
	step := uint(1)
	switch {
	case limits[0] == "*" || limits[0] == "?":
		low = f.min
		high = f.max
		star = true
	case len(limits) > 2:
		return 0, false, fmt.Errorf("too many hyphens: %s", text)
	default:
		if low, err = f.number(limits[0]); err != nil {
			return 0, false, err
		}
		if high = low; len(limits) == 2 {
			if high, err = f.number(limits[1]); err != nil {
				return 0, false, err
			}
		}
	}
	switch len(parts) {
	case 1:
	case 2:
		if step, err = number(parts[1]); err != nil {
			return 0, false, err
		}
		if len(limits) == 1 && !star {
			high = f.max // "3/15" is "3-59/15"
		}
		star = star && step <= 1
	default:
		return 0, false, fmt.Errorf("too many slashes: %s", text)
	}
	switch {
	case low < f.min:
		return 0, false, fmt.Errorf("beginning of range (%d) below minimum (%d): %s", low, f.min, text)
	case high > f.max:
		return 0, false, fmt.Errorf("end of range (%d) above maximum (%d): %s", high, f.max, text)
	case low > high:
		return 0, false, fmt.Errorf("beginning of range (%d) beyond end of range (%d): %s", low, high, text)
	case step == 0:
		return 0, false, fmt.Errorf("step of range should be a positive number: %s", text)
	}
	for n := low; n <= high; n += step {
		set |= 1 << n
	}
	return set, star, nil
}

func (f field) number(text string) (uint, error) {
	if n, ok := f.names[strings.ToLower(text)]; ok {
		return n, nil
	}
	return number(text)
}

func number(text string) (uint, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("failed to parse int from %s: %w", text, err)
	}
	if n < 0 {
		return 0, fmt.Errorf("negative number (%d) not allowed: %s", n, text)
	}
	return uint(n), nil
}

// In returns the schedule in that time zone, unless its text names one.
func (s *Schedule) In(zone *time.Location) *Schedule {
	if s.zone != nil {
		return s
	}
	c := *s
	c.zone = zone
	return &c
}

// horizon is the number of years in which a schedule must have a time. 2100 has no 29th of February, so two of them may
// be eight years apart.
const horizon = 8

// Next returns the first time of the schedule after t, in t's zone; zero if there is none ("0 0 30 2 *").
func (s *Schedule) Next(t time.Time) time.Time {
	if s.every > 0 {
		return t.Add(s.every - time.Duration(t.Nanosecond()))
	}
	zone := s.zone
	if zone == nil {
		zone = t.Location()
	}
	at := t.In(zone).Truncate(time.Second)
	at = at.Add(time.Minute - time.Duration(at.Second())*time.Second)
	for limit := at.Year() + horizon; at.Year() <= limit; {
		switch {
		case !has(s.month, int(at.Month())):
			at = time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, zone)
		case !s.day(at):
			next := time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, zone)
			if !next.After(at) { // midnight does not exist on that day
				next = at.Add(time.Hour)
			}
			at = next
		case !has(s.hour, at.Hour()):
			at = at.Add(time.Hour - time.Duration(at.Minute())*time.Minute)
		case !has(s.minute, at.Minute()):
			at = at.Add(time.Minute * time.Duration(s.untilMinute(at.Minute())))
		default:
			return at.In(t.Location())
		}
	}
	return time.Time{}
}

func has(set uint64, n int) bool { return set&(1<<uint(n)) != 0 }

// untilMinute returns the minutes to the next minute in the list, at most to the end of the hour.
func (s *Schedule) untilMinute(now int) int {
	if later := s.minute >> uint(now); later != 0 {
		return bits.TrailingZeros64(later)
	}
	return 60 - now
}

// day reports whether the day matches. If both day fields are restricted, one match is enough.
func (s *Schedule) day(t time.Time) bool {
	dom := has(s.dom, t.Day())
	dow := has(s.dow, int(t.Weekday()))
	if s.anyDOM || s.anyDOW {
		return dom && dow
	}
	return dom || dow
}
