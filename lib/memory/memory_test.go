// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// percent reads the process's setting.
func percent() int {
	p := debug.SetGCPercent(100)
	debug.SetGCPercent(p)
	return p
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within two minutes", what)
		}
		runtime.Gosched()
	}
}

func TestPace(t *testing.T) {
	before := percent()
	stop := Pace()
	eventually(t, "the quiet after the start makes the heap sparing", func() bool {
		time.Sleep(10 * time.Millisecond)
		return percent() == quietPercent
	})
	eventually(t, "collections in a row make it generous", func() bool {
		runtime.GC()
		return percent() == busyPercent
	})
	stop()
	runtime.GC()
	if got := percent(); got != before {
		t.Errorf("after the end: got %d percent, want %d as before", got, before)
	}
}

func TestPercentFor(t *testing.T) {
	for bytes, want := range map[uint64]int{0: busyPercent, 10 << 20: busyPercent, busyRoom / 2: 200, busyRoom: quietPercent, 4 << 30: quietPercent} {
		if got := percentFor(bytes, busyRoom); got != want {
			t.Errorf("%d bytes: got %d percent, want %d", bytes, got, want)
		}
	}
}

// TestRareCollections has collections too far apart to look like load: the memory is given back all the same when they end.
func TestRareCollections(t *testing.T) {
	p := &pacer{percent: quietPercent, last: time.Now().Add(-2 * busyGap), timer: time.NewTimer(time.Hour)}
	p.timer.Stop()
	p.collected()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if !p.timer.Stop() {
		t.Error("nothing will be given back")
	}
	if p.percent != quietPercent {
		t.Errorf("got %d percent, want %d: that is no load", p.percent, quietPercent)
	}
}
