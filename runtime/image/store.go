// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"keelson/lib/shares"
	"keelson/runtime/image/manifest"
	"keelson/runtime/image/registry"
	"keelson/runtime/image/unpack"
)

// ErrBuiltin is the error of removing a built-in image.
var ErrBuiltin = errors.New("is built into keelson")

// maxTenants bounds the downloads of tenants beyond Config.Downloads, and so the helper processes.
const maxTenants = 8

// Config configures a Store. Zero values of optional fields mean defaults.
type Config struct {
	// Dir is the store's directory; Open makes it. It must not be on overlayfs if the layers will be mounted.
	Dir string
	// Registries say from where images are pulled.
	Registries registry.Settings
	// Builtin is an image that is always present; may be nil.
	Builtin *Builtin
	// MaxLayerBytes bounds the size of one unpacked layer; 0 means 128 GiB.
	MaxLayerBytes int64
	// ReserveBytes is the space that pulls and imports leave free on Dir's file system; 0 means a twentieth of it, 128
	// MiB to 4 GiB.
	ReserveBytes int64
	// Helper is the command line of a program that calls ServeHelper: pulls run in such processes then. Empty: in this
	// one.
	Helper []string
	// Downloads is the maximum of a tenant's concurrent downloads, and of all tenants' beyond one for each; 0 means 4.
	Downloads int
	Log       *slog.Logger

	lockPatience time.Duration // 0 means lockPatience
}

// Image is one image of the store. It is shared and immutable.
type Image struct {
	ID          string              `json:"id"` // digest of the config, "sha256:..."
	RepoTags    []string            `json:"repoTags,omitempty"`
	RepoDigests []string            `json:"repoDigests,omitempty"`
	Size        int64               `json:"size"` // bytes as transferred
	Created     *time.Time          `json:"created,omitempty"`
	Config      ocispec.ImageConfig `json:"config"`
	Layers      []manifest.Layer    `json:"layers"`
	// Pinned images are never removed by the kubelet's garbage collection: the built-in one, and those that were
	// imported and never pulled, which no registry may have.
	Pinned bool `json:"pinned,omitempty"`
}

// Usage is the disk usage of a directory.
type Usage struct {
	Dir    string
	Bytes  int64
	Inodes int64
}

// Store is the image store. It is safe for concurrent use, also by several processes on one directory.
type Store struct {
	paths
	locks      *locks
	catalog    *catalog
	builtin    *builtin
	leases     *leases
	collector  *collector
	layers     *layers
	registries *registry.Registries
	arch       string // of this machine
	flights    *flights
	helpers    *helpers // nil: pulls run in this process
	log        *slog.Logger
}

// Open opens the store and makes missing directories. It unpacks nothing and starts nothing.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.MaxLayerBytes = cmp.Or(cfg.MaxLayerBytes, 128<<30)
	cfg.lockPatience = cmp.Or(cfg.lockPatience, lockPatience)
	cfg.Downloads = cmp.Or(cfg.Downloads, 4)
	registries, err := registry.New(cfg.Registries)
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	paths, err := makePaths(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = paths.dir
	processes := newProcesses(cfg.Log)
	locks := &locks{paths: paths, patience: cfg.lockPatience, processes: processes}
	catalog := &catalog{file: paths.path("images.json"), locks: locks}
	builtin := &builtin{source: cfg.Builtin, cache: paths.path("builtin.json"), log: cfg.Log}
	leases := &leases{paths: paths, locks: locks}
	collector := &collector{
		paths:   paths,
		locks:   locks,
		catalog: catalog,
		leases:  leases,
		builtin: builtin,
		log:     cfg.Log,
	}
	store := &Store{
		paths:     paths,
		locks:     locks,
		catalog:   catalog,
		builtin:   builtin,
		leases:    leases,
		collector: collector,
		layers: &layers{
			paths:     paths,
			locks:     locks,
			space:     unpack.NewSpace(paths.dir, cfg.ReserveBytes, collector.makeRoom),
			most:      cfg.MaxLayerBytes,
			downloads: shares.New(cfg.Downloads, cfg.Downloads+maxTenants),
			windows:   unpack.NewWindows(),
		},
		registries: registries,
		arch:       runtime.GOARCH,
		flights:    &flights{byKey: map[string]*flight{}, running: map[*flight]struct{}{}},
		log:        cfg.Log,
	}
	if len(cfg.Helper) > 0 {
		store.helpers = newHelpers(cfg, processes, collector.collectDead)
	}
	if _, err := catalog.read(); err != nil {
		return nil, err
	}
	return store, nil
}

