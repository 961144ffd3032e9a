// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxDepth bounds how deep the lists and objects of a document may be inside each other. What the server does with an object, most of all
// to find out who owns its fields, takes time by the square of it.
const maxDepth = 1000

// CheckDepth refuses JSON that is nested too deep. Other documents pass: they are looked at once they are JSON.
func CheckDepth(doc []byte) error {
	if depth(doc) <= maxDepth {
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("exceeded max depth of %d: the document is nested too deeply", maxDepth))
}

// depth is how deep a JSON document is nested; 0 for what begins otherwise, and no more than maxDepth+1.
func depth(doc []byte) int {
	level, deepest, started := 0, 0, false
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
