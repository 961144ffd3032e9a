// SPDX-License-Identifier: Apache-2.0

package log

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Limits of a Folder.
const (
	window  = time.Minute // time in which equal lines are written once
	tracked = 512         // maximum of different lines in the window
	burst   = 1000        // burst of lines
	rate    = 100         // lines per second
	// Limits for lines at info level with the same message and logger, whatever the attributes.
	kindBurst = 50
	kindRate  = 10
	kindPause = time.Second // after which a summary of suppressed lines is written
)

// Folder is a slog.Handler that limits the lines to another one. Equal lines are written once a minute, with a count
// (repeated=N). Lines beyond the rate are dropped, and their number is logged later. Of many lines at info level that
// differ in their attributes only, as when ten thousand pods start, it writes the first ones, and then one per second
// with the number of the others (more=N). At debug level lines of a kind are not limited.
type Folder struct {
	next  slog.Handler
	said  string // attributes and groups of WithAttrs and WithGroup
	state *foldState
}

type foldState struct {
	mu      sync.Mutex
	lines   map[string]*folded
	kinds   map[kind]*bucket
	tokens  float64
	filled  time.Time
	dropped int
}

// folded is a line that was written, with the count of its repetitions.
type folded struct {
	record slog.Record
	to     slog.Handler
	until  time.Time
	again  int
}

// Fold returns a Folder for next.
func Fold(next slog.Handler) *Folder {
	return &Folder{
		next: next,
		state: &foldState{
			lines:  map[string]*folded{},
			kinds:  map[kind]*bucket{},
			tokens: burst,
			filled: time.Now(),
		},
	}
}

// Enabled implements slog.Handler.
func (f *Folder) Enabled(ctx context.Context, l slog.Level) bool { return f.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (f *Folder) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Folder{next: f.next.WithAttrs(attrs), said: f.said + fmt.Sprint(attrs), state: f.state}
}

// WithGroup implements slog.Handler.
func (f *Folder) WithGroup(name string) slog.Handler {
	return &Folder{next: f.next.WithGroup(name), said: f.said + name + ".", state: f.state}
}

// Handle writes record, or counts it.
func (f *Folder) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelInfo { // debug lines are not limited
		return f.next.Handle(ctx, record)
	}
	if record.Level < slog.LevelWarn && !f.next.Enabled(ctx, slog.LevelDebug) &&
		f.state.hold(kind{f.said, record.Message}, record,
			f.next) {
		return nil
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%d %s %s", record.Level, f.said, record.Message)
	record.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&key, " %s=%v", a.Key, a.Value)
		return true
	})
	for _, out := range f.state.pass(key.String(), record, f.next) {
		if err := out.to.Handle(ctx, out.record); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes the counted repetitions and summaries.
func (f *Folder) Flush() {
	s := f.state
	s.mu.Lock()
	out := s.expireLocked(time.Now().Add(window))
	for _, b := range s.kinds {
		out = append(out, b.summaryLocked()...)
	}
	s.mu.Unlock()
	for _, o := range out {
		_ = o.to.Handle(context.Background(), o.record) // the log itself is where errors go
	}
}

// pass returns the lines to write now: repetitions whose window is over, and record.
func (s *foldState) pass(key string, record slog.Record, to slog.Handler) []folded {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if have := s.lines[key]; have != nil && now.Before(have.until) {
		have.again++
		have.record.Time = record.Time
		return nil
	}
	out := s.expireLocked(now)
	s.tokens = min(burst, s.tokens+now.Sub(s.filled).Seconds()*rate)
	s.filled = now
	if s.tokens < 1 {
		s.dropped++
		return out
	}
	s.tokens--
	if s.dropped > 0 && s.tokens >= 1 {
		warn := slog.NewRecord(now, slog.LevelWarn, "log lines left out: there were too many at once", 0)
		warn.AddAttrs(slog.Int("lines", s.dropped))
		out = append(out, folded{record: warn, to: to})
		s.dropped = 0
	}
	line := folded{record: record.Clone(), to: to, until: now.Add(window)}
	if len(s.lines) < tracked {
		s.lines[key] = &line
	}
	return append(out, line)
}

// expireLocked removes lines whose window is over, and returns those that were repeated.
func (s *foldState) expireLocked(now time.Time) []folded {
	var out []folded
	for key, l := range s.lines {
		if now.Before(l.until) {
			continue
		}
		delete(s.lines, key)
		if l.again > 0 {
			l.record.AddAttrs(slog.Int("repeated", l.again))
			out = append(out, *l)
		}
	}
	return out
}

// Demote returns a handler that lowers the level of each record by one, for libraries: they retry after their errors,
// and their information is a detail of the program.
func Demote(next slog.Handler) slog.Handler { return demoted{next} }

type demoted struct{ next slog.Handler }

func lower(l slog.Level) slog.Level { return l - (slog.LevelError - slog.LevelWarn) }

func (d demoted) Enabled(ctx context.Context, l slog.Level) bool {
	return d.next.Enabled(ctx, lower(l))
}

func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lower(r.Level)
	return d.next.Handle(ctx, r)
}

func (d demoted) WithAttrs(a []slog.Attr) slog.Handler { return demoted{d.next.WithAttrs(a)} }

func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.next.WithGroup(name)} }
