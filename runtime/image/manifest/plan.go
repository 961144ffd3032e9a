// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"fmt"
	"slices"
)

// Layer is one layer of an image, lowest first in its lists. Digests are "sha256:<64 hex digits>". What is on disk is
// known when the layer is unpacked.
type Layer struct {
	ChainID string `json:"chainID"` // identifies this layer and those below it; the directory's name
	DiffID  string `json:"diffID"`  // of the uncompressed tar
	Blob    string `json:"blob,omitempty"`
	Size    int64  `json:"size"`   // bytes as transferred
	Disk    int64  `json:"disk"`   // bytes on disk, unpacked
	Inodes  int64  `json:"inodes"` // on disk, unpacked
	// Boot is set on the built-in image's layer, which is not synced: it is valid in the boot with this id only.
	Boot string `json:"boot,omitempty"`
}

// Plan is an image whose manifest and config are read, but whose layers are not.
type Plan struct {
	ID      string
	Config  *Config
	Size    int64
	Layers  []Layer
	Tags    []string
	Digests []string
}

// NewPlan returns the plan of an image with a config of size bytes. The blobs of its layers are listed by from, lowest
// first.
func NewPlan(id string, config *Config, size int, from string, blobs []Descriptor) (*Plan, error) {
	diffs := config.RootFS.DiffIDs
	if len(blobs) != len(diffs) {
		return nil, fmt.Errorf("%w: %s has %d layers, config %d", ErrInvalid, from, len(blobs), len(diffs))
	}
	p := &Plan{
		ID:     id,
		Config: config,
		Size:   int64(size),
		Layers: make([]Layer, len(diffs)),
	}
	for i, chain := range chainIDs(diffs) {
		p.Layers[i] = Layer{
			ChainID: chain,
			DiffID:  diffs[i],
			Blob:    blobs[i].Digest,
			Size:    blobs[i].Size,
		}
		p.Size += blobs[i].Size
	}
	return p, nil
}

// ReadPlan reads what an image for linux/arch consists of: from its manifest or index raw, which was announced as
// mediaType, and the documents that this names.
func ReadPlan(ctx context.Context, from Documents, raw []byte, mediaType, arch string) (*Plan, error) {
	manifest, err := resolve(ctx, from, raw, mediaType, false, arch)
	if err != nil {
		return nil, err
	}
	return planOf(ctx, from, manifest, arch)
}

// ReadEntry is ReadPlan for an image that an index names.
func ReadEntry(ctx context.Context, from Documents, entry Descriptor, arch string) (*Plan, error) {
	raw, err := entry.read(ctx, from)
	if err != nil {
		return nil, err
	}
	manifest, err := resolve(ctx, from, raw, entry.MediaType, entry.Platform != nil, arch)
	if err != nil {
		return nil, err
	}
	return planOf(ctx, from, manifest, arch)
}

// planOf reads the config that a manifest names and checks that they match, and that the image runs on arch.
func planOf(ctx context.Context, from Documents, manifest *document, arch string) (*Plan, error) {
	if !slices.Contains(configTypes, manifest.Config.MediaType) {
		return nil, ErrArtifact
	}
	if size := manifest.Config.Size; size > MaxDocument {
		return nil, fmt.Errorf("%w: config of %d bytes, at most %d are allowed", ErrInvalid, size, MaxDocument)
	}
	raw, err := from.Config(ctx, manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	if err := manifest.Config.checkSize(raw); err != nil {
		return nil, err
	}
	if manifest.chosen {
		arch = "" // what the index says of the platform counts more than the config
	}
	config, err := ParseConfig(raw, arch)
	if err != nil {
		return nil, err
	}
	p, err := NewPlan(manifest.Config.Digest, config, len(raw), "manifest", manifest.Layers)
	if err != nil {
		return nil, err
	}
	for _, l := range manifest.Layers {
		if l.Size < 0 || l.Size > maxBlob || !IsDigest(l.Digest) {
			return nil, fmt.Errorf("%w: layer of %d bytes, or without a sha256 digest", ErrInvalid, l.Size)
		}
	}
	return p, nil
}

// AddName gives the image a name, and its digest in the name's repository; digest may be empty.
func (p *Plan) AddName(n Name, digest string) {
	if n.Tag != "" {
		p.Tags = append(p.Tags, n.String())
	}
	if digest != "" {
		p.Digests = append(p.Digests, n.Repo+"@"+digest)
	}
}

// AddNamesOf gives the image the names of another plan too.
func (p *Plan) AddNamesOf(other *Plan) {
	p.Tags = Union(p.Tags, other.Tags)
	p.Digests = Union(p.Digests, other.Digests)
}

// Union returns the names in a or b, sorted. It may change a.
func Union(a, b []string) []string {
	for _, x := range b {
		if !slices.Contains(a, x) {
			a = append(a, x)
		}
	}
	slices.Sort(a)
	return a
}
