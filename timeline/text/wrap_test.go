// SPDX-License-Identifier: Apache-2.0

package text

import (
	"slices"
	"testing"
)

// TestWrapWords: a long word is broken after a separator, and anywhere only where it has none.
func TestWrapWords(t *testing.T) {
	for _, tc := range []struct {
		text string
		want []string
	}{
		{"image registry.example.com/team/web:v1.2.3", []string{"image", "registry.example.", "com/team/web:v1.2.3"}},
		{"web-667cf5f9d7-5p68g-and-more", []string{"web-667cf5f9d7-", "5p68g-and-more"}},
		{"sha256:0123456789abcdef01234567", []string{"sha256:0123456789abc", "def01234567"}},
		{"by (kube-scheduler/v1.37.2+keelson)", []string{"by", "(kube-scheduler/", "v1.37.2+keelson)"}},
		{"seen by scheduler after 0.2 ms, others 7 s", []string{"seen by scheduler", "after 0.2 ms, others", "7 s"}},
		{"short words stay whole", []string{"short words stay", "whole"}},
	} {
		if got := wrapWords(tc.text, 20); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.text, got, tc.want)
		}
	}
}
