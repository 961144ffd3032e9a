// SPDX-License-Identifier: Apache-2.0

// Package snapshot makes the root file systems of containers: writable overlay
// mounts on the layers of an image. runtime/server calls it. It never pulls an
// image and never runs anything in a container.
//
// On disk, below Config.Dir, each snapshot is one directory:
//
//	<id>/layers    the chain ids of its layers, lowest first; written last, so its presence means a complete snapshot
//	<id>/upper     overlayfs' upper directory: what the container wrote
//	<id>/work      overlayfs' work directory
//	<id>/rootfs    the mount point
//	<id>/lower     the id-mapped layers, while a snapshot for a user namespace is made (mapped.go)
//
// Invariants:
//  1. The image's layers are leased (image.Store.Hold) before a snapshot uses them and
//     released after it was unmounted.
//  2. Remove and Remount may be called at any time, any number of times, also for unknown ids.
//  3. Mounts are volatile: overlayfs never syncs what containers write. A container does not
//     survive a power cut; what must survive belongs in volumes.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/lib/keylock"
	"keelson/runtime/image"
)

// ErrNotFound is returned by Usage and Remount for an id without a snapshot.
var ErrNotFound = errors.New("snapshot not found")

// Config configures a Store.
type Config struct {
	// Dir holds the snapshots; Open makes it. Its file system must be usable as overlayfs' upper layer.
	Dir string
	// MappedDir is where snapshots for user namespaces are mounted. It is made when needed, and every user of the
	// machine must be able to reach it. Empty: such snapshots are refused.
	MappedDir string
	Images    *image.Store
	Log       *slog.Logger
}

// Store makes and removes snapshots. It is safe for concurrent use on different ids; calls for one id take turns.
type Store struct {
	dir    string
	mapped string
	images *image.Store
	log    *slog.Logger
	feat   features

	locks keylock.Locks // by id
}

// Open prepares the directory, checks that overlayfs works there, and removes incomplete snapshots of interrupted
// calls. Complete snapshots stay, mounted or not.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	store := &Store{
		dir:    dir,
		mapped: cfg.MappedDir,
		images: cfg.Images,
		log:    cfg.Log,
	}
	if store.feat, err = detect(dir); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	if err := store.removeIncomplete(); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return store, nil
}

func (s *Store) removeIncomplete() error {
	ids, err := s.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := os.Stat(filepath.Join(s.dir, id, "layers")); err == nil {
			continue
		}
		s.log.Info("removing incomplete snapshot", "snapshot", id)
		if err := s.remove(context.Background(), id); err != nil {
			return err
		}
	}
	leases, err := s.images.Leases()
	if err != nil {
		return err
	}
	for _, l := range leases {
		id, mine := strings.CutPrefix(l, "snapshot-")
		if !mine {
			continue
		}
		if _, err := os.Lstat(filepath.Join(s.dir, id)); errors.Is(err, fs.ErrNotExist) {
			if err := s.images.Release(context.Background(), l); err != nil {
				return err
			}
		}
	}
	return nil
}

// List returns the ids of all snapshots, so that the caller can remove those without a container.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Path returns the mount point of id, whether it is mounted or not.
func (s *Store) Path(id string) string { return filepath.Join(s.dir, id, "rootfs") }

// Prepare mounts a new root file system on img's layers and returns its path. An id that exists is mounted if it is
// not, and returned. After an error nothing stays.
func (s *Store) Prepare(ctx context.Context, id string, img image.Image) (rootfs string, err error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	defer s.locks.Lock(id)()
	rootfs = s.Path(id)
	if _, err := os.Stat(filepath.Join(s.dir, id, "layers")); err == nil {
		return rootfs, s.remount(id)
	}
	return s.prepare(ctx, id, img, nil)
}

