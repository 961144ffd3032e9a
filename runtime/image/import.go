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
	a, err := openArchive(ctx, r, work.dir.Name(), limits{bytes: s.layers.most, space: s.layers.space})
	if err != nil {
		return nil, err
	}
	defer func() { _ = a.Close() }()
	plans, err := plansOf(ctx, a, s.registries.arch)
	if err != nil {
		return nil, err
	}
	named := make([]*plan, len(plans))
	for i, p := range plans {
		err := work.fetchLayers(ctx, p.plan, &meter{}, func(_ context.Context, l Layer) (readVerifier, error) {
			return p.open(l)
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(append(slices.Clone(p.tags), p.id), " "), err)
		}
		p.pinned = true
		named[i] = p.plan
	}
	return s.catalog.name(named, s.layers)
}

// importPlan is a plan and a function that opens its layers in the archive.
type importPlan struct {
	*plan
	open func(Layer) (readVerifier, error)
}

// plansOf reads index.json and manifest.json. An image that is in both gets the names of both.
func plansOf(ctx context.Context, a *tarFile, arch string) ([]importPlan, error) {
	var plans []importPlan
	add := func(p importPlan) {
		for i := range plans {
			if plans[i].id == p.id {
				plans[i].tags = union(plans[i].tags, p.tags)
				plans[i].digests = union(plans[i].digests, p.digests)
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
	ix, err := parseDocument(raw, acceptedTypes[0]) // an OCI index, whatever it says
	if err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	var skipped error
	count := 0
	for _, entry := range ix.Manifests {
		if k := mediaKinds[entry.MediaType]; k != kindManifest && k != kindIndex {
			continue
		}
		if entry.Platform != nil && !entry.Platform.runsOn(arch) {
			_, skipped = choose([]descriptor{entry}, arch)
			continue // its blobs may be missing
		}
		p, err := ociPlan(ctx, a, arch, entry)
		if errors.Is(err, ErrNotFound) || errors.Is(err, errOtherPlatform) || errors.Is(err, errArtifact) {
			skipped = err // an image for another platform, or an artifact, next to an image for this platform
			continue
		}
		if err != nil {
			return err
		}
		for _, n := range namesOf(entry.Annotations) {
			p.tags = nonEmpty(append(p.tags, n.tagged())...)
			p.digests = append(p.digests, n.repo+"@"+entry.Digest)
		}
		count++
		add(p)
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
		return fmt.Errorf("%w: oci-layout does not name the version %s of the image layout", ErrInvalid, layoutVersion)
	}
	return nil
}

func ociPlan(ctx context.Context, a *tarFile, arch string, d descriptor) (importPlan, error) {
	if err := ctx.Err(); err != nil {
		return importPlan{}, err
	}
	raw, err := a.manifest(ctx, d.Digest)
	if err != nil {
		return importPlan{}, err
	}
	if err := d.checkSize(raw); err != nil {
		return importPlan{}, err
	}
	doc, err := resolve(ctx, a, raw, d.MediaType, arch)
	if err != nil {
		return importPlan{}, err
	}
	doc.chosen = doc.chosen || rankPlatform(d, arch) > 1
	p, err := readPlan(ctx, a, doc, arch)
	if err != nil {
		return importPlan{}, err
	}
	return importPlan{plan: p, open: func(l Layer) (readVerifier, error) { return a.blob(l.Blob) }}, nil
}

func namesOf(from annotations) []imageName {
	var out []imageName
	if n, err := parseName(from.Name); err == nil {
		return append(out, n)
	}
	ref := from.RefName
	if !strings.ContainsAny(ref, ":/@") {
		return nil // a tag without a repository
	}
	if n, err := parseName(ref); err == nil {
		out = append(out, n)
	}
	return out
}

// dockerManifest is one element of docker save's manifest.json.
type dockerManifest struct {
	Config   string
	RepoTags nameList
	Layers   nameList
}

func dockerPlans(ctx context.Context, a *tarFile, arch string, add func(importPlan)) error {
	raw, err := a.bytes("manifest.json")
	if err != nil {
		return err
	}
	if !json.Valid(raw) {
		return fmt.Errorf("%w: manifest.json is not JSON", ErrInvalid)
	}
	list, err := decodeList[dockerManifest](raw, maxManifests)
	if err != nil {
		return fmt.Errorf("%w: manifest.json: %w", ErrInvalid, err)
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

func dockerPlan(a *tarFile, arch string, m dockerManifest) (importPlan, error) {
	raw, err := a.bytes(m.Config)
	if err != nil {
		return importPlan{}, err
	}
	c, err := parseConfig(raw, arch)
	if err != nil {
		return importPlan{}, fmt.Errorf("%.300q: %w", m.Config, err)
	}
	if len(m.Layers) != len(c.RootFS.DiffIDs) {
		return importPlan{}, fmt.Errorf("%w: manifest.json has %d layers, config %d", ErrInvalid, len(m.Layers),
			len(c.RootFS.DiffIDs))
	}
	steps := &plan{id: digestOf(raw), config: c, size: int64(len(raw))}
	steps.setLayers()
	files := map[string]string{} // chain id -> file
	for i, f := range m.Layers {
		size, ok := a.size(f)
		if !ok {
			return importPlan{}, fmt.Errorf("%w: archive lacks %.300q", ErrInvalid, f)
		}
		steps.layers[i].Size = size
		steps.size += size
		files[steps.layers[i].ChainID] = path.Clean(f)
	}
	for _, t := range m.RepoTags {
		n, err := parseName(t)
		if err != nil {
			return importPlan{}, err
		}
		steps.tags = nonEmpty(append(steps.tags, n.tagged())...)
	}
	return importPlan{plan: steps, open: func(l Layer) (readVerifier, error) { return a.open(files[l.ChainID]) }}, nil
}
