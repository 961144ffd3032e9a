// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSources: pods of both families, nodes, this machine and what was allowed may ask, and no one else; a node that
// goes takes its own with it.
func TestSources(t *testing.T) {
	sources := newSources([]netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, nil)
	node := func(name string, cidrs []string, addr string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.NodeSpec{PodCIDRs: cidrs},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: addr}, {Type: corev1.NodeExternalIP, Address: "198.18.77.200"}, {
					Type:    corev1.NodeHostName,
					Address: name,
				},
			}},
		}
	}
	sources.setNode(node("a", []string{"203.0.113.0/26", "2001:db8:1::/64", "broken"}, "198.18.77.1"))
	old := node("b", nil, "198.18.77.2")
	old.Spec.PodCIDR = "203.0.113.64/26"
	sources.setNode(old)
	ask := func(when string, want map[string]bool) {
		t.Helper()
		for text, may := range want {
			if got := sources.allowed(netip.MustParseAddr(text)); got != may {
				t.Errorf("%s: %s may ask: %t, want %t", when, text, got, may)
			}
		}
	}
	ask("two nodes", map[string]bool{
		"203.0.113.5":   true,
		"2001:db8:1::5": true,
		"2001:db8:2::5": false,
		"198.18.77.1":   true,
		"198.18.77.200": false,
		"203.0.113.70":  true,
		"198.18.77.2":   true,
		"198.51.100.7":  true,
		"198.18.77.77":  false,
		"127.0.0.1":     true,
		"127.9.9.9":     true,
		"::1":           true,
	})
	sources.setNode(node("a", []string{"203.0.113.128/26"}, "198.18.77.3"))
	sources.dropNode("b")
	ask("afterwards", map[string]bool{
		"203.0.113.5":   false,
		"203.0.113.130": true,
		"198.18.77.1":   false,
		"198.18.77.3":   true,
		"203.0.113.70":  false,
		"198.18.77.2":   false,
		"198.51.100.7":  true,
	})
}
