// SPDX-License-Identifier: Apache-2.0

package image

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	"keelson/runtime/image/manifest"
)

// paths is where things are in a store's directory (see the package comment).
type paths struct{ dir string }

// makePaths makes the directories that are missing.
func makePaths(dir string) (paths, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return paths{}, fmt.Errorf("open image store: %w", err)
	}
	p := paths{dir: dir}
	for _, sub := range []string{"", "layers", "leases", "tmp", "trash"} {
		if err := os.MkdirAll(p.path(sub), 0o700); err != nil {
			return paths{}, fmt.Errorf("open image store: %w", err)
		}
	}
	return p, nil
}

func (p paths) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

// LayersDir returns the parent directory of all unpacked layers.
func (p paths) LayersDir() string { return p.path("layers") }

// LayerDir returns the directory of an unpacked layer.
func (p paths) LayerDir(chainID string) string { return filepath.Join(p.layerPath(chainID), "fs") }

func (p paths) layerPath(chainID string) string { return p.path("layers", manifest.HexOf(chainID)) }

// discard moves a file or directory to the trash, which another process may be emptying.
func (p paths) discard(file string) error { return os.Rename(file, p.path("trash", rand.Text())) }
