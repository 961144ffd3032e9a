// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits of the documents that registries and archives send. A document is bounded before it is read, its lists while
// they are read: an empty element takes three bytes of JSON and hundreds of memory.
const (
	MaxDocument   = 4 << 20 // bytes of a manifest, an index or a config, as in other runtimes
	maxLayers     = 500     // overlayfs' limit
	maxManifests  = 1000    // of an index
	maxNames      = 1000    // of one image in an archive
	maxIndexDepth = 3
	maxBlob       = 1 << 44 // bytes that a descriptor may claim
)

// errTooMany is the error of a list with too many elements.
var errTooMany = errors.New("too many elements")

// decodeList decodes a JSON array of at most limit elements. A value that is no array is an error. null is nil; an
// empty array is not.
func decodeList[T any](raw []byte, limit int) ([]T, error) {
	if string(raw) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('[') {
		return nil, errors.Join(errors.New("not a list"), err)
	}
	out := []T{}
	for dec.More() {
		if len(out) == limit {
			return nil, fmt.Errorf("%w: more than %d", errTooMany, limit)
		}
		var next T
		if err := dec.Decode(&next); err != nil {
			return nil, err
		}
		out = append(out, next)
	}
	return out, nil
}

// decodeOnce decodes a list of at most limit elements into out. A second list of the same name is refused: each would
// cost memory.
func decodeOnce[T any](out *[]T, raw []byte, limit int) (err error) {
	if *out != nil {
		return errors.New("given twice")
	}
	*out, err = decodeList[T](raw, limit)
	return err
}

type (
	layerList    []Descriptor // of a manifest
	manifestList []Descriptor // of an index
	diffIDList   []string     // of a config
	nameList     []string     // of docker save's manifest.json
)

// UnmarshalJSON reads at most maxLayers descriptors.
func (l *layerList) UnmarshalJSON(raw []byte) error {
	return decodeOnce((*[]Descriptor)(l), raw, maxLayers)
}

// UnmarshalJSON reads at most maxManifests descriptors.
func (l *manifestList) UnmarshalJSON(raw []byte) error {
	return decodeOnce((*[]Descriptor)(l), raw, maxManifests)
}

// UnmarshalJSON reads at most maxLayers digests.
func (l *diffIDList) UnmarshalJSON(raw []byte) error {
	return decodeOnce((*[]string)(l), raw, maxLayers)
}

// UnmarshalJSON reads at most maxNames names.
func (l *nameList) UnmarshalJSON(raw []byte) error {
	return decodeOnce((*[]string)(l), raw, maxNames)
}

// Descriptor refers to a document or a layer. It has the fields of an OCI descriptor that are used: the
// others cost no memory.
type Descriptor struct {
	MediaType   string      `json:"mediaType"`
	Digest      string      `json:"digest"`
	Size        int64       `json:"size"`
	Platform    *platform   `json:"platform"`
	Annotations Annotations `json:"annotations"`
}

type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
}

// Annotations are those that name an image in an archive.
type Annotations struct {
	Name    string `json:"io.containerd.image.name"`
	RefName string `json:"org.opencontainers.image.ref.name"`
}

// document is a manifest or an index.
type document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        Descriptor   `json:"config"`
	Layers        layerList    `json:"layers"`
	Manifests     manifestList `json:"manifests"`

	kind kindOf // kindManifest or kindIndex
	// chosen: an index says that this manifest is for the node's platform. The platform in its config does
	// not matter then.
	chosen bool
}

// kindOf says what a media type stands for.
type kindOf int

const (
	kindOther kindOf = iota
	kindManifest
	kindIndex
	kindSchema1
)

// mediaKinds are the media types that are understood.
var mediaKinds = map[string]kindOf{
	"application/vnd.oci.image.manifest.v1+json":                kindManifest,
	"application/vnd.docker.distribution.manifest.v2+json":      kindManifest,
	"application/vnd.oci.image.index.v1+json":                   kindIndex,
	"application/vnd.docker.distribution.manifest.list.v2+json": kindIndex,
	"application/vnd.docker.distribution.manifest.v1+json":      kindSchema1,
	"application/vnd.docker.distribution.manifest.v1+prettyjws": kindSchema1,
}

