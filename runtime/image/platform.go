// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// errOtherPlatform means a valid image for another platform.
var errOtherPlatform = fmt.Errorf("%w: no match for platform", ErrInvalid)

const (
	maxConfig     = 8 << 20
	maxLayers     = 500 // overlayfs' limit
	maxIndexDepth = 3
)

// choose selects the image of an index that runs on linux/arch.
func choose(ix v1.ImageIndex, arch string, depth int) (v1.Image, error) {
	if depth == maxIndexDepth {
		return nil, fmt.Errorf("%w: index within index, %d deep", ErrInvalid, depth)
	}
	indexManifest, err := ix.IndexManifest()
	if err != nil {
		return nil, err
	}
	best := -1
	rank := 0
	var has []string
	for i, d := range indexManifest.Manifests {
		if r := rankPlatform(d, arch); r > rank {
			best = i
			rank = r
		}
		if d.Platform != nil && d.Platform.OS != "unknown" {
			has = append(has, d.Platform.String())
		}
	}
	if best < 0 {
		return nil, fmt.Errorf("%w: no image for platform linux/%s in manifest list (it has %s)", ErrNotFound, arch,
			strings.Join(has, ", "))
	}
	d := indexManifest.Manifests[best]
	if d.MediaType.IsIndex() {
		sub, err := ix.ImageIndex(d.Digest)
		if err != nil {
			return nil, err
		}
		return choose(sub, arch, depth+1)
	}
	return ix.Image(d.Digest)
}

// rankPlatform returns 0 for a manifest that cannot run on arch. The highest rank is chosen, the first among equals.
func rankPlatform(d v1.Descriptor, arch string) int {
	if !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
		return 0
	}
	p := d.Platform
	switch {
	case p == nil:
		return 1 // no platform given; the config is checked later
	case p.OS != "linux" || p.Architecture != arch:
		return 0
	case p.Variant == "" || p.Variant == "v8" || p.Variant == "v7" || p.Variant == "v1":
		return 4
	case arch == "arm": // v5 and v6 images run on v7
		return 3
	}
	return 2 // a variant that this CPU may not support
}

// readConfig reads an image's config and checks it against the manifest and this machine's platform.
func readConfig(img v1.Image, arch string) (ocispec.Image, []byte, error) {
	raw, err := img.RawConfigFile()
	if err != nil {
		return ocispec.Image{}, nil, err
	}
	if len(raw) > maxConfig {
		return ocispec.Image{}, nil, fmt.Errorf("%w: config of %d bytes", ErrInvalid, len(raw))
	}
	var c ocispec.Image
	if err := json.Unmarshal(raw, &c); err != nil {
		return ocispec.Image{}, nil, fmt.Errorf("%w: config: %w", ErrInvalid, err)
	}
	return c, raw, checkConfig(&c, arch)
}

func checkConfig(c *ocispec.Image, arch string) error {
	if c.OS != "" && c.OS != "linux" || c.Architecture != "" && c.Architecture != arch {
		return fmt.Errorf("%w: image is for %s/%s, this node is linux/%s", errOtherPlatform, c.OS, c.Architecture, arch)
	}
	if len(c.RootFS.DiffIDs) > maxLayers {
		return fmt.Errorf("%w: %d layers, overlayfs stacks at most %d", ErrInvalid, len(c.RootFS.DiffIDs), maxLayers)
	}
	for _, d := range c.RootFS.DiffIDs {
		if !isDigest(string(d)) {
			return fmt.Errorf("%w: layer digest %q in config", ErrInvalid, d)
		}
	}
	return nil
}
