// SPDX-License-Identifier: Apache-2.0

package text

import (
	"slices"
	"testing"

	"keelson/api/decisions"
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

// TestFoldKeepsUnits: a number and its unit stay on one line.
func TestFoldKeepsUnits(t *testing.T) {
	want := []string{"   took: Reserve", "  3 µs, Bind", "  12.2 ms"}
	if got := Fold("   took: Reserve 3 µs, Bind 12.2 ms", 18, "  "); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestImageFacts: an image of two containers is listed once.
func TestImageFacts(t *testing.T) {
	image := decisions.NodeImage{Image: "app:1", Bytes: 7 << 20, Nodes: 1, Of: 3}
	score := &decisions.PluginScore{Facts: &decisions.ScoreFacts{
		Images:        []decisions.NodeImage{image, {Image: "log:1"}, image},
		MinImageBytes: 23 << 20,
	}}
	want := "app:1 7.0 MiB on 1 of 3 nodes, for 2 containers, log:1 is not there: 0, because less than 23.0 MiB in all " +
		"does not count"
	if got := imageFacts(score); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
