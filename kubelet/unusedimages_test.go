// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestIdleImages: an image is old when it was not used for the whole age, and begins again after each use.
func TestIdleImages(t *testing.T) {
	begin := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	idle := idleImages{}
	const age = 10 * time.Minute
	for _, look := range []struct {
		minute int
		unused []string
		want   []string
	}{
		{0, []string{"a", "b"}, nil},
		{5, []string{"b"}, nil}, // a is used
		{11, []string{"a", "b"}, []string{"b"}},
		{20, []string{"a"}, nil},
		{22, []string{"a"}, []string{"a"}},
	} {
		var unused []*runtimeapi.Image
		for _, id := range look.unused {
			unused = append(unused, &runtimeapi.Image{Id: id})
		}
		var got []string
		for _, img := range idle.old(unused, begin.Add(time.Duration(look.minute)*time.Minute), age) {
			got = append(got, img.GetId())
		}
		if !slices.Equal(got, look.want) {
			t.Errorf("minute %d: got %v, want %v", look.minute, got, look.want)
		}
	}
}
