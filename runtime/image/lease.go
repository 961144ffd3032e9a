// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/runtime/image/manifest"
)

// leases are what snapshots use: one file with the layers of each, so that collection keeps them.
type leases struct {
	paths paths
	locks *locks
}

// hold begins a lease. A second one of the id replaces the first.
func (l *leases) hold(id string, layers []manifest.Layer) error {
	if err := checkLeaseID(id); err != nil {
		return err
	}
	unlock, err := l.locks.lock(busyLock, unix.LOCK_SH)
	if err != nil {
		return fmt.Errorf("hold layers: %w", err)
	}
	defer unlock()
	var buf bytes.Buffer
	for _, layer := range layers {
		if _, err := os.Lstat(l.paths.LayerDir(layer.ChainID)); err != nil {
			return fmt.Errorf("hold layer %s: %w", layer.ChainID, manifest.ErrNotFound)
		}
		buf.WriteString(layer.ChainID)
		buf.WriteByte('\n')
	}
	if have, err := os.ReadFile(l.path(id)); err == nil && bytes.Equal(have, buf.Bytes()) {
		return nil
	}
	// Not synced: if a power cut loses the lease, it has also ended the container.
	if err := os.WriteFile(l.path(id), buf.Bytes(), 0o600); err != nil {
		return fmt.Errorf("hold layers: %w", err)
	}
	return nil
}

// release ends a lease and returns the chain ids of its layers; none if there was no lease.
func (l *leases) release(id string) (chains []string, err error) {
	if err := checkLeaseID(id); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(l.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = os.Remove(l.path(id))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("release layers: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// ids returns the ids of all leases.
func (l *leases) ids() ([]string, error) {
	entries, err := os.ReadDir(l.paths.path("leases"))
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, nil
}

func (l *leases) path(id string) string { return l.paths.path("leases", id) }

func checkLeaseID(id string) error {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") || len(id) > 200 {
		return fmt.Errorf("hold layers: %q is not usable as an id", id)
	}
	return nil
}
