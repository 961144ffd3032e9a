// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
	"keelson/runtime/image/manifest"
)

// collector deletes what is not needed. Pulls and imports go on meanwhile, in this process and in others: their needs
// are on their lists.
type collector struct {
	paths   paths
	locks   *locks
	catalog *catalog
	leases  *leases
	builtin *builtin
	log     *slog.Logger

	mu   sync.Mutex
	tidy *time.Timer // collects what failed pulls have left; nil: none has failed lately

	roomMu sync.Mutex // held while room is made
	roomAt time.Time  // when that was done last
}

// layersOf returns the layers (by hex digest) of all images.
func (c *collector) layersOf(ix *index) map[string]bool {
	out := map[string]bool{}
	for _, img := range ix.Images {
		for _, l := range img.Layers {
			out[manifest.HexOf(l.ChainID)] = true
		}
	}
	if b := c.builtin.known.Load(); b != nil {
		for _, l := range b.Layers {
			out[manifest.HexOf(l.ChainID)] = true
		}
	}
	return out
}

// collect deletes layers that no image, no lease and no work names, and what processes that died were working on.
func (c *collector) collect(ctx context.Context) error {
	if err := c.moveToTrash(); err != nil {
		return fmt.Errorf("collect layers: %w", err)
	}
	return c.emptyTrash(ctx)
}

// collectUnnamed collects if no image names one of the layers.
func (c *collector) collectUnnamed(ctx context.Context, chains []string) error {
	if len(chains) == 0 {
		return nil
	}
	ix, err := c.catalog.read()
	if err != nil {
		return err
	}
	named := c.layersOf(ix)
	for _, chain := range chains {
		if !named[manifest.HexOf(chain)] {
			return c.collect(ctx)
		}
	}
	return nil
}

const (
	// tidyAfter is how long the layers stay that a failed pull has completed: the next try needs them.
	tidyAfter = 10 * time.Minute
	// roomEvery is how often a shortage of space starts a collection.
	roomEvery = 10 * time.Second
)

// tidyLater collects layers tidyAfter from now, if that is not planned already.
func (c *collector) tidyLater() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tidy != nil {
		return
	}
	c.tidy = time.AfterFunc(tidyAfter, func() {
		c.mu.Lock()
		c.tidy = nil
		c.mu.Unlock()
		if err := c.collect(context.Background()); err != nil {
			c.log.Warn("layers of failed pulls not collected", "error", err)
		}
	})
}

// stop drops a planned collection.
func (c *collector) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tidy != nil {
		c.tidy.Stop()
		c.tidy = nil
	}
}

// makeRoom collects layers for a pull or import that finds no space. Its own layers and those of others that run stay.
func (c *collector) makeRoom() {
	c.roomMu.Lock()
	defer c.roomMu.Unlock()
	if time.Since(c.roomAt) < roomEvery {
		return
	}
	if err := c.collect(context.Background()); err != nil {
		c.log.Warn("no room made for an image", "error", err)
	}
	c.roomAt = time.Now()
}

// moveToTrash moves unused layers to the trash. Only this step needs the lock: deleting a big tree may take seconds, a
// rename does not. Others hold the lock for as short a time.
func (c *collector) moveToTrash() error {
	unlock, err := c.locks.lock(busyLock, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	needed, err := c.discardDead()
	if err != nil {
		return err
	}
	ix, err := c.catalog.read() // after the lists of works: one that has ended meanwhile has named its image before
	if err != nil {
		return err
	}
	keep := c.layersOf(ix)
	maps.Copy(keep, needed)
	leases, err := c.leases.ids()
	if err != nil {
		return err
	}
	for _, id := range leases {
		if err := addChains(keep, c.paths.path("leases", id)); err != nil {
			return err
		}
	}
	layers, err := os.ReadDir(c.paths.path("layers"))
	if err != nil {
		return err
	}
	for _, e := range layers {
		if !keep[e.Name()] {
			if err := c.paths.discard(c.paths.path("layers", e.Name())); err != nil {
				return err
			}
		}
	}
	half, err := filepath.Glob(c.paths.path(".*.json-*"))
	if err != nil {
		return err
	}
	for _, f := range half {
		c.removeTempIndex(f)
	}
	return nil
}

// removeTempIndex deletes the temporary index file of a writer that died. It holds the writers' lock, so no writer is
// active.
func (c *collector) removeTempIndex(f string) {
	lock, err := os.OpenFile(c.paths.path(indexLock), os.O_RDWR|os.O_CREATE, 0o600)
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
func (c *collector) collectDead() {
	unlock, err := c.locks.lock(busyLock, unix.LOCK_EX)
	if err == nil {
		_, err = c.discardDead()
		unlock()
	}
	if err == nil {
		err = c.emptyTrash(context.Background())
	}
	if err != nil {
		c.log.Warn("leftovers of a pull not collected", "error", err)
	}
}

// discardDead moves the work of processes that died to the trash, and returns the layers (by hex digest) that the other
// works need. The caller holds busy.lock.
func (c *collector) discardDead() (map[string]bool, error) {
	works, err := os.ReadDir(c.paths.path("tmp"))
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	for _, e := range works {
		path := c.paths.path("tmp", e.Name())
		lives, err := inWork(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it has ended
		case err != nil:
			return nil, err
		case lives:
			err = addChains(needed, filepath.Join(path, needsFile))
		default:
			err = c.paths.discard(path)
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
		to[manifest.HexOf(chain)] = true
	}
	return nil
}

func (c *collector) emptyTrash(ctx context.Context) error {
	entries, err := os.ReadDir(c.paths.path("trash"))
	if err != nil {
		return fmt.Errorf("empty trash: %w", err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the next collection continues
		}
		if err := removeTree(c.paths.path("trash"), e.Name()); err != nil {
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
