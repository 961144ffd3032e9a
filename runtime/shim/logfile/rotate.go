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

// rotate goes over to a new, empty file. When that is not possible the present one begins anew: what it held is lost, and the error
// says so, but a log never outgrows its bound.
func (w *Writer) rotate(now time.Time) error {
	err := w.moveAside(now)
	if err == nil {
		return nil
	}
	w.size = 0
	return fmt.Errorf("rotate container log %s, which begins anew: %w", w.path, errors.Join(err, w.f.Truncate(0)))
}

func (w *Writer) moveAside(now time.Time) error {
	w.packer.mu.Lock()
	defer w.packer.mu.Unlock()
	older, err := logrotate.Prune(w.path, w.policy.MaxFiles-2)
	if err != nil {
		return err
	}
	aside, err := logrotate.MoveAside(w.path, older, now)
	if errors.Is(err, os.ErrNotExist) {
		return w.Reopen() // someone else moved it
	}
	if err != nil {
		return err
	}
	if err := w.Reopen(); err != nil {
		return errors.Join(err, os.Rename(aside.Name, w.path))
	}
	w.packer.start(older, now)
	return nil
}

// packPause is how rarely one log's files are compressed. A container that fills its log faster pays no processor time for files that
// are removed in a moment anyway.
const packPause = 10 * time.Second

// packing lets one log after the other be compressed: the supervisor's work for all of them takes one processor at most.
var packing = make(chan struct{}, 1)

// packer compresses the files of one log beside its writer.
type packer struct {
	mu     sync.Mutex // held while the log's files are renamed or removed
	last   time.Time
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// start compresses files, unless that was done lately or is still being done.
func (p *packer) start(files []logrotate.File, now time.Time) {
	if len(files) == 0 || !p.last.IsZero() && now.Sub(p.last) < packPause && now.After(p.last) {
		return
	}
	if p.cancel != nil {
		p.cancel()
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.last, p.cancel = now, cancel
	p.wg.Go(func() {
		defer cancel()
		select {
		case packing <- struct{}{}:
		case <-ctx.Done():
			return
		}
		defer func() { <-packing }()
		for _, f := range files {
			if err := logrotate.Compress(ctx, f, &p.mu); err != nil {
				return // the file stays as it is; the next rotation tries again
			}
		}
	})
}

// stop waits until nothing is compressed any more.
func (p *packer) stop() {
	if p.cancel != nil {
		p.cancel()
	}
	p.wg.Wait()
}
