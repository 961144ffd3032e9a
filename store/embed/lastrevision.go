// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The file last-revision says which revision was acknowledged last. It is written in place before each answer and not
// synced: the page cache keeps it across kill -9, and after power loss it holds an earlier revision, never a later one.
// So a store that is found below it has lost writes that were acknowledged (examine).
//
// It has two slots, written in turn, each in a disk sector of its own, so that a torn write leaves the other:
//
//	magic(8) revision(8) number of the newest log(8) checksum(4)
const (
	lastRevisionFile = "last-revision"
	slotSize         = 512
	slotMagic        = "klastrv1"
	slotUsed         = 28
)

var errBadSlots = errors.New("neither of its two records is whole")

// lastRevision is the file, open.
type lastRevision struct {
	file vfs.File
	odd  bool // which slot is next
}

// slot is what the file says. Zero: it is not there.
type slot struct {
	revision int64
	log      uint64 // number of the log that the engine wrote to
}

func (s slot) encode() []byte {
	b := append(make([]byte, 0, slotUsed), slotMagic...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.revision))
	b = binary.BigEndian.AppendUint64(b, s.log)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeSlots reads the file's content: the later of its slots.
func decodeSlots(b []byte) (slot, error) {
	var newest slot
	for at := 0; at+slotUsed <= len(b); at += slotSize {
		rec := b[at : at+slotUsed]
		if string(rec[:8]) != slotMagic || binary.BigEndian.Uint32(rec[24:]) != crc32.Checksum(rec[:24], castagnoli) {
			continue
		}
		if s := (slot{int64(binary.BigEndian.Uint64(rec[8:])), binary.BigEndian.Uint64(
			rec[16:])}); s.revision > newest.revision {
			newest = s
		}
	}
	if newest.revision <= 0 {
		return slot{}, errBadSlots
	}
	return newest, nil
}

// readLastRevision returns fs.ErrNotExist when there is no such file, errBadSlots when it is damaged.
func readLastRevision(o Options) (slot, error) {
	f, err := o.FS.Open(o.FS.PathJoin(o.Dir, lastRevisionFile))
	if err != nil {
		return slot{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*slotSize))
	if err = errors.Join(err, f.Close()); err != nil {
		return slot{}, fmt.Errorf("read %s: %w", lastRevisionFile, err)
	}
	return decodeSlots(b)
}

// openLastRevision opens the file, or makes it again: its name and its blocks are on disk then.
func openLastRevision(opts Options, fresh bool, now slot) (*lastRevision, error) {
	path := opts.FS.PathJoin(opts.Dir, lastRevisionFile)
	if !fresh {
		f, err := opts.FS.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", lastRevisionFile, err)
		}
		l := &lastRevision{file: f}
		return l, l.write(now)
	}
	// Two whole slots: the one that is not written next must not be taken for a later revision.
	b := make([]byte, 2*slotSize)
	copy(b, now.encode())
	copy(b[slotSize:], now.encode())
	if err := writeFile(opts, lastRevisionFile, b); err != nil {
		return nil, err
	}
	f, err := opts.FS.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", lastRevisionFile, err)
	}
	return &lastRevision{file: f}, nil
}

// write says that now was acknowledged.
func (l *lastRevision) write(now slot) error {
	at := int64(0)
	if l.odd {
		at = slotSize
	}
	l.odd = !l.odd
	if _, err := l.file.WriteAt(now.encode(), at); err != nil {
		return fmt.Errorf("write %s: %w", lastRevisionFile, err)
	}
	return nil
}

// note is the file last-revision in use.
type note struct {
	newestLog atomic.Uint64 // number of the engine's newest log
	last      *lastRevision // nil before it is open; the committer's own
	failed    bool          // it could not be written; the committer's own
}

// open opens the file, or makes it.
func (n *note) open(opts Options, fresh bool, revision int64) (err error) {
	n.last, err = openLastRevision(opts, fresh, slot{revision, n.newestLog.Load()})
	return err
}

// write writes rev before rev is acknowledged. If it fails a later loss might go unnoticed; nothing is lost by that.
func (n *note) write(disk *retryFS, log *slog.Logger, rev int64) {
	_, err := disk.try(func() error { return n.last.write(slot{rev, n.newestLog.Load()}) })
	if err != nil && !n.failed {
		log.Error("cannot write down what is acknowledged", "err", err)
	}
	n.failed = err != nil
}

// close closes the file, if it is open.
func (n *note) close() error {
	if n.last == nil {
		return nil
	}
	return n.last.file.Close()
}

// writeFile makes or replaces a file of the store's directory: after power loss it is the old one or the new one.
func writeFile(opts Options, name string, b []byte) error {
	path := opts.FS.PathJoin(opts.Dir, name)
	f, err := opts.FS.Create(path+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = opts.FS.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", name, errors.Join(err, ignoreMissing(opts.FS.Remove(path+".new"))))
	}
	return syncDir(opts)
}

func syncDir(o Options) error {
	d, err := o.FS.OpenDir(o.Dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
