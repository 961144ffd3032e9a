// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxDepth limits the nesting of a document. The time to process an object, in particular its managed fields, grows
// with the square of the depth.
const maxDepth = 1000

// CheckDepth rejects JSON with too deep nesting. Other documents pass; they are checked after the conversion to JSON.
func CheckDepth(doc []byte) error {
	if depth(doc) <= maxDepth {
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("exceeded max depth of %d: the document is nested too deeply", maxDepth))
}

// depth is the nesting of a JSON document, at most maxDepth+1; 0 for other documents.
func depth(doc []byte) int {
	level := 0
	deepest := 0
	started := false
	for i := 0; i < len(doc) && deepest <= maxDepth; i++ {
		switch doc[i] {
		case '{', '[':
			started = true
			level++
			deepest = max(deepest, level)
		case '}', ']':
			level--
		case '"':
			for i++; i < len(doc) && doc[i] != '"'; i++ {
				if doc[i] == '\\' {
					i++
				}
			}
		case ' ', '\t', '\r', '\n':
			continue
		}
		if !started {
			return 0
		}
	}
	return deepest
}
