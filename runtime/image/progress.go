// SPDX-License-Identifier: Apache-2.0

package image

import (
	"sync"
	"sync/atomic"
	"time"
)

// Progress is called with the transferred and total bytes of a pull. Calls are serialized; besides the first and the
// last there are at most ten per second. It must not block.
type Progress = func(done, total int64)

const progressEvery = 100 * time.Millisecond

// meter counts the bytes of a pull's downloads and calls the Progress callbacks of all callers of the pull.
type meter struct {
	done, total atomic.Int64
	last        atomic.Int64 // unix nanoseconds of the last report

	mu        sync.Mutex // guards callbacks and serializes their calls
	callbacks []Progress
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

// set takes over the bytes that a helper process has counted.
func (m *meter) set(done, total int64) {
	m.done.Store(done)
	m.total.Store(total)
	m.report()
}

func (m *meter) report() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, progress := range m.callbacks {
		progress(m.done.Load(), m.total.Load())
	}
}

func (m *meter) addCallback(progress Progress) {
	if progress == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.callbacks = append(m.callbacks, progress)
}
