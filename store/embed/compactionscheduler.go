// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// compactionScheduler lets Pebble run as many compactions of its files as Pebble's options allow. Pebble's own
// scheduler wakes up ten times a second, which an idle store must not; this one wakes up only when a compaction ends or
// the allowance changes.
type compactionScheduler struct {
	mu       sync.Mutex
	db       pebble.DBForCompaction
	running  int
	refused  bool // a compaction was refused since the last look for waiting ones
	closed   bool
	granting sync.WaitGroup
}

// Register is called once, when the engine opens.
func (s *compactionScheduler) Register(_ int, db pebble.DBForCompaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.db = db
}

// Unregister waits for calls into the engine to end.
func (s *compactionScheduler) Unregister() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.granting.Wait()
}

// TrySchedule grants one compaction when the engine's limit allows.
func (s *compactionScheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.takeLocked() {
		s.refused = true
		return false, nil
	}
	return true, s
}

// UpdateGetAllowedWithoutPermission is called with the engine's locks held, so the grant happens on a goroutine of its
// own.
func (s *compactionScheduler) UpdateGetAllowedWithoutPermission() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running >= s.db.GetAllowedWithoutPermission() {
		return
	}
	s.granting.Go(s.grant)
}

// Done returns a grant; the next compaction may start.
func (s *compactionScheduler) Done() {
	s.mu.Lock()
	s.running--
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.granting.Add(1)
	s.mu.Unlock()
	defer s.granting.Done()
	s.grant()
}

// grant starts waiting compactions while the limit allows. A compaction refused because of the place that grant itself
// held for a moment would otherwise wait for the next one to end: hence refused.
func (s *compactionScheduler) grant() {
	for again := true; again; {
		s.mu.Lock()
		ok := s.takeLocked()
		s.refused = s.refused && !ok
		s.mu.Unlock()
		if !ok {
			return
		}
		waiting, _ := s.db.GetWaitingCompaction()
		if waiting && s.db.Schedule(s) {
			continue
		}
		s.mu.Lock()
		s.running--
		again = s.refused
		s.mu.Unlock()
	}
}

func (s *compactionScheduler) takeLocked() bool {
	if s.closed || s.running >= s.db.GetAllowedWithoutPermission() {
		return false
	}
	s.running++
	return true
}

// Started is part of the grant handle; nothing is measured.
func (s *compactionScheduler) Started() {}

// MeasureCPU is part of the grant handle; nothing is measured.
func (s *compactionScheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats is part of the grant handle; nothing is paced.
func (s *compactionScheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
