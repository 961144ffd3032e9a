// SPDX-License-Identifier: Apache-2.0

package log

import (
	"context"
	"log/slog"
	"time"
)

// kind is what lines of a batch have in common.
type kind struct{ said, message string }

// bucket bounds the lines of a kind.
type bucket struct {
	tokens float64
	filled time.Time
	// last is the newest line that was left out, with others.
	last   slog.Record
	to     slog.Handler
	others int
	since  time.Time
	timer  *time.Timer // runs while a line is left out
}

// hold tells whether r is one too many of its kind, and keeps it to be told with the others.
func (s *foldState) hold(k kind, r slog.Record, to slog.Handler) bool {
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
	b.last, b.to = r.Clone(), to
	if !b.since.IsZero() {
		b.others++
		return true
	}
	b.since = r.Time
	if b.timer != nil {
		b.timer.Reset(kindPause)
		return true
	}
	b.timer = time.AfterFunc(kindPause, func() {
		s.mu.Lock()
		out := b.summaryLocked()
		s.mu.Unlock()
		for _, o := range out {
			_ = o.to.Handle(context.Background(), o.record) // the log itself is where errors go
		}
	})
	return true
}

// summaryLocked is the line that stands for those that were left out, if there are any.
func (b *bucket) summaryLocked() []folded {
	if b.since.IsZero() {
		return nil
	}
	if b.others > 0 {
		b.last.AddAttrs(slog.Int("more", b.others), slog.Time("since", b.since))
	}
	out := []folded{{record: b.last, to: b.to}}
	b.last, b.others, b.since = slog.Record{}, 0, time.Time{}
	return out
}
