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
	for end := time.Now().Add(30 * time.Second); !done(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
		runtime.Gosched()
	}
}

func TestPace(t *testing.T) {
	before := percent()
	stop := Pace()
	eventually(t, "collections in a row make the heap generous", func() bool {
		runtime.GC()
		return percent() == busyPercent
	})
	eventually(t, "the quiet after it makes it sparing again", func() bool {
		time.Sleep(10 * time.Millisecond)
		return percent() == quietPercent
	})
	stop()
	runtime.GC()
	if got := percent(); got != before {
		t.Errorf("after the end: got %d percent, want %d as before", got, before)
	}
}

func TestPercentFor(t *testing.T) {
	if got := percentFor(100 << 20); got != busyPercent {
		t.Errorf("small heap: got %d, want %d", got, busyPercent)
	}
	if got := percentFor(largeHeap + 1); got != quietPercent {
		t.Errorf("large heap: got %d, want %d", got, quietPercent)
	}
}
