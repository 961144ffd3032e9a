// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// retryFS stands between the engine and the disk, because the engine takes an error of its log or manifest for the end
// of the process. Through retryFS it never sees a write-side error:
//
//	well --operation fails--> failing: the operation is tried again, later and later, until it succeeds --> well
//	well, failing --sync fails--> failed: what a repeated fsync answers means nothing, so the operation waits for cut
//	any --cut--> void: write-side operations do nothing and say that they did; nothing reaches the directory again
//
// After cut the engine can wind down, and its owner confirms nothing that it says (invariant 4). Reads answer their
// errors.
type retryFS struct {
	vfs.FS
	// changed is called with the state whenever it changes: nil is no fault. It is called with mu held and must not
	// call back.
	changed func(*fault)

	noSync  bool        // Options.NoSync
	running atomic.Bool // since the store is open, a missing file is damage and no longer an answer

	gate sync.RWMutex // held for reading by an operation under way, so that cut can wait for it; guards void
	void bool
	done chan struct{} // closed by cut

	mu      sync.Mutex
	failing []*fault // operations being tried again, in the order in which they began to fail
	failed  *fault
}

// fault is why the disk takes no writes. lasting: only opening the store again can help.
type fault struct {
	err     error
	lasting bool
}

func newRetryFS(inner vfs.FS, changed func(*fault)) *retryFS {
	return &retryFS{FS: inner, changed: changed, done: make(chan struct{})}
}

// Unwrap is part of vfs.FS.
func (p *retryFS) Unwrap() vfs.FS { return p.FS }

// cut ends every influence on the directory. Operations under way have ended when it returns. Cutting twice is
// harmless.
func (p *retryFS) cut() {
	p.gate.Lock()
	defer p.gate.Unlock()
	if !p.void {
		p.void = true
		close(p.done)
	}
}

// try runs op once; did is false in the void.
func (p *retryFS) try(op func() error) (did bool, err error) {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.void {
		return false, nil
	}
	return true, op()
}

// The delays between tries of a failing operation.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = time.Second
)

// do runs op until it succeeds or the engine is cut off; it reports whether op was done.
func (p *retryFS) do(what, name string, op func() error) (did bool) {
	var s *fault
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		did, err := p.try(op)
		if err == nil {
			p.recovered(s)
			return did
		}
		s = p.note(s, describe(what, name, err))
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-p.done:
			timer.Stop()
		}
	}
}

// List is part of vfs.FS. The engine lists its directory only while it opens, the second time while goroutines of its
// own run, which bring down the process if it gives up then: so an error is treated as one of the write side, and in
// the void there is nothing.
func (p *retryFS) List(dir string) (names []string, err error) {
	p.do("list", dir, func() (err error) {
		names, err = p.FS.List(dir)
		return err
	})
	return names, nil
}

// once runs op, which cannot be repeated. When it fails the store is failed and the caller waits for cut.
func (p *retryFS) once(what, name string, op func() error) {
	for {
		_, err := p.try(op)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			p.fails(describe(what, name, err))
			<-p.done
		}
		return
	}
}

// sync is once for an operation that waits for the disk.
func (p *retryFS) sync(name string, op func() error) {
	if !p.noSync {
		p.once("sync", name, op)
	}
}

// describe says what failed on which file, once.
func describe(what, name string, err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		err = pe.Err
	case errors.As(err, &le):
		err = le.Err
	}
	return fmt.Errorf("%s %s: %w", what, filepath.Base(name), err)
}

func (p *retryFS) note(s *fault, err error) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != nil {
		s.err = err
		return s
	}
	s = &fault{err: err}
	p.failing = append(p.failing, s)
	p.notifyLocked()
	return s
}

func (p *retryFS) recovered(s *fault) {
	if s == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.failing {
		if p.failing[i] == s {
			p.failing = append(p.failing[:i:i], p.failing[i+1:]...)
			break
		}
	}
	p.notifyLocked()
}

func (p *retryFS) fails(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = &fault{err: err, lasting: true}
	}
	p.notifyLocked()
}

