// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"

	"keelson/lib/signal"
)

// Options say where the store lives and how much history it keeps. Only Dir is required.
type Options struct {
	Dir string
	// FS is the file system; nil: the machine's own.
	FS  vfs.FS
	Log *slog.Logger
	// HistoryAge is for how long old revisions stay readable (default 5 minutes) and HistoryBytes bounds how much
	// superseded data that may be (default 128 MB). Both are looked at only when something is written.
	HistoryAge   time.Duration
	HistoryBytes int64
	// CacheBytes bounds the blocks kept in memory together with the memtables, which the engine takes off it (default
	// 32 MB). What is not read takes nothing.
	CacheBytes int64
	// Quota bounds what the keys hold (quota.go): above it, writes that take more room answer store.ErrNoSpace; 0: no
	// bound.
	Quota int64
	// NoSync confirms writes before the disk has them, for tests: a crash of the machine, not of the process, loses
	// writes or the store.
	NoSync bool
	// MustExist refuses a directory that holds no store.
	MustExist bool
	// AcceptDataLoss opens a store that lacks acknowledged writes, where Open returns a *DataLossError otherwise. It
	// goes on at a revision far above all before, so that a client that knows an older one has to list again.
	AcceptDataLoss bool
}

// Store implements store.Store.
type Store struct {
	life
	db   *pebble.DB
	disk *retryFS
	lock io.Closer
	log  *slog.Logger
	now  func() time.Time
	opts Options

	health     health     // whether the disk takes writes
	usage      usage      // how much the keys hold, and the quota
	note       note       // the file last-revision
	compaction compaction // of old revisions
	queue      queue      // writes that wait for the committer

	// The committer's own.
	next   int64  // revision of the next write
	recent recent // the newest versions of keys, as far as they are remembered

	durable   atomic.Int64 // latest revision on disk; written under mu
	compacted atomic.Int64 // oldest readable revision; written under mu

	// mu guards what follows, and compaction's history.
	mu   sync.Mutex
	ring ring          // the latest events, which watchers read
	tick chan struct{} // closed and replaced when durable changes
}

// firstRevision is what an empty store answers, so that 0 can mean "none" for callers (etcd begins there too).
const firstRevision = 1

