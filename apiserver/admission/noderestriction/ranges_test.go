// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
	"keelson/auth/authz"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func withRanges(name string, ranges ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: named(name), Spec: corev1.NodeSpec{PodCIDRs: ranges}}
}

// TestNodeBringsRanges: a node takes no more of the cluster's addresses than a node has, and none that are not pods' or
// that another has.
func TestNodeBringsRanges(t *testing.T) {
	known := PodRanges{
		Cluster:  prefixes("10.42.0.0/16", "fd00:42::/48"),
		Bits4:    24,
		Reserved: prefixes("10.42.255.0/24", "10.96.0.0/12"),
		OwnCIDRs: prefixes("10.7.0.0/16"),
	}
	none := withRanges("node-1")
	for _, tc := range []struct {
		known  PodRanges
		old    *corev1.Node // nil: it is new
		brings []string
		want   string // empty: it may
	}{
		{known, nil, nil, ""},
		{known, nil, []string{"10.42.7.0/24", "fd00:42:0:7::/64"}, ""},
		{known, nil, []string{"10.42.7.128/25"}, ""},
		{known, nil, []string{"10.42.1.0/24"}, ""}, // node-2 is older, and keeps it
		{known, nil, []string{"10.7.0.0/16"}, ""},
		{known, nil, []string{"10.42.0.0/16"}, `set the pod CIDR 10.42.0.0/16: it is larger than a node's range`},
		{known, nil, []string{"10.42.0.0/17"}, `set the pod CIDR 10.42.0.0/17: it is larger than a node's range`},
		{
			known, nil,
			[]string{"10.42.7.0/24", "fd00:42::/56"},
			`set the pod CIDR fd00:42::/56: it is larger than a node's range`,
		},
		{known, nil, []string{"8.8.8.0/24"}, `set the pod CIDR 8.8.8.0/24: it is not within the cluster's ranges`},
		{known, nil, []string{"0.0.0.0/1"}, `set the pod CIDR 0.0.0.0/1: it is not within the cluster's ranges`},
		{
			known, nil,
			[]string{"10.42.255.0/24"},
			`set the pod CIDR 10.42.255.0/24: it overlaps the Service CIDR 10.42.255.0/24`,
		},
		{
			PodRanges{Reserved: prefixes("10.96.0.0/12")},
			nil,
			[]string{"10.97.0.0/16"},
			`set the pod CIDR 10.97.0.0/16: it overlaps the Service CIDR 10.96.0.0/12`,
		},
		{known, none, []string{"10.42.7.0/24"}, ""},
		{known, none, []string{"10.42.1.0/25"}, `overlaps 10.42.1.0/24 of node "node-2"`},
		{known, none, []string{"10.43.0.0/24"}, `not within the cluster's ranges`},
		{known, withRanges("node-1", "10.99.0.0/16"), []string{"10.99.0.0/16"}, ""}, // unchanged, so allowed
		{PodRanges{}, nil, []string{"172.16.0.0/16", "fd12::/48"}, ""},
		{PodRanges{}, nil, []string{"10.0.0.0/8"}, "it is larger than a node's range"},
		{PodRanges{}, nil, []string{"fd12::/47"}, "it is larger than a node's range"},
		{
			PodRanges{Cluster: prefixes("10.42.0.0/16")},
			nil,
			[]string{"10.42.6.0/23"},
			"it is larger than a node's range",
		},
	} {
		restriction := Plugin{
			NodeName:  authz.NodeName,
			PodRanges: tc.known,
			Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
				admission.Nodes: {none, withRanges("node-2", "10.42.1.0/24")},
			}),
		}
		req := &admission.Request{
			Operation: admission.Create,
			Resource:  admission.Nodes,
			Kind:      corev1.SchemeGroupVersion.WithKind("Node"),
			Object:    withRanges("node-1", tc.brings...),
			User:      &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}},
		}
		if tc.old != nil {
			req.Operation = admission.Update
			req.Name = "node-1"
			req.OldObject = tc.old
		}
		err := restriction.Validate(t.Context(), req)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s of %v: %v, want %q", req.Operation, tc.brings, err, tc.want)
		}
		req.User = &auth.User{Name: "admin", Groups: []string{"system:masters"}}
		if err := restriction.Validate(t.Context(), req); err != nil {
			t.Errorf("%s of %v by an administrator: %v", req.Operation, tc.brings, err)
		}
	}
}
