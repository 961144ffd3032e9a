// SPDX-License-Identifier: Apache-2.0

// Package memory tunes Go's garbage collector for a server that is idle most of
// the time: under load the heap may grow more, so that collections cost less CPU;
// after load it returns memory to the system, including resident pages of the
// program's code. It is driven by collections, by reading a counter every few
// seconds, and by caches that report what they release (Dropped). cluster starts
// it for the whole process.
package memory

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// GOGC when idle and under load.
	quietPercent, busyPercent = 100, 400
	// A shorter interval of two collections means load.
	busyGap = 500 * time.Millisecond
	// A load has ended when less than busyBytes were allocated between two looks. They are close together while there
	// is memory to return, and rare when the process is quiet.
	busyLook, quietLook = 2 * time.Second, 5 * time.Second
	busyBytes           = 4 << 20
	// Memory is returned again only after settleBytes, and a settleShare-th of the live heap, were allocated: it costs
	// a collection.
	settleBytes = 16 << 20
	settleShare = 4
	// crowdLeft is the number of ended goroutines after which memory is returned although little was allocated.
	crowdLeft = 500
	// textBytes is the amount of allocation after which resident code pages are released: much of the code was probably
	// used.
	textBytes = 128 << 20
	// busyRoom limits the growth of the heap under load, in bytes: a large heap must not become five times as large.
	// More room saves little processor time (docs/decisions/0227).
	busyRoom = 64 << 20
	// startRoom is the same limit during the start: data that is read from disk then stays in memory, so collections
	// would find no garbage.
	startRoom = 1 << 30
)

// Pace starts the tuning; stop ends it and restores the previous settings. usable is the memory that the process may
// use, in bytes; 0: not known. Collections keep the process below half of it while that is possible, because garbage,
// files that are read and other processes of the node need the rest. A limit that the environment sets (GOMEMLIMIT)
// stays.
func Pace(usable int64) (stop func()) {
	p := &pacer{percent: busyPercent, room: startRoom, last: time.Now()} // starting is a busy time
	before := debug.SetGCPercent(busyPercent)
	limit := debug.SetMemoryLimit(-1) // reads it
	if limit == math.MaxInt64 && usable > 0 {
		debug.SetMemoryLimit(usable / 2)
	}
	p.mu.Lock()
	p.timer = time.AfterFunc(busyLook, p.look)
	p.mu.Unlock()
	p.listen()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		p.timer.Stop()
		debug.SetGCPercent(before)
		debug.SetMemoryLimit(limit)
	}
}

type pacer struct {
	mu      sync.Mutex
	percent int
	room    uint64    // busyRoom or startRoom
	last    time.Time // of the last collection
	timer   *time.Timer
	stopped bool
	// Bytes allocated since the start of the process, at the last look, and when memory was last returned.
	looked, settled uint64
	crowd           int // maximum number of goroutines since then
}

// dropped is the sum of Dropped since memory was last returned.
var dropped atomic.Int64

// Dropped reports that the caller has released about so many bytes. Without it nothing triggers a collection if they
// are released while the process is idle, as when a history expires.
func Dropped(bytes int) { dropped.Add(int64(bytes)) }

// listen calls collected after the next collection, which runs the finalizer of the sentinel.
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
	if gap < busyGap || p.percent > quietPercent { // a larger heap gets a lower percentage
		p.setLocked(percentFor(read(live), p.room))
	}
	p.listen()
}

// look returns memory if load has ended since the last look, and schedules the next look.
func (p *pacer) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.room = busyRoom // the start is over
	now := read(allocated)
	running := runtime.NumGoroutine()
	p.crowd = max(p.crowd, running)
	if p.over(now, read(live), running) {
		p.settleLocked(now)
		p.crowd = running
	}
	p.looked = now
	p.timer.Reset(p.pause())
}

// pause is the time to the next look.
func (p *pacer) pause() time.Duration {
	if p.percent > quietPercent {
		return busyLook
	}
	return quietLook
}

// over reports whether load has ended and enough was allocated since memory was last returned.
func (p *pacer) over(now, live uint64, running int) bool {
	done := p.settled == 0 || now-p.settled > max(settleBytes, live/settleShare) || p.crowd-running > crowdLeft ||
		dropped.Load() > settleBytes
	return done && now-p.looked < busyBytes
}

// percentFor returns GOGC for a heap of that size under load.
func percentFor(bytes, room uint64) int {
	return int(min(max(room*100/max(bytes, 1), quietPercent), busyPercent)) // between the two
}

// Runtime metrics, in bytes.
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

// settleLocked returns memory after load.
func (p *pacer) settleLocked(now uint64) {
	p.setLocked(quietPercent)
	p.last = time.Time{} // the collection that follows is not load
	dropped.Store(0)
	debug.FreeOSMemory()
	if now-p.settled > textBytes || p.settled == 0 {
		_ = releaseText() // an error leaves the pages resident
	}
	p.settled = now
}

func (p *pacer) setLocked(percent int) {
	if p.percent != percent {
		p.percent = percent
		debug.SetGCPercent(percent)
	}
}