// Open opens the store in opts.Dir, creating it when absent.
func Open(opts Options) (*Store, error) {
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.HistoryAge == 0 {
		opts.HistoryAge = 5 * time.Minute
	}
	if opts.HistoryBytes == 0 {
		opts.HistoryBytes = 128 << 20
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 32 << 20
	}
	st := &Store{
		life:   life{done: make(chan struct{})},
		log:    opts.Log,
		now:    time.Now,
		opts:   opts,
		health: health{log: opts.Log, alarm: newAlarm()},
		usage:  usage{quota: opts.Quota, log: opts.Log},
		compaction: compaction{
			running: make(chan struct{}, 1),
			history: history{age: opts.HistoryAge, bytes: opts.HistoryBytes},
		},
		queue: queue{filled: signal.New(), stop: make(chan struct{}), ended: make(chan struct{})},
		tick:  make(chan struct{}),
	}
	st.disk = newRetryFS(opts.FS, st.health.changed)
	st.disk.noSync = opts.NoSync
	err := mustExist(opts)
	if err == nil {
		err = engineFits(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("open store in %s: %w", opts.Dir, err)
	}
	if st.lock, err = lockDir(opts); err != nil {
		return nil, fmt.Errorf("open store in %s: %w", opts.Dir, err)
	}
	if err = st.examineAndOpen(); err != nil {
		st.disk.cut()
		return nil, errors.Join(fmt.Errorf("open store in %s: %w", opts.Dir, err), st.lock.Close())
	}
	st.disk.running.Store(true)
	go st.commit() // ends with Close, which waits for it unless the store is unavailable
	return st, nil
}

// mustExist returns a *DataLossError if the directory is gone or empty. Taking the lock would create it and its file
// LOCK, and leave both behind.
func mustExist(opts Options) error {
	if !opts.MustExist || opts.AcceptDataLoss {
		return nil
	}
	names, err := opts.FS.List(opts.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &DataLossError{Problems: []string{opts.Dir + " is missing"}}
	case err == nil && len(names) == 0:
		return &DataLossError{Problems: []string{opts.Dir + " is empty"}}
	}
	return err
}

// examineAndOpen opens the engine unless acknowledged writes are missing, or may be.
func (s *Store) examineAndOpen() error {
	evidence, err := examine(s.opts)
	if err != nil {
		return err
	}
	if len(evidence.Problems) > 0 {
		if !s.opts.AcceptDataLoss {
			return &evidence.DataLossError
		}
		s.log.Warn("store continues without acknowledged writes, as configured", "expected", evidence.Expected, "found",
			evidence.Found, "problems", evidence.Problems)
	}
	// From here on the files change: what the last stop said of them must not be trusted any more, whatever happens.
	err = s.opts.FS.Remove(s.opts.FS.PathJoin(s.opts.Dir, cleanStopFile))
	if err == nil {
		err = syncDir(s.opts)
	}
	if ignoreMissing(err) != nil {
		return err
	}
	err = s.open(evidence)
	if err != nil && len(evidence.Problems) > 0 {
		return fmt.Errorf("what is left cannot be opened, restore a backup: %w", err)
	}
	return err
}

// open opens the engine and reads where the store stands. An operation that fails meanwhile is the error: s.disk keeps
// the engine waiting, and the caller cuts it off.
func (s *Store) open(e *evidence) error {
	opened := make(chan error)
	go func() { // ends when the engine has opened, or has been cut off and wound down
		db, err := openEngine(s.opts, s.disk, &engineLog{log: s.log, failed: s.disk.fails}, func(p *pebble.Options) {
			p.EventListener.WALCreated = func(i pebble.WALCreateInfo) { s.note.newestLog.Store(uint64(i.FileNum)) }
		})
		if err == nil {
			s.db = db
			err = guarded(func() error { return s.recover(e) })
		}
		if err != nil && db != nil {
			err = errors.Join(err, guarded(db.Close))
		}
		if err != nil {
			_ = s.note.close() // nothing rests on it
		}
		select {
		case opened <- err:
		case <-s.disk.done:
			if err == nil {
				_ = guarded(db.Close) // no one is there to learn of it
				_ = s.note.close()    // nothing depends on it
			}
		}
	}()
	alarm := s.health.current()
	select {
	case err := <-opened:
		return err
	case <-alarm.raised:
		return errors.Unwrap(alarm.err)
	}
}

// recover checks the format and finds the latest revision.
func (s *Store) recover(e *evidence) error {
	if err := s.checkFormat(); err != nil {
		return err
	}
	compacted, err := readNumber(s.db, keyCompacted)
	if err != nil {
		return err
	}
	last, err := lastLogged(s.db)
	if err != nil {
		return err
	}
	lost := len(e.Problems) > 0
	if err := checkLog(s.db, compacted, last); errors.Is(err, errDamaged) && s.opts.AcceptDataLoss {
		lost = true
		s.log.Warn("store continues without acknowledged writes, as configured", "err", err)
	} else if err != nil {
		return err
	}
	last = max(last, compacted, firstRevision)
	if lost {
		last = max(last, e.Expected) + lossGap
		compacted = last
		if err := s.set(keyCompacted, last); err != nil {
			return err
		}
	}
	s.compacted.Store(compacted)
	s.compaction.marked = compacted
	s.next = last + 1
	s.durable.Store(last)
	s.ring.reset(last + 1)
	s.compaction.history.sample(s.now(), last)
	if err := s.usage.recover(s.db, last); err != nil {
		return err
	}
	return s.keepNote(e.fresh || lost)
}

// keepNote opens the file last-revision, or makes it. keyNoted then says in the database that the file must be there.
func (s *Store) keepNote(fresh bool) error {
	if err := s.note.open(s.opts, fresh, s.durable.Load()); err != nil {
		return err
	}
	if n, err := readNumber(s.db, keyNoted); err != nil || n != 0 {
		return err
	}
	return s.set(keyNoted, 1)
}

func (s *Store) set(key []byte, n int64) error {
	return guarded(func() error { return s.db.Set(key, putNumber(n), pebble.Sync) })
}

func (s *Store) checkFormat() error {
	format, err := readNumber(s.db, keyFormat)
	switch {
	case err != nil:
		return err
	case format == 0, format == 1:
		// what format 1 holds is good in format 2, but a program for format 1 must not open it any more
		return s.set(keyFormat, formatVersion)
	case format != formatVersion:
		return newerError("format", format, formatVersion)
	}
	return nil
}

// engineFits returns an error if a later version of the engine wrote the store. This engine cannot read it, which would
// look like damage.
func engineFits(opts Options) error {
	text, err := atomicfs.ReadMarker(opts.FS, opts.Dir, "format-version")
	if err != nil || text == "" {
		return nil //nolint:nilerr // what the engine reads next says why
	}
	format, err := strconv.ParseInt(text, 10, 64)
	if err == nil && format > int64(pebble.FormatNewest) {
		return newerError("engine format", format, int64(pebble.FormatNewest))
	}
	return nil
}

// newerError is the error for what a later version of this program wrote.
func newerError(what string, got, known int64) error {
	return fmt.Errorf("a newer version of this program wrote it (%s %d, this one knows %d): start that version, or "+
		"restore a backup that this one made", what, got, known)
}

// Revision is the latest acknowledged revision.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	return s.durable.Load(), nil
}

// Size is how many bytes the store takes on the disk.
func (s *Store) Size(ctx context.Context) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	return int64(s.db.Metrics().DiskSpaceUsage()), nil
}

// Health is nil while the store takes writes.
func (s *Store) Health(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	return s.health.current().get()
}

// Close ends all watches, waits for writes under way and closes the files. When the disk takes no writes it waits for
// nothing but the system call under way: the engine is cut off from the directory, which is free for the next Open.
// Closing twice is harmless.
func (s *Store) Close() error {
	if first := s.end(); !first {
		return nil
	}
	close(s.queue.stop)
	ended := make(chan error, 1)
	go func() { // ends when the engine has closed, or has been cut off and wound down
		<-s.queue.ended
		ended <- guarded(s.db.Close)
	}()
	var err error
	alarm := s.health.current()
	select {
	case err = <-ended:
	case <-alarm.raised:
		s.disk.cut()
		err = alarm.err
	}
	s.disk.cut() // a goroutine that the engine may have left behind has no business in the directory
	if err == nil && alarm.get() == nil {
		if err := leaveCleanStop(s.opts, s.durable.Load()); err != nil {
			s.log.Error("cannot write down that the store was stopped", "err", err) // the next start looks closer
		}
	}
	if cerr := s.note.close(); cerr != nil {
		s.log.Error("close file", "err", cerr)
	}
	if err = errors.Join(err, s.lock.Close()); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}
