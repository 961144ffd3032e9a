// SPDX-License-Identifier: Apache-2.0

package log

import (
	"context"
	"log/slog"
	"time"
)

// kind is the key by which similar lines are grouped: logger attributes and message.
type kind struct{ said, message string }

// bucket is the token bucket of a kind.
type bucket struct {
	tokens float64
	filled time.Time
	// last is the newest suppressed line, others the number of them.
	last   slog.Record
	to     slog.Handler
	others int
	since  time.Time
	timer  *time.Timer // runs while lines are suppressed
}

// hold reports whether record exceeds the rate of its kind, and counts it for the summary.
func (s *foldState) hold(k kind, record slog.Record, to slog.Handler) bool {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.kinds[k]
	if b == nil {
		if len(s.kinds) >= tracked {
			return false
		}
		b = &bucket{tokens: kindBurst, filled: now}
		s.kinds[k] = b
	}
	b.tokens = min(kindBurst, b.tokens+now.Sub(b.filled).Seconds()*kindRate)
	b.filled = now
	if b.tokens >= 1 && b.since.IsZero() {
		b.tokens--
		return false
	}
	b.last = record.Clone()
	b.to = to
	if !b.since.IsZero() {
		b.others++
		return true
	}
	b.since = record.Time
	if b.timer != nil {
		b.timer.Reset(kindPause)
		return true
	}
	b.timer = time.AfterFunc(kindPause, func() {
		s.mu.Lock()
		out := b.summaryLocked()
		s.mu.Unlock()
		for _, o := range out {
			_ = o.to.Handle(context.Background(), o.record) // there is no other log for errors
		}
	})
	return true
}

// summaryLocked returns the summary of the suppressed lines, if there are any.
func (b *bucket) summaryLocked() []folded {
	if b.since.IsZero() {
		return nil
	}
	if b.others > 0 {
		b.last.AddAttrs(slog.Int("more", b.others), slog.Time("since", b.since))
	}
	out := []folded{{record: b.last, to: b.to}}
	b.last = slog.Record{}
	b.others = 0
	b.since = time.Time{}
	return out
}
