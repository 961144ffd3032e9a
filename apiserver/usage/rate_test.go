// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"testing"
	"time"
)

// at is a point s seconds after some time, of something that began at start (0: no one says when).
func at(s, start, cpu, memory float64) *point {
	p := &point{
		at:     time.UnixMilli(int64(s * 1000)),
		cpu:    cpu,
		memory: memory,
		has:    hasCPU | hasMemory,
	}
	if start != 0 {
		p.start = time.UnixMilli(int64(start * 1000))
	}
	return p
}

func TestRate(t *testing.T) {
	half := *at(1010, 900, 1, 1)
	half.has = hasCPU
	for _, c := range []struct {
		what     string
		was, now *point
		want     string
	}{
		{"between two samples", at(1000, 900, 10, 5), at(1015, 900, 25, 1<<20), "1 1Mi 15s"},
		{"idle", at(1000, 900, 10, 5), at(1015, 900, 10, 1<<20), "0 1Mi 15s"},
		{"only one, of something old", nil, at(1015, 800, 10, 1<<20), "none"},
		{"only one, of something new", nil, at(1015, 1005, 5, 1<<20), "500m 1Mi 10s"},
		{"only one, of something that just began", nil, at(1015, 1014, 1, 1<<20), "none"},
		{"only one, and no start", nil, at(1015, 0, 10, 1<<20), "none"},
		{"restarted in between", at(1000, 900, 10, 5), at(1015, 1005, 5, 1<<20), "500m 1Mi 10s"},
		{"counted from zero again", at(1000, 0, 10, 5), at(1015, 0, 5, 1<<20), "none"},
		{"the same sample twice", at(1000, 800, 10, 5), at(1000, 800, 10, 5), "none"},
		{"no memory", at(1000, 900, 10, 5), at(1015, 900, 25, 0), "none"},
		{"half of it", at(1000, 900, 10, 5), &half, "none"},
	} {
		got := "none"
		if r := rate(c.was, c.now); r != nil {
			got = fmt.Sprint(r.usage.Cpu(), " ", r.usage.Memory(), " ", r.window)
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

// TestComputePods: a pod has figures when all of its containers have, and those of the earliest of them in time.
func TestComputePods(t *testing.T) {
	was := &sample{containers: map[container]*point{
		{"ns", "two", "b"}:  at(1000, 900, 1, 1),
		{"ns", "two", "a"}:  at(1001, 900, 1, 1),
		{"ns", "part", "a"}: at(1000, 900, 1, 1),
	}}
	now := &sample{containers: map[container]*point{
		{"ns", "two", "b"}:    at(1010, 900, 2, 1),
		{"ns", "two", "a"}:    at(1011, 900, 3, 1),
		{"ns", "part", "a"}:   at(1010, 900, 2, 1),
		{"ns", "part", "new"}: at(1010, 1009, 2, 1),
	}}
	got := compute(was, now)
	if len(got.pods) != 1 || got.node != nil {
		t.Fatalf("got %+v", got)
	}
	p := got.pods[podKey{"ns", "two"}]
	if p == nil || len(p.containers) != 2 || p.containers[0].Name != "a" ||
		p.containers[0].Usage.Cpu().String() != "200m" || !p.at.Equal(time.Unix(1010, 0)) {
		t.Errorf("got %+v", p)
	}
}
