// SPDX-License-Identifier: Apache-2.0

package image

import (
	"sync"
	"sync/atomic"
	"time"
)

// Progress is told how many of a pull's bytes have come. It is called by one goroutine at a time, at most ten times a
// second besides the first and the last call, and must not block.
type Progress = func(done, total int64)

const progressEvery = 100 * time.Millisecond

// meter adds up what a pull's downloads read and tells everyone who waits for the pull.
type meter struct {
	done, total atomic.Int64
	last        atomic.Int64 // unix nanoseconds of the last report

	mu    sync.Mutex // guards tell and keeps reports apart
	tells []Progress
}

func (m *meter) add(n int64) {
	m.done.Add(n)
	now := time.Now().UnixNano()
	last := m.last.Load()
	if now-last < int64(progressEvery) || !m.last.CompareAndSwap(last, now) {
		return
	}
	m.report()
}

func (m *meter) report() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, tell := range m.tells {
		tell(m.done.Load(), m.total.Load())
	}
}

func (m *meter) join(tell Progress) {
	if tell == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tells = append(m.tells, tell)
}