func (p *retryFS) notifyLocked() {
	switch {
	case p.failed != nil:
		p.changed(p.failed)
	case len(p.failing) > 0:
		p.changed(p.failing[0])
	default:
		p.changed(nil)
	}
}

// openWith runs a create-like operation; in the void it returns a file that takes everything.
func (p *retryFS) openWith(what, name string, op func() (vfs.File, error)) (vfs.File, error) {
	var f vfs.File
	p.do(what, name, func() (err error) {
		f, err = op()
		return err
	})
	return &retryFile{p: p, File: f, name: name}, nil
}

// marks reports whether a file's name says which manifest counts. The engine makes one after the manifest that it
// names, removes the one before, and syncs the directory then only: a disk that brings these three to rest in another
// order would lose the store. So the directory is synced between them.
func marks(name string) bool { return strings.HasPrefix(filepath.Base(name), "marker.manifest.") }

// settle brings the changes of the directory that holds name to disk.
func (p *retryFS) settle(name string) {
	dir := p.PathDir(name)
	var d vfs.File
	if !p.do("open", dir, func() (err error) {
		d, err = p.FS.OpenDir(dir)
		return err
	}) {
		return
	}
	p.sync(dir, func() error { return d.Sync() })
	_ = d.Close() // nothing was written through it
}

// Create is part of vfs.FS.
func (p *retryFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if marks(name) {
		p.settle(name)
	}
	return p.openWith("create", name, func() (vfs.File, error) { return p.FS.Create(name, c) })
}

// OpenReadWrite is part of vfs.FS.
func (p *retryFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return p.openWith("open", name, func() (vfs.File, error) { return p.FS.OpenReadWrite(name, c, opts...) })
}

// ReuseForWrite is part of vfs.FS. When reusing fails, half done perhaps, a new file is made, as its contract allows.
func (p *retryFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	first := true
	return p.openWith("reuse", newname, func() (vfs.File, error) {
		if first {
			first = false
			return p.FS.ReuseForWrite(oldname, newname, c)
		}
		if err := p.FS.Remove(oldname); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return p.FS.Create(newname, c)
	})
}

// Link is part of vfs.FS.
func (p *retryFS) Link(oldname, newname string) error {
	tries := 0
	p.do("link", newname, func() error {
		tries++
		err := p.FS.Link(oldname, newname)
		if tries > 1 && errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	})
	return nil
}

// Rename is part of vfs.FS.
func (p *retryFS) Rename(oldname, newname string) error {
	p.do("rename", newname, func() error { return p.FS.Rename(oldname, newname) })
	return nil
}

// MkdirAll is part of vfs.FS.
func (p *retryFS) MkdirAll(dir string, perm os.FileMode) error {
	p.do("create", dir, func() error { return p.FS.MkdirAll(dir, perm) })
	return nil
}

// Remove is part of vfs.FS. That the file is not there is an answer.
func (p *retryFS) Remove(name string) error {
	if marks(name) {
		p.settle(name)
	}
	return p.remove(name, p.FS.Remove)
}

// RemoveAll is part of vfs.FS.
func (p *retryFS) RemoveAll(name string) error { return p.remove(name, p.FS.RemoveAll) }

func (p *retryFS) remove(name string, op func(string) error) error {
	var missing error
	p.do("remove", name, func() error {
		err := op(name)
		if errors.Is(err, fs.ErrNotExist) {
			missing = err
			return nil
		}
		return err
	})
	return missing
}

