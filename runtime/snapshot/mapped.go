// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"keelson/lib/linux"
	"keelson/runtime/image"
)

// Mapping is the user namespace that a snapshot is for.
type Mapping struct {
	// UserNamespace is the path of the namespace.
	UserNamespace string
	// UID and GID are the host ids of its root.
	UID, GID uint32
}

// mappedPath is the mount point of a snapshot for a user namespace. A container's init enters the root file system from
// inside its user namespace, where it cannot search directories of the host's root. So these snapshots are mounted
// below Config.MappedDir (mode 0711), each in a directory that only the group of its root can search (0710):
//
//	<MappedDir>/<id>/rootfs
func (s *Store) mappedPath(id string) string { return filepath.Join(s.mapped, id, "rootfs") }

// PrepareMapped is Prepare for a container in a user namespace: files of user 0 in the image belong to the namespace's
// root.
func (s *Store) PrepareMapped(
	ctx context.Context, id string, img image.Image, mapping Mapping,
) (rootfs string, err error) {
	if s.mapped == "" {
		return "", errors.New("prepare snapshot: there is no directory for root file systems of user namespaces")
	}
	if err := checkID(id); err != nil {
		return "", err
	}
	defer s.locks.Lock(id)()
	if _, err := os.Lstat(filepath.Join(s.dir, id, "layers")); err == nil {
		if mounted, err := isOverlay(s.mappedPath(id)); err != nil || !mounted {
			return "", fmt.Errorf("prepare snapshot %s: it is there and not mounted for a user namespace (%w)", id, err)
		}
		return s.mappedPath(id), nil
	}
	return s.prepare(ctx, id, img, &mapping)
}

// makeReachable makes the mount point of a mapped snapshot and the directories above it.
func (s *Store) makeReachable(id string, mapping *Mapping) error {
	if err := os.MkdirAll(s.mapped, 0o711); err != nil { // see mappedPath
		return err
	}
	// MkdirAll applies the umask.
	if err := os.Chmod(s.mapped, 0o711); err != nil { // see mappedPath
		return err
	}
	dir := filepath.Dir(s.mappedPath(id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dir, -1, int(mapping.GID)); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o710); err != nil { // see mappedPath
		return err
	}
	return os.Mkdir(s.mappedPath(id), 0o700)
}

// mountMapped mounts the overlay on an id-mapped mount of the layers directory. That mount is needed only until the
// overlay is mounted, which clones it.
func (s *Store) mountMapped(id string, chains []string, mapping *Mapping) (err error) {
	overlay := s.overlay(id, chains)
	overlay.target = s.mappedPath(id)
	lower := filepath.Join(s.dir, id, "lower")
	if err := os.Mkdir(lower, 0o700); err != nil {
		return err
	}
	layers := filepath.Join(s.dir, id, "empty")
	if len(chains) > 0 {
		layers = s.images.LayersDir()
	} else if err := os.MkdirAll(layers, 0o755); err != nil { // the container's "/"
		return err
	}
	fd, err := linux.MapMount(layers, mapping.UserNamespace)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // a mount that was not attached ends with it
	if err := linux.Attach(fd, lower); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, linux.Unmount(lower)) }()
	for i, l := range overlay.lower {
		rel, err := filepath.Rel(layers, l)
		if err != nil {
			return err
		}
		overlay.lower[i] = filepath.Join(lower, rel)
	}
	for _, d := range []string{overlay.upper, overlay.work} {
		if err := os.Chown(d, int(mapping.UID), int(mapping.GID)); err != nil {
			return err
		}
	}
	if err := overlay.mount(s.feat.page); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", overlay.target, describeMountError(err, len(overlay.lower)))
	}
	return nil
}

// removeMapped undoes makeReachable and mountMapped, also when they were not completed.
func (s *Store) removeMapped(id string) error {
	if err := linux.Unmount(filepath.Join(s.dir, id, "lower")); err != nil {
		return err
	}
	if s.mapped == "" {
		return nil
	}
	if err := linux.Unmount(s.mappedPath(id)); err != nil {
		return err
	}
	for _, d := range []string{s.mappedPath(id), filepath.Dir(s.mappedPath(id))} {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Purge removes Config.MappedDir. All mapped snapshots must have been removed.
func (s *Store) Purge() error {
	if s.mapped == "" {
		return nil
	}
	if err := os.Remove(s.mapped); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove directory of root file systems: %w", err)
	}
	return nil
}

// CheckMapping makes and removes a snapshot for a user namespace. The error says why this machine cannot.
func (s *Store) CheckMapping(ctx context.Context, m Mapping) error {
	fd, err := linux.MapMount(s.images.LayersDir(), m.UserNamespace)
	if err != nil {
		return err
	}
	_ = unix.Close(fd) // a detached mount ends with its descriptor
	const id = "check-user-namespaces"
	if err := s.Remove(ctx, id); err != nil {
		return err
	}
	_, err = s.PrepareMapped(ctx, id, image.Image{}, m)
	return errors.Join(err, s.Remove(ctx, id))
}
