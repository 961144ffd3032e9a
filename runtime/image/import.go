// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"keelson/runtime/image/archive"
	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

// Import reads images from a tar archive, plain or compressed by gzip or zstd: an OCI image layout, or the output of
// docker save (which may be both). Anything else is archive.ErrNotArchive. It returns the imported images; after an
// error none is imported. A plain archive in a file is read in place, anything else is first copied to the store's
// directory.
func (s *Store) Import(ctx context.Context, r io.Reader) ([]Image, error) {
	work, err := s.layers.begin("")
	if err != nil {
		return nil, err
	}
	defer work.end()
	a, err := archive.Open(ctx, r, work.dir.Name(), unpack.Limits{Bytes: s.layers.most, Space: s.layers.space})
	if err != nil {
		return nil, err
	}
	defer func() { _ = a.Close() }()
	plans, err := a.Plans(ctx, s.arch)
	if err != nil {
		return nil, err
	}
	named := make([]*manifest.Plan, len(plans))
	for i, p := range plans {
		open := func(_ context.Context, l manifest.Layer) (unpack.Source, error) { return p.Open(l) }
		err := work.fetchLayers(ctx, p.Plan, &meter{}, open)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(append(slices.Clone(p.Tags), p.ID), " "), err)
		}
		named[i] = p.Plan
	}
	return s.catalog.name(named, true, s.layers)
}
