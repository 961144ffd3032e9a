// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// Name is a normalised reference: "docker.io/library/nginx" with either a tag or a digest.
type Name struct {
	Repo   string // host and path
	Host   string
	Path   string
	Tag    string // empty when there is a digest, "latest" when neither was given
	Digest string
}

// ParseName normalises a reference as docker and containerd do: no host means docker.io, a single word is in library/.
func ParseName(ref string) (Name, error) {
	if IsDigest(ref) { // it would parse as a tag of an image named sha256
		return Name{}, fmt.Errorf("%w: %q is an id", ErrReference, ref)
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return Name{}, fmt.Errorf("%w: %q: %w", ErrReference, ref, err)
	}
	n := Name{Repo: named.Name(), Host: reference.Domain(named), Path: reference.Path(named)}
	if d, ok := named.(reference.Digested); ok {
		n.Digest = d.Digest().String()
		if !IsDigest(n.Digest) {
			return Name{}, fmt.Errorf("%w: %q: only sha256 digests are supported", ErrReference, ref)
		}
	}
	if n.Digest != "" {
		return n, nil // a tag in addition to a digest is ignored
	}
	n.Tag = "latest"
	if t, ok := named.(reference.Tagged); ok {
		n.Tag = t.Tag()
	}
	return n, nil
}

// String returns the full name, as the store and its errors use it.
func (n Name) String() string {
	if n.Digest != "" {
		return n.Repo + "@" + n.Digest
	}
	return n.Repo + ":" + n.Tag
}

// IsDigest reports whether d is a sha256 digest.
func IsDigest(d string) bool {
	h, ok := strings.CutPrefix(d, "sha256:")
	return ok && len(h) == 64 && strings.Trim(h, "0123456789abcdef") == ""
}

// HexOf returns the hex digits of a digest, which are a file name.
func HexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// DigestOf returns the digest of b.
func DigestOf(b []byte) string {
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
		out[i] = DigestOf([]byte(out[i-1] + " " + d))
	}
	return out
}
