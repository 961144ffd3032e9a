// SPDX-License-Identifier: Apache-2.0

package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
)

// imageName is a normalised reference: "docker.io/library/nginx" with either a tag or a digest.
type imageName struct {
	repo   string // host and path
	host   string
	path   string
	tag    string // empty when there is a digest, "latest" when neither was given
	digest string
}

// parseName normalises a reference as docker and containerd do: no host means docker.io, a single word is in library/.
func parseName(ref string) (imageName, error) {
	if isDigest(ref) { // it would parse as a tag of an image named sha256
		return imageName{}, fmt.Errorf("%w: %q is an id", ErrReference, ref)
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return imageName{}, fmt.Errorf("%w: %q: %w", ErrReference, ref, err)
	}
	n := imageName{repo: named.Name(), host: reference.Domain(named), path: reference.Path(named)}
	if d, ok := named.(reference.Digested); ok {
		n.digest = d.Digest().String()
		if !isDigest(n.digest) {
			return imageName{}, fmt.Errorf("%w: %q: only sha256 digests are supported", ErrReference, ref)
		}
	}
	if n.digest != "" {
		return n, nil // a tag in addition to a digest is ignored
	}
	n.tag = "latest"
	if t, ok := named.(reference.Tagged); ok {
		n.tag = t.Tag()
	}
	return n, nil
}

// String returns the full name, as the store and its errors use it.
func (n imageName) String() string {
	if n.digest != "" {
		return n.digested()
	}
	return n.tagged()
}

func (n imageName) tagged() string {
	if n.tag == "" {
		return ""
	}
	return n.repo + ":" + n.tag
}

func (n imageName) digested() string {
	if n.digest == "" {
		return ""
	}
	return n.repo + "@" + n.digest
}

func (n imageName) in(img *Image) bool {
	if n.digest != "" {
		return slices.Contains(img.RepoDigests, n.digested())
	}
	return slices.Contains(img.RepoTags, n.tagged())
}

// Normalize returns the full form of ref ("nginx" is "docker.io/library/nginx:latest"), or ErrReference when it is not
// an image name.
func Normalize(ref string) (string, error) {
	n, err := parseName(ref)
	if err != nil {
		return "", err
	}
	return n.String(), nil
}

func isDigest(d string) bool {
	h, ok := strings.CutPrefix(d, "sha256:")
	return ok && len(h) == 64 && strings.Trim(h, "0123456789abcdef") == ""
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// chainIDs computes the chain ids (OCI image specification, "Layer ChainID").
func chainIDs(diffIDs []string) []string {
	out := make([]string, len(diffIDs))
	for i, d := range diffIDs {
		if i == 0 {
			out[i] = d
			continue
		}
		out[i] = digestOf([]byte(out[i-1] + " " + d))
	}
	return out
}