// Lock is part of vfs.FS. The store holds the directory's real lock, so that it can release it while an engine hangs.
func (p *retryFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Open is part of vfs.FS.
func (p *retryFS) Open(name string, opts ...vfs.OpenOption) (file vfs.File, err error) {
	did, err := p.try(func() error {
		file, err = p.FS.Open(name, opts...)
		return err
	})
	switch {
	case !did:
		return nil, errCut
	case errors.Is(err, fs.ErrNotExist) && p.running.Load():
		// the engine would end the process over fs.ErrNotExist
		return nil, fmt.Errorf("store is damaged: file %s is missing", name)
	}
	return file, err
}

// OpenDir is part of vfs.FS.
func (p *retryFS) OpenDir(name string) (file vfs.File, err error) {
	did, err := p.try(func() error {
		file, err = p.FS.OpenDir(name)
		return err
	})
	if !did {
		return nil, errCut
	}
	if err != nil {
		return nil, err
	}
	return &retryFile{p: p, File: file, name: name}, nil
}

var errCut = errors.New("store is closed")

// retryFile is a file open for writing, or a directory. File is nil when it was opened in the void.
type retryFile struct {
	vfs.File
	p     *retryFS
	name  string
	dirty atomic.Bool // written to since the last sync
}

// Write is part of vfs.File. A write that got stuck half-way goes on from there.
func (f *retryFile) Write(b []byte) (int, error) {
	f.dirty.Store(true)
	done := 0
	f.p.do("write", f.name, func() error {
		n, err := f.File.Write(b[done:])
		done += n
		return err
	})
	return len(b), nil
}

// WriteAt is part of vfs.File.
func (f *retryFile) WriteAt(b []byte, off int64) (int, error) {
	f.dirty.Store(true)
	done := 0
	f.p.do("write", f.name, func() error {
		n, err := f.File.WriteAt(b[done:], off+int64(done))
		done += n
		return err
	})
	return len(b), nil
}

// Sync is part of vfs.File.
func (f *retryFile) Sync() error { return f.sync(func() error { return f.File.Sync() }) }

// SyncData is part of vfs.File.
func (f *retryFile) SyncData() error { return f.sync(func() error { return f.File.SyncData() }) }

func (f *retryFile) sync(op func() error) error {
	f.dirty.Store(false)
	f.p.sync(f.name, op)
	return nil
}

// SyncTo is part of vfs.File.
func (f *retryFile) SyncTo(length int64) (full bool, _ error) {
	f.p.sync(f.name, func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, nil
}

// Preallocate is part of vfs.File: advice, of which the engine does not need to know whether it was taken.
func (f *retryFile) Preallocate(offset, length int64) error {
	_, err := f.p.try(func() error { return f.File.Preallocate(offset, length) })
	return err
}

// Close is part of vfs.File. A descriptor is gone whatever close says: that is harmless unless written data was at
// stake.
func (f *retryFile) Close() error {
	if f.File == nil {
		return nil
	}
	err := f.File.Close() // in the void too: it returns the descriptor and changes nothing
	if err != nil && f.dirty.Load() {
		f.p.once("close", f.name, func() error { return err })
	}
	return nil
}

// Read is part of vfs.File.
func (f *retryFile) Read(b []byte) (int, error) {
	if f.File == nil {
		return 0, errCut
	}
	return f.File.Read(b)
}

// ReadAt is part of vfs.File.
func (f *retryFile) ReadAt(b []byte, off int64) (int, error) {
	if f.File == nil {
		return 0, errCut
	}
	return f.File.ReadAt(b, off)
}

// Stat is part of vfs.File. The engine takes its error, too, for the end of the process.
func (f *retryFile) Stat() (vfs.FileInfo, error) {
	var info vfs.FileInfo = nothing{name: filepath.Base(f.name)}
	f.p.do("stat", f.name, func() error {
		got, err := f.File.Stat()
		if err == nil {
			info = got
		}
		return err
	})
	return info, nil
}

// Prefetch is part of vfs.File.
func (f *retryFile) Prefetch(offset, length int64) error {
	if f.File == nil {
		return nil
	}
	return f.File.Prefetch(offset, length)
}

// Fd is part of vfs.File.
func (f *retryFile) Fd() uintptr {
	if f.File == nil {
		return vfs.InvalidFd
	}
	return f.File.Fd()
}

// nothing describes a file in the void.
type nothing struct{ name string }

func (n nothing) Name() string         { return n.name }
func (nothing) Size() int64            { return 0 }
func (nothing) Mode() os.FileMode      { return 0 }
func (nothing) ModTime() time.Time     { return time.Time{} }
func (nothing) IsDir() bool            { return false }
func (nothing) Sys() any               { return nil }
func (nothing) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
