// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxDepth limits the nesting of a document. The time to process an object, in particular its managed fields, grows
// with the square of the depth.
const maxDepth = 1000

// maxParts limits the objects and lists in a document. Two bytes, {}, become a structure of up to a kilobyte, so that a
// document of 3 MB could take gigabytes. No object that fits into the store needs as many.
const maxParts = 100_000

// CheckDepth rejects JSON with too deep nesting or too many objects and lists, and returns their number. Other
// documents pass with 0; they are checked when they are decoded.
func CheckDepth(doc []byte) (parts int, err error) {
	deepest, parts := measure(doc)
	switch {
	case parts > maxParts:
		return parts, errTooManyParts()
	case deepest > maxDepth:
		return parts, errTooDeep()
	}
	return parts, nil
}

func errTooManyParts() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d objects and lists", maxParts))
}

func errTooDeep() error {
	return apierrors.NewBadRequest(fmt.Sprintf("exceeded max depth of %d: the document is nested too deeply", maxDepth))
}

// measure returns the nesting of a JSON document, at most maxDepth+1, and the number of its objects and lists, at most
// maxParts+1; 0 for other documents.
func measure(doc []byte) (deepest, parts int) {
	level := 0
	started := false
	for i := 0; i < len(doc) && deepest <= maxDepth && parts <= maxParts; i++ {
		switch doc[i] {
		case '{', '[':
			started = true
			parts++
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
			return 0, 0
		}
	}
	return deepest, parts
}
