// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

// TestSpecialAddresses: what an endpoint and an external address may not be, in Kubernetes' words.
func TestSpecialAddresses(t *testing.T) {
	const (
		loopback  = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
		local     = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
		multicast = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
		invalid   = "must be a valid IP address"
	)
	for _, c := range []struct{ ip, want string }{
		{"127.0.0.1", loopback},
		{"127.255.0.1", loopback},
		{"::1", loopback},
		{"::ffff:127.0.0.1", loopback},
		{"169.254.169.254", local},
		{"fe80::1", local},
		{"224.0.0.251", multicast},
		{"ff02::fb", multicast},
		{"0.0.0.0", "may not be unspecified (0.0.0.0)"},
		{"::", "may not be unspecified (::)"},
		{"10.0.0.1", ""},
		{"224.1.0.1", ""},
		{"ff05::2", ""},
		{"2001:db8::1", ""}, // what Kubernetes lets pass
		{"10.0.0", invalid},
		{"web", invalid},
		{"", invalid},
		{"10.0.0.1/8", invalid},
		{"127.000.000.001", loopback}, // of an object that was stored before zeros were refused
	} {
		errs := ValidateEndpointIP(c.ip, field.NewPath("ip"))
		if got := errs.ToAggregate(); (got == nil) != (c.want == "") || got != nil && !strings.HasSuffix(got.Error(),
			c.want) {
			t.Errorf("endpoint %q: got %v, want %q", c.ip, got, c.want)
		}
		l := check.At(nil)
		NonSpecialIP(l, c.ip)
		if got := l.Errors().ToAggregate(); (got == nil) != (c.want == "") ||
			got != nil && !strings.HasSuffix(got.Error(), c.want) {
			t.Errorf("external address %q: got %v, want %q", c.ip, got, c.want)
		}
	}
	endpoints := &corev1.Endpoints{Subsets: []corev1.EndpointSubset{{ // clients still write it
		Addresses:         []corev1.EndpointAddress{{IP: "127.0.0.1"}}, // the same
		NotReadyAddresses: []corev1.EndpointAddress{{IP: "ff02::1"}},   // the same
	}}}
	endpoints.Name = "e"
	errs := Endpoints().Validate(endpoints).ToAggregate()
	for _, want := range []string{
		`subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": ` + loopback,
		`subsets[0].notReadyAddresses[0].ip: Invalid value: "ff02::1": ` + multicast,
	} {
		if errs == nil || !strings.Contains(errs.Error(), want) {
			t.Errorf("got %v\nwant %s", errs, want)
		}
	}
	if errs := Endpoints().ValidateUpdate(endpoints, endpoints); len(errs) > 0 {
		t.Errorf("subsets that were so before: %v", errs)
	}
}
