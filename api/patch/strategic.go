// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxComparisons bounds how many pairs of list items a strategic merge may compare. The library looks for every item of
// a patch in the whole list, twice, at about 60 ns a pair.
const maxComparisons = 20_000_000

// lists counts the items of all lists in a JSON value and the longest list.
type lists struct{ items, longest int }

func (l *lists) add(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			l.add(member)
		}
	case []any:
		l.items += len(v)
		l.longest = max(l.longest, len(v))
		for _, item := range v {
			l.add(item)
		}
	}
}

// checkComparisons refuses a strategic merge patch that takes too long to merge into doc.
func checkComparisons(doc, patch map[string]any) error {
	var p, d lists
	p.add(patch)
	d.add(doc)
	if n := int64(p.items) * int64(p.longest+d.longest); n <= maxComparisons {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"the strategic merge patch has %d list items, and the longest list has %d: the product may be at most %d; "+
			"use a JSON patch, a merge patch or apply",
		p.items, p.longest+d.longest, maxComparisons))
}
