// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/lib/keylock"
	"keelson/lib/shares"
	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

// layers are the unpacked layers on disk, and those that are being made.
type layers struct {
	paths     paths
	locks     *locks
	space     *unpack.Space
	most      int64 // bytes of one unpacked layer
	downloads *shares.Shares
	windows   *unpack.Windows
	turns     keylock.Locks // layers that are unpacked, by tenant and chain id
}

// at reads the layer.json of a layer; ok is false when the layer is not on disk.
func (l *layers) at(chainID string) (layer manifest.Layer, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(l.paths.layerPath(chainID), "layer.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return manifest.Layer{}, false, nil
	}
	if err != nil {
		return manifest.Layer{}, false, fmt.Errorf("read layer: %w", err)
	}
	if err := json.Unmarshal(b, &layer); err != nil || layer.ChainID != chainID {
		return manifest.Layer{}, false, fmt.Errorf("read layer %s: damaged layer.json", chainID)
	}
	// A layer that was not synced is valid only in the boot in which it was written.
	return layer, layer.Boot == "" || layer.Boot == bootID(), nil
}

// readOrDiscard is at, and moves a layer to the trash that was not synced, in an earlier boot: its name must be free.
func (l *layers) readOrDiscard(chainID string) (layer manifest.Layer, ok bool, err error) {
	if layer, ok, err = l.at(chainID); ok || err != nil {
		return layer, ok, err
	}
	if _, err := os.Lstat(l.paths.layerPath(chainID)); err != nil {
		return manifest.Layer{}, false, nil //nolint:nilerr // it is not there
	}
	if layer, ok, err = l.at(chainID); ok || err != nil {
		return layer, ok, err // another tenant's pull has committed it since
	}
	if err := l.paths.discard(l.paths.layerPath(chainID)); err != nil {
		return manifest.Layer{}, false, fmt.Errorf("replace layer: %w", err)
	}
	return manifest.Layer{}, false, nil
}

// bootID identifies the current boot of the machine.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// opener opens a layer's tar. It is called at most once, and only when the layer is not on disk.
type opener func(ctx context.Context) (unpack.Source, error)

// addLayer unpacks a layer, want, unless it is on disk. It is on the work's list already. below holds the directories
// of its lower layers, lowest first; ready, which may be nil, is closed when they are committed. Concurrent calls of a
// tenant for the same layer unpack it once. Tenants do not wait for each other: an image may name any layer as its own
// and send it slowly.
func (w *work) addLayer(
	ctx context.Context, want manifest.Layer, below []string, ready <-chan struct{}, src opener,
) (manifest.Layer, error) {
	unlock, err := w.layers.turns.LockContext(ctx, fmt.Sprintf("%q %s", w.tenant, want.ChainID))
	if err != nil {
		return manifest.Layer{}, err
	}
	defer unlock()
	if l, ok, err := w.layers.readOrDiscard(want.ChainID); ok || err != nil {
		return l, err
	}
	tmp, err := os.MkdirTemp(w.dir.Name(), "layer-")
	if err != nil {
		return manifest.Layer{}, fmt.Errorf("unpack layer: %w", err)
	}
	defer func() { _ = removeTree(filepath.Split(tmp)) }()
	got, err := w.layers.unpackSource(ctx, w.tenant, filepath.Join(tmp, "fs"), src)
	if err != nil {
		return manifest.Layer{}, err
	}
	if got.DiffID != want.DiffID {
		return manifest.Layer{}, fmt.Errorf("%w: layer unpacks to %s, the image says %s", manifest.ErrInvalid,
			got.DiffID, want.DiffID)
	}
	want.Disk = got.Disk
	want.Inodes = got.Inodes
	if ready != nil {
		select {
		case <-ready:
		case <-ctx.Done():
			return manifest.Layer{}, context.Cause(ctx)
		}
	}
	if err := got.Inherit(filepath.Join(tmp, "fs"), below); err != nil {
		return manifest.Layer{}, fmt.Errorf("unpack layer %s: %w", want.DiffID, err)
	}
	return want, w.layers.commit(tmp, want)
}

func (l *layers) unpackSource(ctx context.Context, tenant, root string, src opener) (unpack.Unpacked, error) {
	leave, err := l.downloads.Enter(ctx, tenant)
	if err != nil {
		return unpack.Unpacked{}, err
	}
	defer leave()
	if err := l.space.Check(0); err != nil { // before the transfer
		return unpack.Unpacked{}, err
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return unpack.Unpacked{}, fmt.Errorf("unpack layer: %w", err)
	}
	if err := os.Chmod(root, 0o755); err != nil { // Mkdir applies the umask
		return unpack.Unpacked{}, fmt.Errorf("unpack layer: %w", err)
	}
	rc, err := src(ctx)
	if err != nil {
		return unpack.Unpacked{}, err
	}
	defer func() { _ = rc.Close() }()
	got, err := unpack.Layer(ctx, root, rc, unpack.Limits{Bytes: l.most, Space: l.space, Windows: l.windows})
	if err != nil {
		return unpack.Unpacked{}, err
	}
	return got, rc.Verify()
}

// commit renames an unpacked layer to its final name. The files are synced before, except for a layer with Boot
// set.
func (l *layers) commit(tmp string, layer manifest.Layer) error {
	b, err := json.Marshal(layer)
	if err != nil {
		return fmt.Errorf("encode layer: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "layer.json"), b, 0o600); err != nil {
		return fmt.Errorf("commit layer: %w", err)
	}
	if layer.Boot == "" {
		if err := syncTree(tmp); err != nil {
			return fmt.Errorf("commit layer: sync: %w", err)
		}
	}
	err = os.Rename(tmp, l.paths.layerPath(layer.ChainID))
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		return nil // another process has unpacked the same layer
	}
	if err != nil {
		return fmt.Errorf("commit layer: %w", err)
	}
	if layer.Boot == "" {
		if err := syncDir(l.paths.LayersDir()); err != nil {
			return fmt.Errorf("commit layer: sync: %w", err)
		}
	}
	return nil
}

// syncTree syncs all files below dir. One syncfs is much faster than an fsync for each of thousands of files.
func syncTree(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
