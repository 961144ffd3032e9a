// SPDX-License-Identifier: Apache-2.0

package meta

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestChildName(t *testing.T) {
	d := func(n int) string { return strings.Repeat("d", n) }
	for _, tt := range []struct{ owner, suffix, want string }{
		{"web", "-5f6d", "web-5f6d"},
		{d(248), "-5f6d", d(248) + "-5f6d"},
		{d(249), "-5f6d", d(248) + "-5f6d"},
		{d(253), "-5f6d", d(248) + "-5f6d"},
		{d(253), ".18fb", d(248) + ".18fb"},
		{d(247) + ".ddddd", "-5f6d", d(247) + "-5f6d"},
	} {
		got := ChildName(tt.owner, tt.suffix)
		if got != tt.want || len(validation.IsDNS1123Subdomain(got)) > 0 {
			t.Errorf("%s with %s: got %s, want %s", tt.owner, tt.suffix, got, tt.want)
		}
	}
	if got := ChildName(d(253), "-"); got != d(252)+"-" {
		t.Errorf("a prefix: got %s", got)
	}
}
