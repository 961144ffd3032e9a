// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// LogConfig configures the audit log file and its rotation.
type LogConfig struct {
	// Path of the file; "-" is standard output.
	Path string
	// MaxSize is in bytes; MaxAge and MaxBackups limit the old files; 0: no limit.
	MaxSize    int64
	MaxAge     time.Duration
	MaxBackups int
}

// Log writes one event per line to a file. The event is written when Write returns.
type Log struct {
	cfg LogConfig
	now func() time.Time

	mu     sync.Mutex
	out    io.Writer
	file   *os.File // nil for standard output
	size   int64
	failed error // the first error; Run returns it
}

// OpenLog opens or creates the file.
func OpenLog(cfg LogConfig) (*Log, error) {
	l := &Log{cfg: cfg, now: time.Now}
	if cfg.Path == "-" {
		l.out = os.Stdout
		return l, nil
	}
	return l, l.open()
}

func (l *Log) open() error {
	if err := os.MkdirAll(filepath.Dir(l.cfg.Path), 0o700); err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	f, err := os.OpenFile(l.cfg.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open audit log: %w", err), f.Close())
	}
	l.file = f
	l.out = f
	l.size = info.Size()
	return nil
}

// Write appends e.
func (l *Log) Write(e *Event) {
	line, err := json.Marshal(e)
	if err != nil {
		return // cannot happen: its parts are encoded JSON
	}
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil && l.cfg.MaxSize > 0 && l.size > 0 && l.size+int64(len(line)) > l.cfg.MaxSize {
		if err := l.rotateLocked(); err != nil && l.failed == nil {
			l.failed = err
		}
	}
	n, err := l.out.Write(line)
	l.size += int64(n)
	if err != nil && l.failed == nil {
		l.failed = fmt.Errorf("write audit log: %w", err)
	}
}

// timestampFormat is the time in the name of an old file: audit-2030-01-02T03-04-05.678.log.
const timestampFormat = "2006-01-02T15-04-05.000"

// rotateLocked renames the file and creates a new one.
func (l *Log) rotateLocked() error {
	err := l.file.Close()
	ext := filepath.Ext(l.cfg.Path)
	old := strings.TrimSuffix(l.cfg.Path, ext) + "-" + l.now().UTC().Format(timestampFormat) + ext
	if err := errors.Join(err, os.Rename(l.cfg.Path, old)); err != nil {
		return errors.Join(fmt.Errorf("rotate audit log: %w", err), l.open())
	}
	l.prune()
	return l.open()
}

// prune deletes old files beyond the limits; a failed deletion is retried at the next rotation.
func (l *Log) prune() {
	ext := filepath.Ext(l.cfg.Path)
	base := strings.TrimSuffix(l.cfg.Path, ext) + "-"
	old, err := filepath.Glob(base + "*" + ext)
	if err != nil {
		return
	}
	slices.Sort(old)
	slices.Reverse(old) // the newest first
	kept := 0
	for _, path := range old {
		at, err := time.Parse(timestampFormat, strings.TrimSuffix(strings.TrimPrefix(path, base), ext))
		if err != nil {
			continue // not an old audit log
		}
		if l.cfg.MaxBackups > 0 && kept >= l.cfg.MaxBackups || l.cfg.MaxAge > 0 && l.now().Sub(at) > l.cfg.MaxAge {
			_ = os.Remove(path)
			continue
		}
		kept++
	}
}

// Run closes the file when ctx ends, and returns the first write error.
func (l *Log) Run(ctx context.Context) error {
	<-ctx.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.failed
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
		l.file = nil
		l.out = io.Discard
	}
	return err
}
