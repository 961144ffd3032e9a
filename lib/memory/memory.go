// SPDX-License-Identifier: Apache-2.0

// Package memory paces Go's garbage collector for a server that is idle most of
// the time: under load it lets the heap grow so that collecting costs little,
// afterwards it gives the memory back, and the pages of the program's own code. It is driven by collections themselves and
// by one timer that runs only after a busy time, so an idle process stays idle.
// cluster starts it; it is for the whole process.
package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// A heap may grow by this much, in percent of what lives, before it is collected.
	quietPercent, busyPercent = 100, 400
	// busyGap between two collections means load.
	busyGap = 500 * time.Millisecond
	// settleAfter this long without load memory is given back.
	settleAfter = 5 * time.Second
	// largeHeap is where memory is dearer than time.
	largeHeap = 512 << 20 // bytes
)

// Pace begins; the result ends it and restores what was before.
func Pace() (stop func()) {
	p := &pacer{percent: quietPercent, last: time.Now()}
	before := debug.SetGCPercent(quietPercent)
	p.timer = time.AfterFunc(settleAfter, p.settle) // starting is a busy time
	p.listen()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		p.timer.Stop()
		debug.SetGCPercent(before)
	}
}

type pacer struct {
	mu      sync.Mutex
	percent int
	last    time.Time // of a collection
	timer   *time.Timer
	stopped bool
}

// listen calls collected after the next collection, which finds the sentinel unused.
func (p *pacer) listen() {
	sentinel := new([64]byte) // large enough not to share its block with others
	runtime.AddCleanup(sentinel, func(p *pacer) { p.collected() }, p)
}

func (p *pacer) collected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	now := time.Now()
	gap := now.Sub(p.last)
	p.last = now
	if gap < busyGap {
		p.setLocked(percentFor(heap()))
		p.timer.Reset(settleAfter)
	}
	p.listen()
}

// percentFor is how much a busy heap of so many bytes may grow.
func percentFor(bytes uint64) int {
	if bytes > largeHeap {
		return quietPercent
	}
	return busyPercent
}

// heap is what lived after the last collection, in bytes.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

// settle ends a busy time.
func (p *pacer) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.setLocked(quietPercent)
	p.last = time.Time{} // the collection that follows is no sign of load
	debug.FreeOSMemory()
	_ = releaseText() // a kernel that does not let us is no worse off than before
}

func (p *pacer) setLocked(percent int) {
	if p.percent != percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}