// configTypes are the media types of the configs of containers. Old versions of docker pushed octet-stream, and some
// tools write none. A config of another type is not read: it belongs to an artifact.
var configTypes = []string{
	"application/vnd.oci.image.config.v1+json",
	"application/vnd.docker.container.image.v1+json",
	"application/octet-stream",
	"",
}

// ErrArtifact is the error of a manifest that is not of a container image.
var ErrArtifact = fmt.Errorf("%w: it is an artifact, not a container image: its config has another media type",
	ErrInvalid)

// AcceptedTypes are the media types of manifests and indexes that a registry is asked for.
var AcceptedTypes = []string{
	"application/vnd.oci.image.index.v1+json",
	"application/vnd.oci.image.manifest.v1+json",
	"application/vnd.docker.distribution.manifest.list.v2+json",
	"application/vnd.docker.distribution.manifest.v2+json",
}

// parseDocument reads a manifest or an index; mediaType is how it was announced. The error does not repeat what the
// document says.
func parseDocument(raw []byte, mediaType string) (*document, error) {
	var d document
	switch err := json.Unmarshal(raw, &d); {
	case errors.Is(err, errTooMany):
		return nil, fmt.Errorf("%w: manifest with more than %d layers, or index with more than %d images", ErrInvalid,
			maxLayers, maxManifests)
	case err != nil:
		return nil, fmt.Errorf("%w: manifest or index is not the JSON it should be", ErrInvalid)
	}
	kind, err := d.kindBy(mediaType)
	switch {
	case err != nil:
		return nil, err
	case kind == kindSchema1:
		return nil, fmt.Errorf("%w: manifest of the outdated schema 1: push the image again with a newer tool",
			ErrInvalid)
	case kind == kindManifest && !IsDigest(d.Config.Digest):
		return nil, fmt.Errorf("%w: manifest names no config", ErrInvalid)
	}
	d.kind = kind
	return &d, nil
}

// ParseIndex reads the index.json of an archive and returns its entries. It is an OCI index, whatever it says.
func ParseIndex(raw []byte) ([]Descriptor, error) {
	doc, err := parseDocument(raw, AcceptedTypes[0])
	if err != nil {
		return nil, err
	}
	return doc.Manifests, nil
}

// Docker is one element of docker save's manifest.json.
type Docker struct {
	Config   string
	RepoTags nameList
	Layers   nameList
}

// ParseDocker reads docker save's manifest.json.
func ParseDocker(raw []byte) ([]Docker, error) {
	if !json.Valid(raw) {
		return nil, fmt.Errorf("%w: manifest.json is not JSON", ErrInvalid)
	}
	list, err := decodeList[Docker](raw, maxManifests)
	if err != nil {
		return nil, fmt.Errorf("%w: manifest.json: %w", ErrInvalid, err)
	}
	return list, nil
}

// kindBy returns what a document is: what it was announced as, else what it says, else what is in it. A document that
// could be read in two ways is refused: a scanner or a check of its signature might see another image than runs.
func (d *document) kindBy(mediaType string) (kindOf, error) {
	announced := mediaKinds[mediaType]
	said := mediaKinds[d.MediaType]
	if announced != kindOther && said != kindOther && announced != said {
		return kindOther, fmt.Errorf("%w: the media type in the manifest or index is not that of its announcement",
			ErrInvalid)
	}
	if len(d.Manifests) > 0 && (len(d.Layers) > 0 || d.Config.Digest != "") {
		return kindOther, fmt.Errorf("%w: manifest and index in one document", ErrInvalid)
	}
	kind := cmp.Or(announced, said)
	switch {
	case d.SchemaVersion == 1:
		kind = kindSchema1
	case d.SchemaVersion != 0 && d.SchemaVersion != 2:
		return kindOther, fmt.Errorf("%w: manifest or index of schema version %d, only 2 is supported", ErrInvalid,
			d.SchemaVersion)
	case kind == kindOther && d.Manifests != nil:
		kind = kindIndex
	case kind == kindOther:
		kind = kindManifest
	}
	return kind, nil
}

