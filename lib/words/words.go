// SPDX-License-Identifier: Apache-2.0

// Package words has what texts for people share: the known word that is most similar to a mistyped one, for
// suggestions in error messages of flags and commands, and numbers with their nouns and units.
package words

import (
	"iter"
	"strings"
)

// Nearest returns the most similar known word; "": none is similar.
func Nearest(word string, known iter.Seq[string]) string {
	best := ""
	least := 1 + (len(word)+1)/3
	word = strings.ToLower(word)
	for k := range known {
		if d := Distance(word, strings.ToLower(k)); d < least {
			best = k
			least = d
		}
	}
	return best
}

// Distance returns the edit distance of a and b: insertions, deletions, changes, and swaps of adjacent letters.
func Distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
