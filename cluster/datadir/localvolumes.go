// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// LocalVolume is a volume of a PersistentVolumeClaim below the data directory.
type LocalVolume struct {
	Path  string
	Bytes int64
}

// LocalVolumes lists the local volumes with content, which a purge deletes.
func LocalVolumes(dir Dir) ([]LocalVolume, error) {
	root := dir.Sub("volumes")
	all, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for local volumes: %w", Unreadable(err))
	}
	var out []LocalVolume
	for _, e := range all {
		v := LocalVolume{Path: filepath.Join(root, e.Name())}
		entries := 0
		err := filepath.WalkDir(v.Path, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if path != v.Path || !e.IsDir() {
				entries++
			}
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
				v.Bytes += info.Size()
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look for local volumes: %w", Unreadable(err))
		}
		if entries > 0 {
			out = append(out, v)
		}
	}
	return out, nil
}
