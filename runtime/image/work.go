// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

// work is a pull or an import that makes layers. Its directory below tmp has what it makes, and its list of the layers
// that it needs, which garbage collection keeps. The directory is locked, so that the work of a process that died is
// known: the kernel unlocks it.
//
//	begin                the directory is there, locked
//	need                 the layers are on its list: those on disk stay, those still to come stay once they are there
//	catalog.name         an image names the layers
//	end                  the directory is gone; only images keep the layers now
type work struct {
	layers *layers
	tenant string
	dir    *os.File // open as long as the work lasts
}

// needsFile is the list of a work's layers: chain ids, one per line.
const needsFile = "needs"

// begin begins a work, for which the caller calls end.
func (l *layers) begin(tenant string) (*work, error) {
	unlock, err := l.locks.lock(busyLock, unix.LOCK_SH) // the collector must not see the directory unlocked
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	defer unlock()
	path, err := os.MkdirTemp(l.paths.path("tmp"), "work-")
	if err != nil {
		return nil, fmt.Errorf("begin to store an image: %w", err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin to store an image: %w", err), os.Remove(path))
	}
	w := &work{layers: l, tenant: tenant, dir: dir}
	if err := flock(dir, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		w.end()
		return nil, fmt.Errorf("begin to store an image: %w", err)
	}
	return w, nil
}

// end removes what was not finished.
func (w *work) end() {
	tmp, name := filepath.Split(w.dir.Name())
	_ = removeTree(tmp, name) // the next collection tries again
	_ = w.dir.Close()         // unlocks it
}

// need adds layers to the list of those that stay until the work ends, and returns those of them that are on disk, with
// false for the others.
func (w *work) need(layers []manifest.Layer) (have []manifest.Layer, found []bool, err error) {
	unlock, err := w.layers.locks.lock(busyLock, unix.LOCK_SH) // the list is read either before or after this
	if err != nil {
		return nil, nil, fmt.Errorf("lock image store: %w", err)
	}
	defer unlock()
	var lines bytes.Buffer
	for _, layer := range layers {
		lines.WriteString(layer.ChainID)
		lines.WriteByte('\n')
	}
	list, err := os.OpenFile(filepath.Join(w.dir.Name(), needsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("keep layers: %w", err)
	}
	_, err = list.Write(lines.Bytes())
	if err = errors.Join(err, list.Close()); err != nil {
		return nil, nil, fmt.Errorf("keep layers: %w", err)
	}
	have = make([]manifest.Layer, len(layers))
	found = make([]bool, len(layers))
	for i, layer := range layers {
		if have[i], found[i], err = w.layers.at(layer.ChainID); err != nil {
			return nil, nil, err
		}
	}
	return have, found, nil
}

// fetchLayers fetches the missing layers of plan in parallel; each is committed after the one below it. All of them
// stay until the work ends.
func (w *work) fetchLayers(ctx context.Context, plan *manifest.Plan, m *meter, open func(
	context.Context, manifest.Layer,
) (unpack.Source, error),
) error {
	// From here on no collection takes these layers, whether they are on disk already or come later.
	have, found, err := w.need(plan.Layers)
	if err != nil {
		return err
	}
	for i, layer := range plan.Layers {
		if found[i] {
			have[i].Blob = layer.Blob
			have[i].Size = layer.Size
			plan.Layers[i] = have[i]
			continue
		}
		m.total.Add(layer.Size)
	}
	m.report()
	// All are fetched and unpacked at once, but each waits for the layer below it before it is committed: only then are
	// the directories there from which it takes over what its tar does not say.
	group, gctx := errgroup.WithContext(ctx)
	dirs := make([]string, 0, len(plan.Layers))
	var lower chan struct{} // closed when the missing layer below is committed; nil: none is missing
	for i, l := range plan.Layers {
		below := slices.Clone(dirs)
		dirs = append(dirs, w.layers.paths.LayerDir(l.ChainID))
		if found[i] {
			continue
		}
		committed := make(chan struct{})
		ready := lower
		lower = committed
		group.Go(func() error {
			got, err := w.addLayer(gctx, l, below, ready, func(ctx context.Context) (unpack.Source, error) {
				return open(ctx, l)
			})
			if err != nil {
				return err
			}
			got.Blob = l.Blob
			got.Size = l.Size
			plan.Layers[i] = got
			close(committed)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	m.done.Store(m.total.Load()) // also the layers that another pull has transferred meanwhile
	m.report()
	return nil
}

// inWork reports whether the process that made a file or directory below tmp still works on it.
func inWork(path string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	err = flock(file, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// flock is flock(2).
func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
