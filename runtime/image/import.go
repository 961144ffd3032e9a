// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

// Import reads images from a tar archive, plain or compressed by gzip or zstd: an OCI image layout, or the output of
// docker save (which may be both). Anything else is ErrNotArchive. It returns the imported images; after an error none
// is imported. A plain archive in a file is read in place, anything else is first copied to the store's directory.
func (s *Store) Import(ctx context.Context, r io.Reader) ([]Image, error) {
	work, err := s.layers.begin("")
	if err != nil {
		return nil, err
	}
	defer work.end()
	a, err := openArchive(ctx, r, work.dir.Name(), unpack.Limits{Bytes: s.layers.most, Space: s.layers.space})
	if err != nil {
		return nil, err
	}
	defer func() { _ = a.Close() }()
	plans, err := plansOf(ctx, a, s.arch)
	if err != nil {
		return nil, err
	}
	named := make([]*manifest.Plan, len(plans))
	for i, p := range plans {
		err := work.fetchLayers(ctx, p.Plan, &meter{},
			func(_ context.Context, l manifest.Layer) (unpack.Source, error) {
				return p.open(l)
			})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(append(slices.Clone(p.Tags), p.ID), " "), err)
		}
		named[i] = p.Plan
	}
	return s.catalog.name(named, true, s.layers)
}

// importPlan is a plan and a function that opens its layers in the archive.
type importPlan struct {
	*manifest.Plan
	open func(manifest.Layer) (unpack.Source, error)
}

// plansOf reads index.json and manifest.json. An image that is in both gets the names of both.
func plansOf(ctx context.Context, a *tarFile, arch string) ([]importPlan, error) {
	var plans []importPlan
	add := func(p importPlan) {
		for i := range plans {
			if plans[i].ID == p.ID {
				plans[i].AddNamesOf(p.Plan)
				return
			}
		}
		plans = append(plans, p)
	}
	if a.has("index.json") {
		if err := ociPlans(ctx, a, arch, add); err != nil {
			return nil, err
		}
	}
	if a.has("manifest.json") {
		if err := dockerPlans(ctx, a, arch, add); err != nil {
			return nil, err
		}
	}
	if len(plans) == 0 {
		return nil, notArchive("it is a tar archive, but has neither index.json (OCI) nor manifest.json (docker); "+
			"docker export writes no image", nil)
	}
	return plans, nil
}

// ociPlans reads index.json. The name of a manifest is the annotation io.containerd.image.name, or
// org.opencontainers.image.ref.name when that is a full reference and not just a tag.
func ociPlans(ctx context.Context, a *tarFile, arch string, add func(importPlan)) error {
	if err := checkLayout(a); err != nil {
		return err
	}
	raw, err := a.bytes("index.json")
	if err != nil {
		return err
	}
	entries, err := manifest.ParseIndex(raw)
	if err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	var skipped error
	count := 0
	for _, entry := range entries {
		if !entry.IsImage() {
			continue
		}
		if err := entry.Refuse(arch); err != nil {
			skipped = err
			continue // its blobs may be missing
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := manifest.ReadEntry(ctx, a, entry, arch)
		if errors.Is(err, manifest.ErrNotFound) || errors.Is(err, manifest.ErrOtherPlatform) ||
			errors.Is(err, manifest.ErrArtifact) {
			skipped = err // an image for another platform, or an artifact, next to an image for this platform
			continue
		}
		if err != nil {
			return err
		}
		for _, n := range namesOf(entry.Annotations) {
			p.AddName(n, entry.Digest)
		}
		count++
		add(importPlan{Plan: p, open: func(l manifest.Layer) (unpack.Source, error) { return a.blob(l.Blob) }})
	}
	if count == 0 && skipped != nil {
		return skipped
	}
	return nil
}

// layoutVersion is the version of the OCI image layout that index.json is read by.
const layoutVersion = "1.0.0"

// checkLayout checks the version in oci-layout. Some tools do not write that file.
func checkLayout(a *tarFile) error {
	const name = "oci-layout"
	if !a.has(name) {
		return nil
	}
	raw, err := a.bytes(name)
	if err != nil {
		return err
	}
	var layout struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := json.Unmarshal(raw, &layout); err != nil || layout.Version != layoutVersion {
		return fmt.Errorf("%w: oci-layout does not name the version %s of the image layout", manifest.ErrInvalid,
			layoutVersion)
	}
	return nil
}

func namesOf(from manifest.Annotations) []manifest.Name {
	var out []manifest.Name
	if n, err := manifest.ParseName(from.Name); err == nil {
		return append(out, n)
	}
	ref := from.RefName
	if !strings.ContainsAny(ref, ":/@") {
		return nil // a tag without a repository
	}
	if n, err := manifest.ParseName(ref); err == nil {
		out = append(out, n)
	}
	return out
}

func dockerPlans(ctx context.Context, a *tarFile, arch string, add func(importPlan)) error {
	raw, err := a.bytes("manifest.json")
	if err != nil {
		return err
	}
	list, err := manifest.ParseDocker(raw)
	if err != nil {
		return err
	}
	for _, m := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := dockerPlan(a, arch, m)
		if err != nil {
			return err
		}
		add(p)
	}
	return nil
}

func dockerPlan(a *tarFile, arch string, m manifest.Docker) (importPlan, error) {
	raw, err := a.bytes(m.Config)
	if err != nil {
		return importPlan{}, err
	}
	c, err := manifest.ParseConfig(raw, arch)
	if err != nil {
		return importPlan{}, fmt.Errorf("%.300q: %w", m.Config, err)
	}
	blobs := make([]manifest.Descriptor, len(m.Layers))
	for i, f := range m.Layers {
		blobs[i].Size, _ = a.size(f)
	}
	steps, err := manifest.NewPlan(manifest.DigestOf(raw), c, len(raw), "manifest.json", blobs)
	if err != nil {
		return importPlan{}, err
	}
	files := map[string]string{} // chain id -> file
	for i, f := range m.Layers {
		if !a.has(f) {
			return importPlan{}, fmt.Errorf("%w: archive lacks %.300q", manifest.ErrInvalid, f)
		}
		files[steps.Layers[i].ChainID] = path.Clean(f)
	}
	for _, t := range m.RepoTags {
		n, err := manifest.ParseName(t)
		if err != nil {
			return importPlan{}, err
		}
		steps.AddName(n, "")
	}
	open := func(l manifest.Layer) (unpack.Source, error) { return a.open(files[l.ChainID]) }
	return importPlan{Plan: steps, open: open}, nil
}
