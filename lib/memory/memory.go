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
	// settleGap is the least time between two settlings: each is a collection of its own.
	settleGap = 10 * time.Second
	// A collection so long after the last one is the runtime's own, in a process that does nothing.
	idleGap = time.Minute
	// busyRoom is how many bytes a busy heap may grow by, within those percentages: a large one must not become five times as large.
	busyRoom = 256 << 20
	// startRoom is the same for the start: what is read from the disk then stays, and to look for garbage in it again and again is in vain.
	startRoom = 1 << 30
)

// Pace begins; the result ends it and restores what was before.
func Pace() (stop func()) {
	p := &pacer{percent: busyPercent, room: startRoom, last: time.Now()} // starting is a busy time
	before := debug.SetGCPercent(busyPercent)
	p.timer = time.AfterFunc(settleAfter, p.settle)
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
	room    uint64    // bytes that the heap may grow by while it is busy, within the percentages
	last    time.Time // of a collection
	settled time.Time
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
		p.setLocked(percentFor(heap(), p.room))
	}
	if gap < idleGap { // also where collections are rare because the heap is large: it may shrink when the load ends
		p.timer.Reset(max(settleAfter, settleGap-now.Sub(p.settled)))
	}
	p.listen()
}

// percentFor is how much a busy heap of so many bytes may grow.
func percentFor(bytes, room uint64) int {
	return int(min(max(room*100/max(bytes, 1), quietPercent), busyPercent)) //nolint:gosec // between the two
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
	p.settled, p.room = time.Now(), busyRoom
	debug.FreeOSMemory()
	_ = releaseText() // a kernel that does not let us is no worse off than before
}

func (p *pacer) setLocked(percent int) {
	if p.percent != percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}
