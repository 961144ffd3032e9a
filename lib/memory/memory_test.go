// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"keelson/lib/waittest"
)

// waste is garbage.
var waste []byte

// percent reads the process's setting.
func percent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

func TestPace(t *testing.T) {
	before := percent()
	limit := debug.SetMemoryLimit(-1)
	stop := Pace(1 << 30)
	if got := debug.SetMemoryLimit(-1); got != 1<<29 {
		t.Errorf("memory limit of a process with 1 GiB: got %d, want half of it", got)
	}
	waittest.Until(t, "the quiet after the start makes the heap sparing", func() bool {
		return percent() == quietPercent
	})
	waittest.Until(t, "collections in a row make it generous", func() bool {
		runtime.GC()
		return percent() == busyPercent
	})
	stop()
	runtime.GC()
	if got := percent(); got != before {
		t.Errorf("after the end: got %d percent, want %d as before", got, before)
	}
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("after the end: got a memory limit of %d, want %d as before", got, limit)
	}
}

// TestLimitOfTheEnvironment: a limit that was set by others stays.
func TestLimitOfTheEnvironment(t *testing.T) {
	before := debug.SetMemoryLimit(8 << 30)
	defer debug.SetMemoryLimit(before)
	stop := Pace(1 << 30)
	defer stop()
	if got := debug.SetMemoryLimit(-1); got != 8<<30 {
		t.Errorf("got %d, want the limit that was set", got)
	}
}

func TestPercentFor(t *testing.T) {
	for bytes, want := range map[uint64]int{
		0:            busyPercent,
		10 << 20:     busyPercent,
		busyRoom / 2: 200,
		busyRoom:     quietPercent,
		4 << 30:      quietPercent,
	} {
		if got := percentFor(bytes, busyRoom); got != want {
			t.Errorf("%d bytes: got %d percent, want %d", bytes, got, want)
		}
	}
}

// TestRareCollections has collections too far apart to look like load.
func TestRareCollections(t *testing.T) {
	p := &pacer{percent: quietPercent, last: time.Now().Add(-2 * busyGap)}
	p.collected()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.percent != quietPercent {
		t.Errorf("got %d percent, want %d: that is no load", p.percent, quietPercent)
	}
}

// TestLargeBusyHeap: once collections are rare because the heap is large, it still may not become five times as large.
func TestLargeBusyHeap(t *testing.T) {
	p := &pacer{percent: busyPercent, room: 1, last: time.Now().Add(-2 * busyGap)}
	p.collected()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.percent != quietPercent {
		t.Errorf("got %d percent with no room left, want %d", p.percent, quietPercent)
	}
}

func TestOver(t *testing.T) {
	t.Cleanup(func() { dropped.Store(0) })
	const mb = 1 << 20
	for name, tc := range map[string]struct {
		looked, settled, now, live uint64
		left, dropped              int
		want                       bool
	}{
		"after the start":             {30 * mb, 0, 31 * mb, 5 * mb, 0, 0, true},
		"in the middle of the start":  {10 * mb, 0, 31 * mb, 5 * mb, 0, 0, false},
		"a load goes on":              {500 * mb, 100 * mb, 600 * mb, 50 * mb, 0, 0, false},
		"a load has ended":            {600 * mb, 100 * mb, 601 * mb, 50 * mb, 0, 0, true},
		"a collection in its middle":  {800 * mb, 790 * mb, 900 * mb, 50 * mb, 0, 0, false},
		"the little that idling does": {600 * mb, 590 * mb, 601 * mb, 50 * mb, 0, 0, false},
		"little, for a large heap":    {600 * mb, 500 * mb, 601 * mb, 900 * mb, 0, 0, false},
		"thousands of watchers left":  {600 * mb, 599 * mb, 601 * mb, 90 * mb, 3000, 0, true},
		"a history became old":        {600 * mb, 599 * mb, 601 * mb, 90 * mb, 0, 40 * mb, true},
		"a little of it":              {600 * mb, 599 * mb, 601 * mb, 90 * mb, 0, 4 * mb, false},
		"old in the middle of a load": {500 * mb, 499 * mb, 601 * mb, 90 * mb, 0, 40 * mb, false},
		"a few left":                  {600 * mb, 599 * mb, 601 * mb, 90 * mb, 30, 0, false},
	} {
		dropped.Store(int64(tc.dropped))
		p := &pacer{looked: tc.looked, settled: tc.settled, crowd: 40 + tc.left}
		if got := p.over(tc.now, tc.live, 40); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// TestLook gives back what a load has left, also where no collection ran since, and comes again.
func TestLook(t *testing.T) {
	p := &pacer{percent: busyPercent, room: startRoom, timer: time.NewTimer(time.Hour)}
	defer p.timer.Stop()
	p.looked = read(allocated)
	p.look()
	if p.percent != quietPercent || p.room != busyRoom || p.settled == 0 || p.settled != p.looked {
		t.Errorf("memory was not given back: %+v", p)
	}
	if !p.timer.Stop() {
		t.Error("there is no next look")
	}
	if p.pause() != quietLook {
		t.Errorf("the next look of a quiet process is in %v", p.pause())
	}
}

// TestLookUnderLoad looks again soon, so that memory is returned soon after the load.
func TestLookUnderLoad(t *testing.T) {
	p := &pacer{percent: busyPercent, room: busyRoom, timer: time.NewTimer(time.Hour), settled: 1}
	defer p.timer.Stop()
	for read(allocated) < busyBytes {
		waste = make([]byte, 1<<20)
	}
	p.look()
	if p.percent != busyPercent || p.pause() != busyLook {
		t.Errorf("under load: got %d percent and a look in %v", p.percent, p.pause())
	}
}