// Get finds an image by name (tag or digest), id, or unique prefix of an id. It also returns a built-in image that is
// not unpacked yet (see Ensure).
func (s *Store) Get(ref string) (Image, bool) {
	if img, ok := s.builtin.get(ref); ok {
		return img, true
	}
	ix, err := s.catalog.read()
	if err != nil {
		s.log.Error("image index unreadable", "error", err)
		return Image{}, false
	}
	img, ok := ix.find(ref)
	if !ok {
		return Image{}, false
	}
	return *img, true
}

// List returns all images in a stable order, the newest last.
func (s *Store) List() []Image {
	ix, err := s.catalog.read()
	if err != nil {
		s.log.Error("image index unreadable", "error", err)
		ix = &index{}
	}
	out := make([]Image, 0, len(ix.Images)+1)
	builtin, has := s.builtin.get("")
	if has {
		out = append(out, builtin)
	}
	for _, img := range ix.Images {
		if has && img.ID == builtin.ID {
			continue
		}
		out = append(out, *img)
	}
	return out
}

// Remove removes a name, and the image with its last name; with an id it removes the image and all its names. Layers
// that a container uses stay until Release. It returns ErrNotFound or ErrBuiltin.
func (s *Store) Remove(ctx context.Context, ref string) error {
	if _, ok := s.builtin.get(ref); ok {
		return fmt.Errorf("remove image %s: it %w", ref, ErrBuiltin)
	}
	err := s.catalog.update(func(ix *index) error {
		if !ix.remove(ref) {
			return manifest.ErrNotFound
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	return s.GC(ctx)
}

// FsInfo returns the disk usage of the images, computed from the index.
func (s *Store) FsInfo() (Usage, error) {
	ix, err := s.catalog.read()
	if err != nil {
		return Usage{}, err
	}
	usage := Usage{Dir: s.dir}
	seen := map[string]bool{}
	add := func(img *Image) {
		for _, l := range img.Layers {
			if !seen[l.ChainID] {
				seen[l.ChainID] = true
				usage.Bytes += l.Disk
				usage.Inodes += l.Inodes
			}
		}
	}
	for _, img := range ix.Images {
		add(img)
	}
	if b := s.builtin.known.Load(); b != nil {
		add(b)
	}
	return usage, nil
}

// Hold leases layers for a snapshot: they stay until Release, even if their image is removed. id is a file name; a
// second Hold replaces the first. It returns ErrNotFound when a layer does not exist.
func (s *Store) Hold(id string, layers []manifest.Layer) error { return s.leases.hold(id, layers) }

// Release ends a Hold and collects the layers that no image and no other lease names. It is idempotent.
func (s *Store) Release(ctx context.Context, id string) error {
	chains, err := s.leases.release(id)
	if err != nil {
		return err
	}
	return s.collector.collectUnnamed(ctx, chains)
}

// Leases lists the ids of all leases, so that the caller can release those without a snapshot.
func (s *Store) Leases() ([]string, error) { return s.leases.ids() }

// GC deletes the layers that no image, lease or work names, and the unfinished work of processes that died.
func (s *Store) GC(ctx context.Context) error { return s.collector.collect(ctx) }
