// SPDX-License-Identifier: Apache-2.0

package words

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"web", "wbe", 1}, {"web", "web1", 1}, {"web", "wob", 1}, {"", "abc", 3}} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
