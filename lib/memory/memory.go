// SPDX-License-Identifier: Apache-2.0

// Package memory paces Go's garbage collector for a server that is idle most of
// the time: under load it lets the heap grow so that collecting costs little,
// afterwards it gives the memory back, and the pages of the program's own code. It is driven by collections themselves,
// by a look at one counter every few seconds, and by caches that tell what they let go of (Dropped).
// cluster starts it; it is for the whole process.
package memory

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A heap may grow by this much, in percent of what lives, before it is collected.
	quietPercent, busyPercent = 100, 400
	// busyGap between two collections means load.
	busyGap = 500 * time.Millisecond
	// lookEvery is how often it is asked whether a busy time is over: what allocates more than busyBytes meanwhile is busy.
	lookEvery = 5 * time.Second
	busyBytes = 4 << 20
	// settleBytes, and settleShare of what lives, must have been allocated before memory is given back again: that is a collection.
	settleBytes = 16 << 20
	settleShare = 4
	// crowdLeft is how many goroutines must have ended, where little was allocated: what they held is much.
	crowdLeft = 500
	// textBytes is how much work brings in so much of the program's code that most of it is not needed after it.
	textBytes = 128 << 20
	// busyRoom is how many bytes a busy heap may grow by, within those percentages: a large one must not become five times as large.
	busyRoom = 256 << 20
	// startRoom is the same for the start: what is read from the disk then stays, and to look for garbage in it again and again is in vain.
	startRoom = 1 << 30
)

// Pace begins; the result ends it and restores what was before.
func Pace() (stop func()) {
	p := &pacer{percent: busyPercent, room: startRoom, last: time.Now()} // starting is a busy time
	before := debug.SetGCPercent(busyPercent)
	p.mu.Lock()
	p.timer = time.AfterFunc(lookEvery, p.look)
	p.mu.Unlock()
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
	timer   *time.Timer
	stopped bool
	// What had been allocated since the start of the process, in bytes, at the last look, and when memory was last given back.
	looked, settled uint64
	crowd           int // the most goroutines at any look since then
}

// dropped is what was told to Dropped since memory was last given back.
var dropped atomic.Int64

// Dropped tells that the caller has let go of about so many bytes, which nobody else needs: where it happens without work, as when a
// history has become old, nothing else would make anybody look for garbage.
func Dropped(bytes int) { dropped.Add(int64(bytes)) }

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
	if gap < busyGap || p.percent > quietPercent { // a busy heap that has become large may grow by less
		p.setLocked(percentFor(read(live), p.room))
	}
	p.listen()
}

// look gives memory back where a busy time has ended since the last look, and comes again.
func (p *pacer) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.room = busyRoom // the start is over
	now, running := read(allocated), runtime.NumGoroutine()
	p.crowd = max(p.crowd, running)
	if p.over(now, read(live), running) {
		p.settleLocked(now)
		p.crowd = running
	}
	p.looked = now
	p.timer.Reset(lookEvery)
}

// over tells whether enough was done since memory was last given back, and no more is being done.
func (p *pacer) over(now, live uint64, running int) bool {
	done := p.settled == 0 || now-p.settled > max(settleBytes, live/settleShare) || p.crowd-running > crowdLeft || dropped.Load() > settleBytes
	return done && now-p.looked < busyBytes
}

// percentFor is how much a busy heap of so many bytes may grow.
func percentFor(bytes, room uint64) int {
	return int(min(max(room*100/max(bytes, 1), quietPercent), busyPercent)) //nolint:gosec // between the two
}

// What the runtime counts, in bytes.
const (
	live      = "/gc/heap/live:bytes" // after the last collection
	allocated = "/gc/heap/allocs:bytes"
)

func read(counter string) uint64 {
	s := []metrics.Sample{{Name: counter}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}

// settleLocked ends a busy time.
func (p *pacer) settleLocked(now uint64) {
	p.setLocked(quietPercent)
	p.last = time.Time{} // the collection that follows is no sign of load
	dropped.Store(0)
	debug.FreeOSMemory()
	if now-p.settled > textBytes || p.settled == 0 {
		_ = releaseText() // a kernel that does not let us is no worse off than before
	}
	p.settled = now
}

func (p *pacer) setLocked(percent int) {
	if p.percent != percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}
