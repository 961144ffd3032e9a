// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// comparer orders database keys as bytes and declares that all versions of a key share a prefix: tables then
// carry a filter of the keys in them, and a create need not read any to know that its key is new.
func comparer() *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = "keelson.versions"
	c.Split = splitPrefix
	// Shortened keys would have other prefixes.
	c.Separator = func(dst, a, _ []byte) []byte { return append(dst, a...) }
	c.Successor = func(dst, a []byte) []byte { return append(dst, a...) }
	c.ImmediateSuccessor = func(dst, a []byte) []byte {
		if n := len(a); n > 0 && a[n-1] == 0 && a[0] == versionPrefix {
			return append(append(dst, a[:n-1]...), 1)
		}
		return append(append(dst, a...), 0)
	}
	return &c
}

// splitPrefix is the length of a database key without its revision.
func splitPrefix(b []byte) int {
	if len(b) > 0 && b[0] == versionPrefix {
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return i + 1
		}
	}
	return len(b)
}
