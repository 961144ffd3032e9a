// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"slices"
)

// plan is an image whose manifest and config are read, but whose layers are not.
type plan struct {
	id      string
	config  *config
	size    int64
	layers  []Layer
	tags    []string
	digests []string
	pinned  bool // it was imported: no registry may have it
}

// readPlan reads the config that a manifest names and checks that they match, and that the image runs on arch.
func readPlan(ctx context.Context, from documents, manifest *document, arch string) (*plan, error) {
	if !slices.Contains(configTypes, manifest.Config.MediaType) {
		return nil, errArtifact
	}
	if size := manifest.Config.Size; size > maxDocument {
		return nil, fmt.Errorf("%w: config of %d bytes, at most %d are allowed", ErrInvalid, size, maxDocument)
	}
	raw, err := from.config(ctx, manifest.Config.Digest)
	if err != nil {
		return nil, err
	}
	if err := manifest.Config.checkSize(raw); err != nil {
		return nil, err
	}
	if manifest.chosen {
		arch = ""
	}
	c, err := parseConfig(raw, arch)
	if err != nil {
		return nil, err
	}
	if len(manifest.Layers) != len(c.RootFS.DiffIDs) {
		return nil, fmt.Errorf("%w: manifest has %d layers, config %d", ErrInvalid, len(manifest.Layers),
			len(c.RootFS.DiffIDs))
	}
	p := &plan{id: manifest.Config.Digest, config: c, size: int64(len(raw))}
	p.setLayers()
	for i, l := range manifest.Layers {
		if l.Size < 0 || l.Size > maxBlob || !isDigest(l.Digest) {
			return nil, fmt.Errorf("%w: layer of %d bytes, or without a sha256 digest", ErrInvalid, l.Size)
		}
		p.layers[i].Blob = l.Digest
		p.layers[i].Size = l.Size
		p.size += l.Size
	}
	return p, nil
}

func (p *plan) setLayers() {
	diffs := p.config.RootFS.DiffIDs
	p.layers = make([]Layer, len(diffs))
	for i, chain := range chainIDs(diffs) {
		p.layers[i] = Layer{ChainID: chain, DiffID: diffs[i]}
	}
}

func (p *plan) image() *Image {
	return &Image{
		ID:          p.id,
		RepoTags:    p.tags,
		RepoDigests: p.digests,
		Size:        p.size,
		Created:     p.config.Created,
		Config:      p.config.kept(),
		Layers:      p.layers,
		Pinned:      p.pinned,
	}
}

func nonEmpty(s ...string) []string {
	return slices.DeleteFunc(s, func(x string) bool { return x == "" })
}
