// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/internal/check"
)

// TestPodCertificate holds the words of Kubernetes' refusals.
func TestPodCertificate(t *testing.T) {
	const day = 24 * 3600
	for _, c := range []struct {
		what    string
		signer  string
		seconds int32
		notes   map[string]string
		want    string
	}{
		{"an hour", "example.com/s", 3600, nil, ""},
		{"91 days", "example.com/s", 91 * day, map[string]string{"Example.com/a": "b"}, ""},
		{
			"too short", "example.com/s", 3599, nil,
			"maxExpirationSeconds: Invalid value: 3599: if provided, maxExpirationSeconds must be >= 3600",
		},
		{
			"too long", "example.com/s", 91*day + 1, nil,
			"maxExpirationSeconds: Invalid value: 7862401: if provided, maxExpirationSeconds must be <= 7862400",
		},
		{
			"too long for Kubernetes' own", "kubernetes.io/s", day + 1, nil,
			"maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400",
		},
		{
			"too long for one below", "x.kubernetes.io/s", day + 1, nil,
			"maxExpirationSeconds: Invalid value: 86401: if provided, maxExpirationSeconds must be <= 86400",
		},
		{
			"a note without a domain", "example.com/s", 3600,
			map[string]string{"a": "b"},
			`userAnnotations: Invalid value: "a": must be a domain-prefixed key (such as "acme.io/foo")`,
		},
		{
			"too many notes", "example.com/s", 3600,
			map[string]string{"example.com/a": strings.Repeat("x", 1<<18)},
			"userAnnotations: Too long: may not be more than 262144 bytes",
		},
	} {
		list := check.At(nil)
		checkPodCertificate(list, &corev1.PodCertificateProjection{
			SignerName:           c.signer,
			KeyType:              "ED25519",
			MaxExpirationSeconds: &c.seconds,
			KeyPath:              "key.pem",
			UserAnnotations:      c.notes,
		})
		got := ""
		if errs := list.Errors(); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
