// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
)

// interval is a range of indexes, both ends included.
type interval struct{ low, high int32 }

// Indexes are what "1,3-5,7" says, in rising order. They are never modified.
type Indexes []interval

// Count is how many indexes x holds.
func (x Indexes) Count() int32 {
	var n int32
	for _, i := range x {
		n += i.high - i.low + 1
	}
	return n
}

// Has reports whether x holds the index.
func (x Indexes) Has(index int32) bool {
	_, found := slices.BinarySearchFunc(x, index, func(i interval, n int32) int {
		switch {
		case i.high < n:
			return -1
		case i.low > n:
			return 1
		}
		return 0
	})
	return found
}

// With is x and more, which is in rising order.
func (x Indexes) With(more []int32) Indexes {
	y := make(Indexes, len(more))
	for i, n := range more {
		y[i] = interval{n, n}
	}
	return x.Union(y)
}

// Union is what x or y hold.
func (x Indexes) Union(y Indexes) Indexes {
	out := make(Indexes, 0, len(x)+len(y))
	for len(x)+len(y) > 0 {
		if len(x) == 0 || len(y) > 0 && y[0].low < x[0].low {
			x, y = y, x
		}
		if n := len(out) - 1; n >= 0 && x[0].low <= out[n].high+1 {
			out[n].high = max(out[n].high, x[0].high)
		} else {
			out = append(out, x[0])
		}
		x = x[1:]
	}
	return out
}

// Gaps yields the indexes from 0 up to but not including end that x does not hold, in rising order.
func (x Indexes) Gaps(end int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		var next int32
		for _, i := range append(slices.Clip(x), interval{end, end}) {
			for ; next < min(i.low, end); next++ {
				if !yield(next) {
					return
				}
			}
			next = i.high + 1
		}
	}
}

// Common is how many indexes both x and y hold.
func (x Indexes) Common(y Indexes) int32 {
	var n int32
	for i, j := 0, 0; i < len(x) && j < len(y); {
		if both := min(x[i].high, y[j].high) - max(x[i].low, y[j].low) + 1; both > 0 {
			n += both
		}
		if x[i].high <= y[j].high {
			i++
		} else {
			j++
		}
	}
	return n
}

// String is x as a job's status has it: three and more in a row as the first and the last.
func (x Indexes) String() string {
	var b []byte
	for _, interval := range x {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(interval.low), 10)
		if interval.high == interval.low {
			continue
		}
		sep := byte('-')
		if interval.high == interval.low+1 {
			sep = ','
		}
		b = strconv.AppendInt(append(b, sep), int64(interval.high), 10)
	}
	return string(b)
}

// overlap is an index that both lists hold.
func (x Indexes) overlap(y Indexes) (int32, bool) {
	for i, j := 0, 0; i < len(x) && j < len(y); {
		a := x[i]
		b := y[j]
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

// ReadIndexes reads the indexes below completions that text lists. What it cannot read it leaves out: a job that has
// shrunk still lists indexes that it no longer has.
func ReadIndexes(text string, completions int32) Indexes {
	var out Indexes
	for part := range strings.SplitSeq(text, ",") {
		i, err := parseInterval(part, math.MaxInt32)
		if err != nil || i.low >= completions || len(out) > 0 && out[len(out)-1].high >= i.low {
			continue
		}
		i.high = min(i.high, completions-1)
		if n := len(out); n > 0 && out[n-1].high+1 == i.low {
			out[n-1].high = i.high
			continue
		}
		out = append(out, i)
	}
	return out
}

// parseIndexes reads a list of indexes below completions.
func parseIndexes(text string, completions int32) (Indexes, error) {
	if text == "" {
		return nil, nil
	}
	var out Indexes
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
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at "+
			"most two parts separated by '-'", text)
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
