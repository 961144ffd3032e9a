// SPDX-License-Identifier: Apache-2.0

// Package user takes sentences apart.
package user

import (
	"regexp"
	"slices"
	"strings"

	"prose/answer"
)

// Held has five faults: the last one follows a function literal, and printing is none.
func Held(a *answer.Answer, word *regexp.Regexp) (string, bool) {
	if strings.HasPrefix(a.State, "held") {
		return "", true
	}
	if a.State == "held" || a.State == "" && a.Held {
		return "", true
	}
	first := a.Why[0]
	if _, by, ok := strings.Cut(first, "by "); ok {
		return by, true
	}
	all := strings.Join(a.Why, "; ") + a.State
	state := "it is " + a.State
	if word.MatchString(state) || slices.ContainsFunc(a.Why, func(why string) bool {
		// another line
		return strings.Contains(why, "held")
	}) {
		return all, true
	}
	return all, false
}
