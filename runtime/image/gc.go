// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
)

// Hold leases layers for a snapshot: they stay until Release, even if their image is removed. id is a file name; a
// second Hold replaces the first. It returns ErrNotFound when a layer does not exist.
func (s *Store) Hold(id string, layers []Layer) error {
	if err := checkLeaseID(id); err != nil {
		return err
	}
	unlock, err := s.lock("busy.lock", unix.LOCK_SH)
	if err != nil {
		return fmt.Errorf("hold layers: %w", err)
	}
	defer unlock()
	var buf bytes.Buffer
	for _, l := range layers {
		if _, err := os.Lstat(s.LayerDir(l.ChainID)); err != nil {
			return fmt.Errorf("hold layer %s: %w", l.ChainID, ErrNotFound)
		}
		buf.WriteString(l.ChainID)
		buf.WriteByte('\n')
	}
	if have, err := os.ReadFile(s.path("leases", id)); err == nil && bytes.Equal(have, buf.Bytes()) {
		return nil
	}
	// Not synced: if a power cut loses the lease, it has also ended the container.
	if err := os.WriteFile(s.path("leases", id), buf.Bytes(), 0o600); err != nil {
		return fmt.Errorf("hold layers: %w", err)
	}
	return nil
}

// Release ends a Hold and collects the layers that no image and no other lease names. It is idempotent.
func (s *Store) Release(ctx context.Context, id string) error {
	if err := checkLeaseID(id); err != nil {
		return err
	}
	b, err := os.ReadFile(s.path("leases", id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.Remove(s.path("leases", id))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release layers: %w", err)
	}
	ix, err := s.index()
	if err != nil {
		return err
	}
	wanted := s.named(ix)
	for chain := range strings.FieldsSeq(string(b)) {
		if !wanted[hexOf(chain)] {
			return s.GC(ctx)
		}
	}
	return nil
}

// Leases lists the ids of all leases, so that the caller can release those without a snapshot.
func (s *Store) Leases() ([]string, error) {
	entries, err := os.ReadDir(s.path("leases"))
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

func checkLeaseID(id string) error {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") || len(id) > 200 {
		return fmt.Errorf("hold layers: %q is not usable as an id", id)
	}
	return nil
}

// named returns the layers (by hex digest) of all images.
func (s *Store) named(ix *index) map[string]bool {
	out := map[string]bool{}
	for _, img := range ix.Images {
		for _, l := range img.Layers {
			out[hexOf(l.ChainID)] = true
		}
	}
	if b := s.builtin.Load(); b != nil {
		for _, l := range b.Layers {
			out[hexOf(l.ChainID)] = true
		}
	}
	return out
}

// GC deletes layers that no image, no lease and no work names, and what processes that died were working on. Pulls and
// imports go on meanwhile, in this process and in others: what they need is on their lists.
func (s *Store) GC(ctx context.Context) error {
	if err := s.moveToTrash(); err != nil {
		return fmt.Errorf("collect layers: %w", err)
	}
	return s.emptyTrash(ctx)
}

const (
	// tidyAfter is how long the layers stay that a failed pull has completed: the next try needs them.
	tidyAfter = 10 * time.Minute
	// roomEvery is how often a shortage of space starts a collection.
	roomEvery = 10 * time.Second
)

// tidyLater collects layers tidyAfter from now, if that is not planned already.
func (s *Store) tidyLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tidy != nil {
		return
	}
	s.tidy = time.AfterFunc(tidyAfter, func() {
		s.mu.Lock()
		s.tidy = nil
		s.mu.Unlock()
		if err := s.GC(context.Background()); err != nil {
			s.cfg.Log.Warn("layers of failed pulls not collected", "error", err)
		}
	})
}

// makeRoom collects layers for a pull or import that finds no space. Its own layers and those of others that run stay.
func (s *Store) makeRoom() {
	s.roomMu.Lock()
	defer s.roomMu.Unlock()
	if time.Since(s.roomAt) < roomEvery {
		return
	}
	if err := s.GC(context.Background()); err != nil {
		s.cfg.Log.Warn("no room made for an image", "error", err)
	}
	s.roomAt = time.Now()
}

// moveToTrash moves unused layers to the trash. Only this step needs the lock: deleting a big tree may take seconds, a
// rename does not. Others hold the lock for as short a time.
func (s *Store) moveToTrash() error {
	unlock, err := s.lock("busy.lock", unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	needed, err := s.discardDead()
	if err != nil {
		return err
	}
	ix, err := s.index() // after the lists of works: one that has ended meanwhile has named its image before
	if err != nil {
		return err
	}
	keep := s.named(ix)
	maps.Copy(keep, needed)
	leases, err := s.Leases()
	if err != nil {
		return err
	}
	for _, id := range leases {
		if err := addChains(keep, s.path("leases", id)); err != nil {
			return err
		}
	}
	layers, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return err
	}
	for _, e := range layers {
		if !keep[e.Name()] {
			if err := s.discard(s.path("layers", e.Name())); err != nil {
				return err
			}
		}
	}
	half, err := filepath.Glob(s.path(".*.json-*"))
	if err != nil {
		return err
	}
	for _, f := range half {
		s.removeTempIndex(f)
	}
	return nil
}

// removeTempIndex deletes the temporary index file of a writer that died. It holds the writers' lock, so no writer is
// active.
func (s *Store) removeTempIndex(f string) {
	lock, err := os.OpenFile(s.path("index.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer func() { _ = lock.Close() }() // unlocks it
	if flock(lock, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	_ = os.Remove(f) // the next collection tries again
}

// collectDead deletes what processes that died were working on. Complete layers stay: the next try needs them.
func (s *Store) collectDead() {
	unlock, err := s.lock("busy.lock", unix.LOCK_EX)
	if err == nil {
		_, err = s.discardDead()
		unlock()
	}
	if err == nil {
		err = s.emptyTrash(context.Background())
	}
	if err != nil {
		s.cfg.Log.Warn("leftovers of a pull not collected", "error", err)
	}
}

// discardDead moves the work of processes that died to the trash, and returns the layers (by hex digest) that the other
// works need. The caller holds busy.lock.
func (s *Store) discardDead() (map[string]bool, error) {
	works, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, e := range works {
		path := s.path("tmp", e.Name())
		lives, err := inWork(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it has ended
		case err != nil:
			return nil, err
		case lives:
			err = addChains(needed, filepath.Join(path, needsFile))
		default:
			err = s.discard(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return needed, nil
}

// addChains adds the chain ids in a file, as hex digests. A missing file has none.
func addChains(to map[string]bool, file string) error {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for chain := range strings.FieldsSeq(string(b)) {
		to[hexOf(chain)] = true
	}
	return nil
}

// discard moves a file or directory to the trash, which another process may be emptying.
func (s *Store) discard(p string) error {
	return os.Rename(p, s.path("trash", rand.Text()))
}

func (s *Store) emptyTrash(ctx context.Context) error {
	entries, err := os.ReadDir(s.path("trash"))
	if err != nil {
		return fmt.Errorf("empty trash: %w", err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the next collection continues
		}
		if err := removeTree(s.path("trash"), e.Name()); err != nil {
			return fmt.Errorf("empty trash: %w", err)
		}
	}
	return nil
}

// removeTree removes the tree name in dir. Its content comes from images; dir does not.
func removeTree(dir, name string) error {
	d, err := inroot.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.RemoveAll(name), d.Close())
}
