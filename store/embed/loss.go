// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// DataLossError says that a store holds less than it acknowledged. Opening it changed nothing.
type DataLossError struct {
	// Problems are sentences that name a file each.
	Problems []string
	// Expected is the revision that the store was at, at least; Found the one that it is at. 0: not known.
	Expected, Found int64
	// Unreadable reports that the engine cannot open what is left: AcceptDataLoss is of no help.
	Unreadable bool
}

func (e *DataLossError) Error() string {
	text := "acknowledged writes are missing: " + strings.Join(e.Problems, ", ")
	found := "what is left cannot be read"
	if e.Found > 0 {
		found = fmt.Sprintf("found revision %d", e.Found)
	}
	if e.Expected > 0 {
		text += fmt.Sprintf("; expected revision %d, %s", e.Expected, found)
	}
	return text
}

// lossGap is how far the revision of a store goes on above the one it was at, when it goes on without what was lost: no
// revision that a client has seen may come again with another meaning.
const lossGap = 1_000_000_000

// evidence is what the files say before the engine opens them.
type evidence struct {
	DataLossError
	fresh bool // last-revision is not there, or cannot be used
}

// examine looks for signs that acknowledged writes are missing. It changes nothing, and neither does it let the engine:
// a log that somebody puts back must still count.
func examine(opts Options) (*evidence, error) {
	names, err := opts.FS.List(opts.Dir)
	if err != nil {
		return nil, err
	}
	e := &evidence{}
	intact, err := e.compareCleanStop(opts, names)
	if err != nil {
		return nil, err
	}
	bound, boundErr := readLastRevision(opts)
	absent := errors.Is(boundErr, fs.ErrNotExist)
	switch {
	case errors.Is(boundErr, errBadSlots):
		if !intact {
			e.add("file %s is damaged (%v)", lastRevisionFile, boundErr)
		}
	case boundErr != nil && !absent:
		return nil, boundErr
	}
	e.fresh = boundErr != nil
	e.Expected = max(e.Expected, bound.revision)
	if !slices.ContainsFunc(names, isManifestMarker) {
		tables := slices.ContainsFunc(names, func(n string) bool {
			return strings.HasSuffix(n, ".sst") || strings.HasSuffix(n, ".log")
		})
		if opts.MustExist || tables || e.Expected > firstRevision {
			e.add("there is no file marker.manifest.* in %s, without which no other file counts", opts.Dir)
		}
		return e, nil
	}
	if intact && e.Found >= e.Expected {
		return e, nil
	}
	e.Found = 0
	if err := checkFiles(opts.FS, opts.Dir); errors.Is(err, errDamaged) {
		e.add("%v", err)
	} else if err != nil {
		return nil, err
	}
	if !absent && bound.revision <= firstRevision && len(e.Problems) == 0 {
		return e, nil
	}
	return e, e.peek(opts, bound, !absent)
}

func (e *evidence) add(format string, args ...any) {
	e.Problems = append(e.Problems, fmt.Sprintf(format, args...))
}

// compareCleanStop compares the files with what the last stop has left; intact: it was a clean one, and they are the
// same.
func (e *evidence) compareCleanStop(opts Options, names []string) (intact bool, err error) {
	mark, damage, err := readCleanStop(opts)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case damage != nil:
		e.add("file %s is damaged (%v)", cleanStopFile, damage)
		return false, nil
	}
	e.Expected = mark.revision
	if mark.stale(names) {
		return false, nil
	}
	problems, err := mark.compare(opts)
	if err != nil {
		return false, err
	}
	e.Problems = append(e.Problems, problems...)
	e.Found = mark.revision
	return len(problems) == 0, nil
}

// peek has the engine read what there is, without writing. What it cannot read at all is an error, unless it is known
// why.
func (e *evidence) peek(opts Options, bound slot, noted bool) error {
	var needsNote bool
	err := readOnly(opts, func(db *pebble.DB) (err error) {
		compacted, err := readNumber(db, keyCompacted)
		if err != nil {
			return err
		}
		last, err := lastLogged(db)
		if err != nil {
			return err
		}
		note, err := readNumber(db, keyNoted)
		if err != nil {
			return err
		}
		e.Found = max(last, compacted, firstRevision)
		needsNote = note != 0
		return checkLog(db, compacted, last)
	})
	switch {
	case err != nil && (len(e.Problems) > 0 || errors.Is(err, errDamaged)):
		e.add("%v", err)
		e.Unreadable = e.Found == 0
	case err != nil:
		return err
	}
	if needsNote && !noted {
		e.add("file %s, which says how much was acknowledged, is missing", lastRevisionFile)
	}
	if e.Found > 0 && e.Found < e.Expected && len(e.Problems) == 0 {
		name := fmt.Sprintf("%06d.log", bound.log)
		switch st, err := opts.FS.Stat(opts.FS.PathJoin(opts.Dir, name)); {
		case errors.Is(err, fs.ErrNotExist):
			e.add("file %s, which the newest writes were in, is missing", name)
		case err != nil:
			return err
		default:
			e.add("file %s, which the newest writes were in, has only %d bytes that count or are left", name, st.Size())
		}
	}
	return nil
}

// readOnly opens the engine for reading. It ends at the first error of the disk.
func readOnly(opts Options, f func(*pebble.DB) error) error {
	broken := make(chan error, 1)
	report := func(err error) {
		select {
		case broken <- err:
		default:
		}
	}
	disk := newRetryFS(opts.FS, func(now *fault) {
		if now != nil {
			report(now.err)
		}
	})
	done := make(chan error, 1)
	go func() { // ends when the engine has closed, or has been cut off and wound down
		db, err := openEngine(opts, disk, &engineLog{log: opts.Log, failed: report}, func(p *pebble.Options) {
			p.ReadOnly = true
		})
		if err != nil {
			done <- err
			return
		}
		err = guarded(func() error { return f(db) })
		done <- errors.Join(err, guarded(db.Close))
	}()
	defer disk.cut()
	select {
	case err := <-done:
		return err
	case err := <-broken:
		return err
	}
}
