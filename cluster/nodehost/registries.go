// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"keelson/runtime/image/registry"
)

// Registries are the settings of a registries.yaml (empty: none) and of mirrors of the form HOST=URL, which are tried
// before those of the file. Names of files in it are relative to its directory.
func Registries(file string, mirrors []string) (registry.Settings, error) {
	var s registry.Settings
	if file != "" {
		raw, err := readSmall(file)
		if err != nil {
			return s, fmt.Errorf("image registries: %w", err)
		}
		s, err = registry.ParseSettings(raw, func(path string) ([]byte, error) {
			if !filepath.IsAbs(path) {
				path = filepath.Join(filepath.Dir(file), path)
			}
			return readSmall(path)
		})
		if err != nil {
			return s, fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, mirror := range slices.Backward(mirrors) { // the first is tried first
		if err := s.AddMirror(mirror); err != nil {
			return s, err
		}
	}
	return s, nil
}

// maxRegistries bounds a registries.yaml, and each file that it names, in bytes.
const maxRegistries = 1 << 20

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxRegistries+1))
	if err == nil && len(raw) > maxRegistries {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxRegistries)
	}
	return raw, err
}
