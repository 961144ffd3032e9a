// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/networking/wireguard"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
	"keelson/auth/authz"
)

// TestNodeBringsAddresses: a node has no address that is every machine's or in another node's pod range, and not many;
// what is stored already, and what an administrator writes, stays.
func TestNodeBringsAddresses(t *testing.T) {
	withAddresses := func(addresses ...string) *corev1.Node {
		n := withRanges("node-1", "10.42.7.0/24")
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "127.0.0.1"}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{
				Type:    corev1.NodeInternalIP,
				Address: a,
			})
		}
		return n
	}
	var many []string
	for i := range maxNodeAddresses {
		many = append(many, fmt.Sprint("10.0.0.", i))
	}
	restriction := Plugin{
		NodeName: authz.NodeName,
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {withAddresses(), withRanges("node-2", "10.42.1.0/24", "fd00:42::/64")},
		}),
	}
	for _, tc := range []struct {
		old, brings []string
		want        string // empty: it may
	}{
		{nil, nil, ""},
		{nil, []string{"10.0.0.1", "fd00::1"}, ""},
		{nil, []string{"10.42.7.1"}, ""}, // the gateway of its own pods
		{nil, []string{"a-name"}, ""},    // unused
		{nil, many[1:], ""},
		{nil, append(many[1:], "10.0.1.1"), "has 65 addresses, and may have 64"},
		{many, many, ""},
		{nil, []string{"127.0.0.1"}, "it is a loopback address"},
		{nil, []string{"::1"}, "it is a loopback address"},
		{nil, []string{"169.254.169.254"}, "it is a link-local address"},
		{nil, []string{"fe80::1%eth0"}, "it is a link-local address"},
		{nil, []string{"0.0.0.0"}, "it is an unspecified address"},
		{nil, []string{"224.0.0.1"}, "it is a multicast address"},
		{nil, []string{"::ffff:10.0.0.1"}, "an IPv4 address in IPv6"},
		{nil, []string{"::ffff:127.0.0.1"}, "it is a loopback address"},
		{nil, []string{"fd00::1%eth0"}, "has a zone"},
		{nil, []string{"10.0.0.1", "10.42.1.9"}, `it is in the pod CIDR 10.42.1.0/24 of node "node-2"`},
		{nil, []string{"fd00:42::9"}, `it is in the pod CIDR fd00:42::/64 of node "node-2"`},
		{[]string{"127.0.0.1", "10.42.1.9"}, []string{"127.0.0.1", "10.42.1.9", "10.0.0.1"}, ""},
		{[]string{"10.42.1.9"}, []string{"10.42.1.8"}, "it is in the pod CIDR"},
	} {
		for _, operation := range []admission.Operation{admission.Create, admission.Update} {
			req := &admission.Request{
				Operation: operation,
				Resource:  admission.Nodes,
				Name:      "node-1",
				Kind:      corev1.SchemeGroupVersion.WithKind("Node"),
				Object:    withAddresses(tc.brings...),
				User:      &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}},
			}
			if operation == admission.Update {
				req.Subresource = "status"
				req.OldObject = withAddresses(tc.old...)
			} else if tc.old != nil {
				continue
			}
			err := restriction.Validate(t.Context(), req)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s of %v: %v, want %q", operation, tc.brings, err, tc.want)
			}
			req.User = &auth.User{Name: "admin", Groups: []string{"system:masters"}}
			if err := restriction.Validate(t.Context(), req); err != nil {
				t.Errorf("%s of %v by an administrator: %v", operation, tc.brings, err)
			}
		}
	}
}

// TestNodeBringsKey: a node does not take another node's WireGuard key; it keeps its own, and one that it had already.
func TestNodeBringsKey(t *testing.T) {
	keyed := func(name string, b byte) *corev1.Node {
		n := &corev1.Node{ObjectMeta: named(name)}
		key := bytes.Repeat([]byte{b}, wireguard.KeyLen)
		n.Annotations = map[string]string{
			wireguard.AnnotationKey:  base64.StdEncoding.EncodeToString(key),
			wireguard.AnnotationPort: "51820",
		}
		return n
	}
	restriction := Plugin{
		NodeName: authz.NodeName,
		Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {keyed("node-1", 1), keyed("node-2", 2), keyed("twin", 1)},
		}),
	}
	for _, tc := range []struct {
		old, key byte
		allowed  bool
	}{{0, 3, true}, {0, 2, false}, {1, 1, true}, {1, 2, false}, {3, 1, false}, {2, 2, true}} {
		req := &admission.Request{
			Operation: admission.Update,
			Resource:  admission.Nodes,
			Name:      "node-1",
			Kind:      corev1.SchemeGroupVersion.WithKind("Node"),
			OldObject: keyed("node-1", tc.old),
			Object:    keyed("node-1", tc.key),
			User:      &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}},
		}
		if err := restriction.Validate(t.Context(), req); (err == nil) != tc.allowed {
			t.Errorf("key %d after %d: %v, want allowed: %v", tc.key, tc.old, err, tc.allowed)
		}
	}
}
