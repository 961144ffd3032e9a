// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"keelson/runtime/image/manifest"
	"keelson/runtime/image/unpack"
)

// Plan is the plan of an image in an archive. Open opens one of its layers.
type Plan struct {
	*manifest.Plan
	Open func(manifest.Layer) (unpack.Source, error)
}

// Plans reads index.json and manifest.json, and returns the images for linux/arch. One that is in both gets the names
// of both. An archive without images is ErrNotArchive.
func (t *File) Plans(ctx context.Context, arch string) ([]Plan, error) {
	var plans []Plan
	add := func(p Plan) {
		for i := range plans {
			if plans[i].ID == p.ID {
				plans[i].AddNamesOf(p.Plan)
				return
			}
		}
		plans = append(plans, p)
	}
	if t.has("index.json") {
		if err := t.ociPlans(ctx, arch, add); err != nil {
			return nil, err
		}
	}
	if t.has("manifest.json") {
		if err := t.dockerPlans(ctx, arch, add); err != nil {
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
func (t *File) ociPlans(ctx context.Context, arch string, add func(Plan)) error {
	if err := t.checkLayout(); err != nil {
		return err
	}
	raw, err := t.bytes("index.json")
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
		p, err := manifest.ReadEntry(ctx, t, entry, arch)
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
		add(Plan{Plan: p, Open: func(l manifest.Layer) (unpack.Source, error) { return t.blob(l.Blob) }})
	}
	if count == 0 && skipped != nil {
		return skipped
	}
	return nil
}

// layoutVersion is the version of the OCI image layout that index.json is read by.
const layoutVersion = "1.0.0"

// checkLayout checks the version in oci-layout. Some tools do not write that file.
func (t *File) checkLayout() error {
	const name = "oci-layout"
	if !t.has(name) {
		return nil
	}
	raw, err := t.bytes(name)
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

func (t *File) dockerPlans(ctx context.Context, arch string, add func(Plan)) error {
	raw, err := t.bytes("manifest.json")
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
		p, err := t.dockerPlan(arch, m)
		if err != nil {
			return err
		}
		add(p)
	}
	return nil
}

func (t *File) dockerPlan(arch string, m manifest.Docker) (Plan, error) {
	raw, err := t.bytes(m.Config)
	if err != nil {
		return Plan{}, err
	}
	c, err := manifest.ParseConfig(raw, arch)
	if err != nil {
		return Plan{}, fmt.Errorf("%.300q: %w", m.Config, err)
	}
	blobs := make([]manifest.Descriptor, len(m.Layers))
	for i, f := range m.Layers {
		blobs[i].Size, _ = t.size(f)
	}
	plan, err := manifest.NewPlan(manifest.DigestOf(raw), c, len(raw), "manifest.json", blobs)
	if err != nil {
		return Plan{}, err
	}
	files := map[string]string{} // chain id -> file
	for i, f := range m.Layers {
		if !t.has(f) {
			return Plan{}, fmt.Errorf("%w: archive lacks %.300q", manifest.ErrInvalid, f)
		}
		files[plan.Layers[i].ChainID] = path.Clean(f)
	}
	for _, tag := range m.RepoTags {
		n, err := manifest.ParseName(tag)
		if err != nil {
			return Plan{}, err
		}
		plan.AddName(n, "")
	}
	open := func(l manifest.Layer) (unpack.Source, error) { return t.open(files[l.ChainID]) }
	return Plan{Plan: plan, Open: open}, nil
}
