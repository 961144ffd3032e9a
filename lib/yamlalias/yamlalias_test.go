// SPDX-License-Identifier: Apache-2.0

package yamlalias

import (
	"errors"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	long := "a: &a " + strings.Repeat("x", 64<<10) + "\nb: ["
	laughs := "a: &a [x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'i'; c++ {
		last := string(c - 1)
		laughs += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+last+",", 8) + "]\n"
	}
	for _, c := range []struct {
		what, doc string
		excessive bool
	}{
		{"no alias", `{"a": "R&D", "verbs": ["*"]}`, false},
		{"few aliases", "a: &a {b: c}\nd: *a\ne: {<<: *a}\n", false},
		{"many aliases of a long text", long + strings.Repeat("*a,", 2000) + "]\n", true},
		{"aliases of aliases", laughs, true},
		{"an alias within itself", "a: &a [*a]\n", true},
		{"many short aliases", "a: &a b\nc: [" + strings.Repeat("*a,", 2000) + "]\n", false},
	} {
		if err := Check([]byte(c.doc)); errors.Is(err, ErrExcessive) != c.excessive || err != nil && !c.excessive {
			t.Errorf("%s: %v, want excessive %t", c.what, err, c.excessive)
		}
	}
}
