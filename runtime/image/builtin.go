// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

// Builtin is an image whose content is part of the program. Its tags can be neither pulled nor removed.
type Builtin struct {
	// Tags are full names: "keelson.local/hello:latest".
	Tags []string
	// Stamp identifies the result of Load, without loading. The store caches the digests by it, because Load takes tens
	// of milliseconds.
	Stamp string
	Load  func() (*BuiltinImage, error)
}

// BuiltinImage is a built-in image in detail.
type BuiltinImage struct {
	ID      string // digest of the config
	Config  ocispec.ImageConfig
	Created *time.Time
	DiffID  string // of its single layer
	Size    int64
	// Layer opens the layer's plain tar.
	Layer func() (io.ReadCloser, error)
}

// builtinCache is builtin.json: the description of the image that Load returned for a stamp.
type builtinCache struct {
	Stamp string `json:"stamp"`
	Image Image  `json:"image"`
}

func (b *Builtin) image(builtinImage *BuiltinImage) *Image {
	return &Image{
		ID:       builtinImage.ID,
		RepoTags: b.Tags,
		Size:     builtinImage.Size,
		Created:  builtinImage.Created,
		Config:   builtinImage.Config,
		Pinned:   true,
		Layers: []manifest.Layer{{
			ChainID: builtinImage.DiffID,
			DiffID:  builtinImage.DiffID,
			Size:    builtinImage.Size,
			Boot:    bootID(),
		}},
	}
}

// named reports whether ref is one of the tags.
func (b *Builtin) named(ref string) bool {
	n, err := manifest.ParseName(ref)
	return err == nil && n.Digest == "" && slices.Contains(b.Tags, n.String())
}

// local reports whether the name belongs to the built-in image's repository, for which no registry is asked.
func (b *Builtin) local(n manifest.Name) bool {
	if b == nil {
		return false
	}
	for _, t := range b.Tags {
		if host, _, ok := strings.Cut(t, "/"); ok && host == n.Host {
			return true
		}
	}
	return false
}

// builtin is the built-in image: it is described without loading it, and unpacked when it is first used.
type builtin struct {
	source *Builtin // nil: there is none
	cache  string   // the file builtin.json
	log    *slog.Logger

	known atomic.Pointer[Image]

	mu       sync.Mutex    // held while the image is loaded or unpacked
	unpacked bool          // its layer is on disk
	loaded   *BuiltinImage // set between describe and unpacking
}

// describe returns the built-in image without unpacking it.
func (b *builtin) describe() (*Image, error) {
	if img := b.known.Load(); img != nil {
		return img, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.describeLocked()
}

func (b *builtin) describeLocked() (*Image, error) {
	if img := b.known.Load(); img != nil {
		return img, nil
	}
	source := b.source
	var r builtinCache
	raw, err := os.ReadFile(b.cache)
	if err == nil && json.Unmarshal(raw, &r) == nil && r.Stamp == source.Stamp && r.Image.check() == nil &&
		len(r.Image.Layers) == 1 {
		r.Image.RepoTags = source.Tags
		r.Image.Layers[0].Boot = bootID()
		b.known.Store(&r.Image)
		return &r.Image, nil
	}
	l, err := source.Load()
	if err != nil {
		return nil, fmt.Errorf("built-in image %s: %w", source.Tags[0], err)
	}
	b.loaded = l
	img := source.image(l)
	if raw, err = json.Marshal(builtinCache{source.Stamp, *img}); err == nil && source.Stamp != "" {
		err = replaceFile(b.cache, raw)
	}
	if err != nil { // the next start calls Load again
		b.log.Warn("description of built-in image not saved", "error", err)
	}
	b.known.Store(img)
	return img, nil
}

// get returns the built-in image if ref names it or is empty.
func (b *builtin) get(ref string) (Image, bool) {
	source := b.source
	if source == nil || ref != "" && !source.named(ref) && !looksLikeID(ref) {
		return Image{}, false
	}
	img, err := b.describe()
	if err != nil {
		b.log.Warn("built-in image unusable", "error", err)
		return Image{}, false
	}
	if ref == "" || source.named(ref) || ref == img.ID ||
		looksLikeID(ref) && strings.HasPrefix(manifest.HexOf(img.ID), manifest.HexOf(ref)) {
		return *img, true
	}
	return Image{}, false
}

// ensure calls unpack for the image, once. Another image is returned as it is. load returns the image's content.
func (b *builtin) ensure(
	ctx context.Context, img Image,
	unpack func(ctx context.Context, img Image, load func() (*BuiltinImage, error)) (Image, error),
) (Image, error) {
	if b.source == nil || !img.Pinned {
		return img, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	known, err := b.describeLocked()
	if err != nil || known.ID != img.ID {
		return img, err
	}
	if b.unpacked {
		return *known, nil
	}
	out, err := unpack(ctx, *known, b.load)
	if err != nil {
		return Image{}, fmt.Errorf("unpack built-in image %s: %w", b.source.Tags[0], err)
	}
	b.known.Store(&out)
	b.unpacked = true
	b.loaded = nil
	return out, nil
}

// load loads the image, unless describe had to.
func (b *builtin) load() (*BuiltinImage, error) {
	if b.loaded != nil {
		return b.loaded, nil
	}
	return b.source.Load()
}

// looksLikeID reports whether ref can be a digest or a prefix of one.
func looksLikeID(ref string) bool {
	h := manifest.HexOf(ref)
	return len(h) >= 4 && len(h) <= 64 && strings.Trim(h, "0123456789abcdef") == ""
}

// Ensure unpacks the built-in image if its layer is not on disk. Other images are returned as they are.
func (s *Store) Ensure(ctx context.Context, img Image) (Image, error) {
	return s.builtin.ensure(ctx, img, s.unpackBuiltin)
}

// EnsureBuiltin unpacks the built-in image, if there is one, so that the first container need not wait for it.
func (s *Store) EnsureBuiltin(ctx context.Context) error {
	if s.builtin.source == nil {
		return nil
	}
	img, err := s.builtin.describe()
	if err == nil {
		_, err = s.Ensure(ctx, *img)
	}
	return err
}

func (s *Store) unpackBuiltin(
	ctx context.Context, img Image, load func() (*BuiltinImage, error),
) (Image, error) {
	work, err := s.layers.begin("")
	if err != nil {
		return Image{}, err
	}
	defer work.end()
	if _, _, err := work.need(img.Layers); err != nil {
		return Image{}, err
	}
	layer, err := work.addLayer(ctx, img.Layers[0], nil, nil, func(context.Context) (unpack.Source, error) {
		b, err := load()
		if err != nil {
			return nil, err
		}
		rc, err := b.Layer()
		return unpack.Trusted{ReadCloser: rc}, err
	})
	if err != nil {
		return Image{}, err
	}
	img.Layers = []manifest.Layer{layer}
	return img, s.holdBuiltin(ctx, img)
}

// holdBuiltin leases the layer of the built-in image, so that a process of another program version does not collect it,
// and releases that of an earlier version.
func (s *Store) holdBuiltin(ctx context.Context, img Image) error {
	const prefix = "builtin-"
	id := prefix + manifest.HexOf(img.ID)[:16]
	if err := s.Hold(id, img.Layers); err != nil {
		return err
	}
	leases, err := s.Leases()
	if err != nil {
		return err
	}
	for _, l := range leases {
		if strings.HasPrefix(l, prefix) && l != id {
			if err := s.Release(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}
