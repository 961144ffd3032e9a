// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"keelson/lib/logrotate"
)

// rotate starts a new, empty file. If it cannot, it truncates the present one and returns an error: the content is
// lost, but the log stays within its limit.
func (w *Writer) rotate(now time.Time) error {
	err := w.moveAside(now)
	if err == nil {
		return nil
	}
	w.size = 0
	return fmt.Errorf("rotate container log %s, which is truncated instead: %w", w.path,
		errors.Join(err, w.f.Truncate(0)))
}

func (w *Writer) moveAside(now time.Time) error {
	w.compressor.mu.Lock()
	defer w.compressor.mu.Unlock()
	older, err := logrotate.Prune(w.path, w.policy.MaxFiles-2)
	if err != nil {
		return err
	}
	aside, err := logrotate.MoveAside(w.path, older, now)
	if errors.Is(err, os.ErrNotExist) {
		return w.Reopen() // another process moved it
	}
	if err != nil {
		return err
	}
	if err := w.Reopen(); err != nil {
		return errors.Join(err, os.Rename(aside.Name, w.path))
	}
	w.compressor.start(older, now)
	return nil
}

// compressInterval is the minimum interval of compressions of one log. A container that fills its log faster must not
// cost CPU time for files that the next rotations delete.
const compressInterval = 10 * time.Second

// compressing is a semaphore: one log is compressed at a time, so that the supervisor uses one CPU for it at most.
var compressing = make(chan struct{}, 1)

// compressor compresses the rotated files of one log in the background.
type compressor struct {
	mu     sync.Mutex // held while the log's files are renamed or removed
	last   time.Time
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// start compresses files, unless a compression runs or ran less than compressInterval ago.
func (p *compressor) start(files []logrotate.File, now time.Time) {
	if len(files) == 0 || !p.last.IsZero() && now.Sub(p.last) < compressInterval && now.After(p.last) {
		return
	}
	if p.cancel != nil {
		p.cancel()
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.last = now
	p.cancel = cancel
	p.wg.Go(func() {
		defer cancel()
		select {
		case compressing <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-compressing }()
		for _, f := range files {
			if err := logrotate.Compress(ctx, f, &p.mu); err != nil {
				return // the file stays as it is; the next rotation tries again
			}
		}
	})
}

// stop cancels a compression and waits for its end.
func (p *compressor) stop() {
	if p.cancel != nil {
		p.cancel()
	}
	p.wg.Wait()
}
