// SPDX-License-Identifier: Apache-2.0

// Package snapshot gives each container a root file system of its own: a
// writable overlay on the layers of its image. runtime/server calls it; it never
// pulls anything and never looks into a container.
//
// On disk, below Config.Dir, each snapshot is one directory:
//
//	<id>/layers    the chain ids it stands on, lowest first; written last, so its presence means a whole snapshot
//	<id>/upper     what the container wrote
//	<id>/work      overlayfs' own
//	<id>/rootfs    the mount point
//	<id>/lower     the layers with mapped owners, while a snapshot for a user namespace is made (mapped.go)
//
// Invariants:
//  1. The image's layers are held (image.Store.Hold) before a snapshot stands on them and
//     released after it was unmounted.
//  2. Remove and Remount may be called at any time, any number of times, for ids that never were.
//  3. Mounts are volatile: overlayfs never syncs what containers write. A container does not
//     survive a power cut, and what must survive lies in volumes.
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

// ErrNotFound is Usage's and Remount's answer for an id that has no snapshot.
var ErrNotFound = errors.New("snapshot not found")

// Config is what snapshots need to know.
type Config struct {
	// Dir holds the snapshots; it is made when missing. It must lie on a file system that can be overlayfs' upper layer.
	Dir string
	// MappedDir is where snapshots for user namespaces are mounted: a directory, made when needed, that every user of the machine can
	// reach. Empty: there are none.
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

	turns keylock.Locks // by id
}

// Open prepares the directory, checks that overlayfs can work there, and clears what interrupted calls left half made.
// Whole snapshots stay, mounted or not.
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
	s := &Store{dir: dir, mapped: cfg.MappedDir, images: cfg.Images, log: cfg.Log}
	if s.feat, err = detect(dir); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	if err := s.clearHalfMade(); err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	return s, nil
}

func (s *Store) clearHalfMade() error {
	ids, err := s.List()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := os.Stat(filepath.Join(s.dir, id, "layers")); err == nil {
			continue
		}
		s.log.Info("removing half-made snapshot", "snapshot", id)
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

// List returns the ids of all snapshots, so that an owner can remove those it does not know.
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

// Path is where the root file system of id is or would be mounted.
func (s *Store) Path(id string) string { return filepath.Join(s.dir, id, "rootfs") }

// Prepare mounts a fresh root file system on img's layers and returns its path. Preparing an id that is there already
// returns it as it is, mounted. When it fails nothing stays.
func (s *Store) Prepare(ctx context.Context, id string, img image.Image) (rootfs string, err error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	defer s.turns.Lock(id)()
	rootfs = s.Path(id)
	if _, err := os.Stat(filepath.Join(s.dir, id, "layers")); err == nil {
		return rootfs, s.remount(id)
	}
	return s.prepare(ctx, id, img, nil)
}

// prepare runs with the id locked.
func (s *Store) prepare(ctx context.Context, id string, img image.Image, m *Mapping) (rootfs string, err error) {
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
	dir, rootfs := filepath.Join(s.dir, id), s.Path(id)
	for _, d := range []string{dir, filepath.Join(dir, "work"), filepath.Join(dir, "upper"), rootfs} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return "", fmt.Errorf("prepare snapshot: %w", err)
		}
	}
	// The upper directory's mode is the container's own "/".
	if err := os.Chmod(filepath.Join(dir, "upper"), 0o755); err != nil {
		return "", fmt.Errorf("prepare snapshot: %w", err)
	}
	chains := make([]string, len(img.Layers))
	for i, l := range img.Layers {
		chains[i] = l.ChainID
	}
	if m == nil {
		err = s.mount(id, chains)
	} else if err = s.makeReachable(id, m); err == nil {
		rootfs, err = s.mappedPath(id), s.mountMapped(id, chains, m)
	}
	if err != nil {
		return "", fmt.Errorf("prepare snapshot %s: %w", id, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "layers"), []byte(strings.Join(chains, "\n")), 0o600); err != nil {
		return "", fmt.Errorf("prepare snapshot: %w", err)
	}
	return rootfs, nil
}

// Remount mounts a snapshot that is there but not mounted, as after a reboot. ErrNotFound when there is none.
func (s *Store) Remount(_ context.Context, id string) (rootfs string, err error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	defer s.turns.Lock(id)()
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
	// A volatile mount that was cut short leaves a mark that forbids the next one. The container that wrote here ended with
	// it, so losing unsynced writes is all that can have happened.
	if err := removeTree(filepath.Join(s.dir, id), "work"); err != nil {
		return fmt.Errorf("mount snapshot: %w", err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, id, "work"), 0o700); err != nil {
		return fmt.Errorf("mount snapshot: %w", err)
	}
	return s.mount(id, strings.Fields(string(b)))
}

// Remove unmounts and deletes a snapshot and lets go of its layers. It is idempotent.
func (s *Store) Remove(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer s.turns.Lock(id)()
	return s.remove(ctx, id)
}

func (s *Store) remove(ctx context.Context, id string) error {
	dir := filepath.Join(s.dir, id)
	if err := s.removeMapped(id); err != nil {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	err := unix.Unmount(s.Path(id), unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		// Something outside the container still stands in it; it keeps what it has open, and the name is free.
		err = unix.Unmount(s.Path(id), unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove snapshot %s: unmount: %w", id, err)
	}
	// Without its list of layers the rest is leftovers, whatever happens from here on.
	if err := os.Remove(filepath.Join(dir, "layers")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	// Never through the mount point: were it mounted still, this fails and nothing is lost.
	if err := os.Remove(s.Path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	if err := removeTree(s.dir, id); err != nil {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	return s.images.Release(ctx, lease(id))
}

// Usage is what a container wrote: bytes on disk and inodes of the upper directory.
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