// checkSize compares a document with the size that its descriptor gives; 0 is none.
func (d Descriptor) checkSize(raw []byte) error {
	if d.Size != 0 && d.Size != int64(len(raw)) {
		return fmt.Errorf("%w: %.80s has %d bytes, its descriptor says %d", ErrInvalid, d.Digest, len(raw), d.Size)
	}
	return nil
}

// Documents has the small documents of an image, whose digests it has checked: from a registry or an archive.
type Documents interface {
	// Manifest returns the manifest or index with a digest, of at most MaxDocument bytes.
	Manifest(ctx context.Context, digest string) ([]byte, error)
	// Config returns the config with a digest, of at most MaxDocument bytes.
	Config(ctx context.Context, digest string) ([]byte, error)
}

// read returns the manifest or index that d names.
func (d Descriptor) read(ctx context.Context, from Documents) ([]byte, error) {
	raw, err := from.Manifest(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	return raw, d.checkSize(raw)
}

// IsImage reports whether d names an image or an index.
func (d Descriptor) IsImage() bool {
	kind := mediaKinds[d.MediaType]
	return kind == kindManifest || kind == kindIndex
}

// Refuse returns an error if d says that it is for another platform than linux/arch.
func (d Descriptor) Refuse(arch string) error {
	if d.Platform == nil || d.Platform.runsOn(arch) {
		return nil
	}
	_, err := choose([]Descriptor{d}, arch)
	return err
}

// resolve follows indexes from a document to the manifest for linux/arch. chosen: an index has said that the document
// is for that platform.
func resolve(
	ctx context.Context, from Documents, raw []byte, mediaType string, chosen bool, arch string,
) (*document, error) {
	for depth := 0; ; depth++ {
		doc, err := parseDocument(raw, mediaType)
		if err != nil {
			return nil, err
		}
		if doc.kind == kindManifest {
			doc.chosen = chosen
			return doc, nil
		}
		if depth == maxIndexDepth {
			return nil, fmt.Errorf("%w: index within index, %d deep", ErrInvalid, depth)
		}
		next, err := choose(doc.Manifests, arch)
		if err != nil {
			return nil, err
		}
		mediaType = next.MediaType
		chosen = chosen || next.Platform != nil
		if raw, err = next.read(ctx, from); err != nil {
			return nil, err
		}
	}
}

// choose selects the manifest of an index that runs on linux/arch, or an index that may have it.
func choose(manifests []Descriptor, arch string) (Descriptor, error) {
	best := -1
	rank := 0
	var has []string
	for i, d := range manifests {
		if r := rankPlatform(d, arch); r > rank {
			best = i
			rank = r
		}
		if d.Platform != nil && d.Platform.OS != "unknown" && len(has) < 20 {
			has = append(has, d.Platform.String())
		}
	}
	if best < 0 {
		if len(has) == 0 {
			has = []string{"none"}
		}
		return Descriptor{}, fmt.Errorf("%w: no image for platform linux/%s in manifest list (it has %s)", ErrNotFound,
			arch, strings.Join(has, ", "))
	}
	if !IsDigest(manifests[best].Digest) {
		return Descriptor{}, fmt.Errorf("%w: index names a manifest without a sha256 digest", ErrInvalid)
	}
	return manifests[best], nil
}

// String returns "os/architecture/variant", without the characters that no such name has.
func (p *platform) String() string {
	words := []string{word(p.OS), word(p.Architecture), word(p.Variant)}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), "/")
}

// word returns the first 20 characters of an untrusted word, for an error. Characters other than letters, digits, "."
// and "_" are left out.
func word(s string) string {
	var out []byte
	for i := 0; i < len(s) && len(out) < 20; i++ {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' {
			out = append(out, c)
		}
	}
	return string(out)
}

// rankPlatform returns 0 for a manifest that cannot run on arch. The highest rank is chosen, the first among equals.
func rankPlatform(d Descriptor, arch string) int {
	if !d.IsImage() {
		return 0
	}
	if d.Platform == nil {
		return 1 // no platform given; the config is checked later
	}
	if rank := d.Platform.rank(arch); rank > 0 {
		return 1 + rank
	}
	return 0
}
