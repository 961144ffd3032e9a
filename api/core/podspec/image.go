// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
)

// pullPolicy is Always for an image whose tag is "latest", given or implied, and IfNotPresent for any other, also for
// one that is no image reference at all.
func pullPolicy(image string) corev1.PullPolicy {
	tag, ok := plainTag(image)
	if !ok {
		tag = parseTag(image)
	}
	if tag == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

// plainTag reads the tag of references that are certainly well-formed, which spares them several regular
// expressions: lower-case components with single separators, no digest.
func plainTag(image string) (tag string, ok bool) {
	name := image
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		name = image[:i]
		tag = image[i+1:]
		if tag == "" || len(tag) > 128 || tag[0] == '.' || tag[0] == '-' || !onlyTagBytes(tag) {
			return "", false
		}
	} else {
		tag = "latest"
	}
	if len(name) == 0 || len(name) >= 64 {
		return "", false
	}
	separated := true
	colons := 0
	for i := range len(name) {
		switch c := name[i]; {
		case '0' <= c && c <= '9':
			separated = false
		case colons == 1 && c != '/':
			return "", false // not a port
		case 'a' <= c && c <= 'z':
			separated = false
		case separated:
			return "", false
		case c == '/' && colons == 1:
			separated = true
			colons = 2
		case c == ':' && colons == 0 && !strings.Contains(name[:i], "/"):
			separated = true
			colons = 1
		case c == '/' || c == '.' || c == '-':
			separated = true
		default:
			return "", false
		}
	}
	return tag, !separated && colons != 1
}

func onlyTagBytes(s string) bool {
	for i := range len(s) {
		c := s[i]
		if ('a' > c || c > 'z') && ('A' > c || c > 'Z') && ('0' > c || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// parseTag returns the tag of a reference; "" without a tag next to a digest, or if image is no reference.
func parseTag(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return ""
	}
	if t, ok := named.(reference.Tagged); ok {
		return t.Tag()
	}
	if _, ok := named.(reference.Digested); ok {
		return ""
	}
	return "latest"
}
