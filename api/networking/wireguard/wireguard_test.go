// SPDX-License-Identifier: Apache-2.0

package wireguard

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/apitest"
)

func node(name, key, port string) *corev1.Node {
	return apitest.Node(name, apitest.PodCIDRs("10.42.0.0/24"), func(n *corev1.Node) {
		n.Annotations = map[string]string{AnnotationKey: key, AnnotationPort: port}
	})
}

func keyOf(c string) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(c, KeyLen)))
}

// TestEnd: half an end, or one that is none, is none.
func TestEnd(t *testing.T) {
	for _, tc := range []struct {
		key, port string
		ok        bool
	}{
		{keyOf("a"), "51820", true},
		{keyOf("a"), "", false},
		{keyOf("a"), "0", false},
		{keyOf("a"), "65536", false},
		{keyOf("a"), "-1", false},
		{"", "51820", false},
		{keyOf("a") + keyOf("b"), "51820", false},
		{"????", "51820", false},
		{keyOf("\x00"), "51820", false},
	} {
		if _, port, ok := End(node("n", tc.key, tc.port)); ok != tc.ok || ok && fmt.Sprint(port) != tc.port {
			t.Errorf("End(%q, %q) = %d, %v, want %v", tc.key, tc.port, port, ok, tc.ok)
		}
	}
}

func TestBetween(t *testing.T) {
	a := node("a", keyOf("a"), "1")
	b := node("b", keyOf("b"), "1")
	c := node("c", "", "")
	copied := node("copy", keyOf("a"), "1")
	const keyless = "node a sends to other nodes' pods by WireGuard only, and node c has no key: it needs " +
		"--tunnel=wireguard"
	for _, tc := range []struct {
		a, b      *corev1.Node
		encrypted bool
		why       string
	}{
		{a, b, true, ""},
		{a, a, false, ""},
		{c, node("d", "", ""), false, ""},
		{a, c, false, keyless},
		{c, a, false, keyless},
		{a, copied, false, "nodes a and copy have the same WireGuard key: one of them is a copy and needs its own"},
	} {
		if encrypted, why := Between(tc.a, tc.b); encrypted != tc.encrypted || why != tc.why {
			t.Errorf("Between(%s, %s) = %v, %q, want %v, %q", tc.a.Name, tc.b.Name, encrypted, why, tc.encrypted,
				tc.why)
		}
	}
	if keyed, without := Keyless([]corev1.Node{*c, *a, *b}); keyed != 2 || fmt.Sprint(without) != "[c]" {
		t.Errorf("Keyless = %d, %v, want 2, [c]", keyed, without)
	}
}
