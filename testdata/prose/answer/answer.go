// SPDX-License-Identifier: Apache-2.0

// Package answer has a type with sentences.
package answer

import "strings"

// Answer has two fields with sentences and one for programs.
type Answer struct {
	Why   []string
	State string
	Held  bool
}

// Has searches what its own package has written.
func (a *Answer) Has(word string) bool {
	for _, why := range a.Why {
		if strings.Contains(why, word) {
			return true
		}
	}
	return strings.TrimSpace(a.State) == "" && strings.Contains(word, "x")
}
