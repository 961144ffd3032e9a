// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"strconv"
	"strings"
)

// interval is a range of indexes, both ends included.
type interval struct{ low, high int32 }

// indexes are what "1,3-5,7" says, in rising order.
type indexes []interval

func (x indexes) count() int32 {
	var n int32
	for _, i := range x {
		n += i.high - i.low + 1
	}
	return n
}

// overlap is an index that both lists hold.
func (x indexes) overlap(y indexes) (int32, bool) {
	for i, j := 0, 0; i < len(x) && j < len(y); {
		a, b := x[i], y[j]
		if a.low <= b.high && b.low <= a.high {
			return max(a.low, b.low), true
		}
		if a.low <= b.low {
			i++
		} else {
			j++
		}
	}
	return 0, false
}

// parseIndexes reads a list of indexes below completions.
func parseIndexes(text string, completions int32) (indexes, error) {
	if text == "" {
		return nil, nil
	}
	var out indexes
	for part := range strings.SplitSeq(text, ",") {
		i, err := parseInterval(part, completions)
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && out[n-1].high >= i.low {
			return nil, fmt.Errorf("non-increasing order, previous: %d, current: %d", out[n-1].high, i.low)
		}
		out = append(out, i)
	}
	return out, nil
}

func parseInterval(text string, completions int32) (interval, error) {
	limits := strings.Split(text, "-")
	if len(limits) > 2 {
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	var n [2]int32
	for i, s := range limits {
		v, err := strconv.Atoi(s)
		if err != nil {
			return interval{}, fmt.Errorf("cannot convert string to integer for index: %q", s)
		}
		if v >= int(completions) {
			return interval{}, fmt.Errorf("too large index: %q", s)
		}
		n[i] = int32(v)
	}
	if len(limits) == 1 {
		return interval{n[0], n[0]}, nil
	}
	if n[0] >= n[1] {
		return interval{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", n[0], n[1])
	}
	return interval{n[0], n[1]}, nil
}