// prepare makes a snapshot; mapping is nil without a user namespace. The caller holds the lock of id.
func (s *Store) prepare(ctx context.Context, id string, img image.Image, mapping *Mapping) (rootfs string, err error) {
	if img, err = s.images.Ensure(ctx, img); err != nil {
		return "", fmt.Errorf("prepare snapshot %s: %w", id, err)
	}
	if err := s.images.Hold(lease(id), img.Layers); err != nil {
		return "", fmt.Errorf("prepare snapshot %s: %w", id, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove(context.WithoutCancel(ctx), id))
		}
	}()
	dir := filepath.Join(s.dir, id)
	rootfs = s.Path(id)
	for _, d := range []string{dir, filepath.Join(dir, "work"), filepath.Join(dir, "upper"), rootfs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return "", fmt.Errorf("prepare snapshot: %w", err)
		}
	}
	// The container's "/" has the mode of the upper directory.
	if err := os.Chmod(filepath.Join(dir, "upper"), 0o755); err != nil {
		return "", fmt.Errorf("prepare snapshot: %w", err)
	}
	chains := make([]string, len(img.Layers))
	for i, l := range img.Layers {
		chains[i] = l.ChainID
	}
	if mapping == nil {
		err = s.mount(id, chains)
	} else if err = s.makeReachable(id, mapping); err == nil {
		rootfs = s.mappedPath(id)
		err = s.mountMapped(id, chains, mapping)
	}
	if err != nil {
		return "", fmt.Errorf("prepare snapshot %s: %w", id, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "layers"), []byte(strings.Join(chains, "\n")), 0o600); err != nil {
		return "", fmt.Errorf("prepare snapshot: %w", err)
	}
	return rootfs, nil
}

// Remount mounts a snapshot that is not mounted, as after a reboot. It returns ErrNotFound when there is none.
func (s *Store) Remount(_ context.Context, id string) (rootfs string, err error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	defer s.locks.Lock(id)()
	return s.Path(id), s.remount(id)
}

func (s *Store) remount(id string) error {
	if _, err := os.Lstat(filepath.Join(s.dir, id, "lower")); err == nil {
		return fmt.Errorf("mount snapshot %s: it was made for a user namespace, which is gone", id)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, id, "layers"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mount snapshot %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("mount snapshot: %w", err)
	}
	if mounted, err := isOverlay(s.Path(id)); mounted || err != nil {
		return err
	}
	// After a crash the work directory of a volatile mount has a file that makes the next mount fail. Removing it is
	// safe: only unsynced writes of the container, which ended too, are lost.
	if err := removeTree(filepath.Join(s.dir, id), "work"); err != nil {
		return fmt.Errorf("mount snapshot: %w", err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, id, "work"), 0o700); err != nil {
		return fmt.Errorf("mount snapshot: %w", err)
	}
	return s.mount(id, strings.Fields(string(b)))
}

// Remove unmounts and deletes a snapshot and releases its layers. It is idempotent.
func (s *Store) Remove(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer s.locks.Lock(id)()
	return s.remove(ctx, id)
}

func (s *Store) remove(ctx context.Context, id string) error {
	dir := filepath.Join(s.dir, id)
	if err := s.removeMapped(id); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	err := unix.Unmount(s.Path(id), unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		// A process outside the container uses the mount. A lazy unmount frees the path and leaves open files open.
		err = unix.Unmount(s.Path(id), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove snapshot %s: unmount: %w", id, err)
	}
	// From here on the snapshot is incomplete: after a crash removeIncomplete removes the rest.
	if err := os.Remove(filepath.Join(dir, "layers")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	// Remove the mount point by itself first: if it were still mounted, this fails, and no file below it is deleted.
	if err := os.Remove(s.Path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	if err := removeTree(s.dir, id); err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	return s.images.Release(ctx, lease(id))
}

// Usage returns the size of the upper directory: bytes on disk and inodes that the container wrote.
func (s *Store) Usage(id string) (image.Usage, error) {
	if err := checkID(id); err != nil {
		return image.Usage{}, err
	}
	upper := filepath.Join(s.dir, id, "upper")
	u := image.Usage{Dir: upper}
	if _, err := os.Lstat(upper); err != nil {
		return u, fmt.Errorf("usage of snapshot %s: %w", id, ErrNotFound)
	}
	return u, diskUsage(upper, &u)
}

func lease(id string) string { return "snapshot-" + id }

func checkID(id string) error {
	if id == "" || strings.HasPrefix(id, ".") || strings.ContainsAny(id, "/\x00") || len(id) > 128 {
		return fmt.Errorf("snapshot id %q is not usable as a directory name", id)
	}
	return nil
}
