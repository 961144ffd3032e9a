// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPullPolicy(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	tests := map[string]corev1.PullPolicy{
		"nginx":                  corev1.PullAlways,
		"nginx:latest":           corev1.PullAlways,
		"nginx:1.29":             corev1.PullIfNotPresent,
		"localhost:5000/a/b":     corev1.PullAlways,
		"localhost:5000/a/b:v1":  corev1.PullIfNotPresent,
		"reg.io/a_b/c--d:latest": corev1.PullAlways,
		"nginx" + digest:         corev1.PullIfNotPresent,
		"nginx:latest" + digest:  corev1.PullAlways,
		"keelson.local/hello":    corev1.PullAlways,
		"Nginx":                  corev1.PullIfNotPresent,
		"":                       corev1.PullIfNotPresent,
		"nginx ":                 corev1.PullIfNotPresent,
		"a:":                     corev1.PullIfNotPresent,
		"a//b":                   corev1.PullIfNotPresent,
	}
	for image, want := range tests {
		if got := pullPolicy(image); got != want {
			t.Errorf("pullPolicy(%q) = %s, want %s", image, got, want)
		}
	}
}

// FuzzPlainTag holds the short cut against the grammar.
func FuzzPlainTag(f *testing.F) {
	for _, s := range []string{
		"nginx", "a:80/b", "localhost:5000/a/b:v1", "a.b-c/d:x_Y", "a:80", "a:b/c", "x:1:2", "0:0.0/0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, image string) {
		if tag, ok := plainTag(image); ok && tag != parseTag(image) {
			t.Errorf("plainTag(%q) = %q, parseTag = %q", image, tag, parseTag(image))
		}
	})
}
