// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// lockDir takes the directory for this process alone.
func lockDir(o Options) (io.Closer, error) {
	if err := o.FS.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := o.FS.Lock(o.FS.PathJoin(o.Dir, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("another process has it open (%w)", err)
	}
	return lock, nil
}

// openEngine opens Pebble, tuned for a small resident size and for silence when idle. change may alter the options.
func openEngine(o Options, disk *retryFS, l *engineLog, change func(*pebble.Options)) (db *pebble.DB, err error) {
	opts := &pebble.Options{
		FS:                          disk,
		Logger:                      l,
		CacheSize:                   o.CacheBytes,
		Comparer:                    comparer(),
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                8 << 20, // grows from 256 KB as it is needed
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       24,
		LBaseMaxBytes:               32 << 20,
		MaxManifestFileSize:         4 << 20,
		MaxOpenFiles:                256,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				l.log.Error("store engine met an error in the background", "err", err)
			},
			DataCorruption: func(i pebble.DataCorruptionInfo) { // without a listener it would be fatal
				l.log.Error("store is damaged", "file", i.Path, "err", i.Details)
			},
		},
	}
	for i := range opts.Levels {
		opts.Levels[i].BlockSize = 16 << 10
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10) // bits a key
	}
	opts.Experimental.CompactionScheduler = &compactionScheduler{}
	// Old versions stay next to the newest: kept apart, a table holds 32 KB of memory for each 16 KB of them while it
	// is written.
	opts.Experimental.SpanPolicyFunc = func([]byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{DisableValueSeparationBySuffix: true}, nil, nil
	}
	change(opts)
	err = guarded(func() error {
		db, err = pebble.Open(o.Dir, opts)
		return err
	})
	return db, err
}

// engineLog is Pebble's logger: quiet, and keeping a fatal error from ending the whole program.
type engineLog struct {
	log    *slog.Logger
	failed func(error)
}

// Infof drops the engine's chatter.
func (l *engineLog) Infof(string, ...any) {}

// Errorf reports what the engine can live with.
func (l *engineLog) Errorf(format string, args ...any) {
	l.log.Error("store engine met an error", "err", fmt.Sprintf(format, args...))
}

// Fatalf must not return, and the engine's locks forbid to panic or to end the goroutine: it waits forever. The store
// is failed. The disk's errors do not come here (retryFS); this is for what the engine thinks impossible.
func (l *engineLog) Fatalf(format string, args ...any) {
	l.failed(fmt.Errorf("store engine: "+format, args...))
	select {}
}

// guarded turns a panic of the engine into an error.
func guarded(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("store engine: %w", r)
		default:
			err = fmt.Errorf("store engine: %v", r)
		}
	}()
	return f()
}
