// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/apitest"
	"keelson/network/mesh"
)

// TestEndsOfOthers: a node cannot have the end of another node's tunnel, whose packets it would get, nor thousands of
// addresses.
func TestEndsOfOthers(t *testing.T) {
	agent := New(Config{Network: "test"})
	for _, tc := range []struct {
		end  string
		want bool
	}{
		{mesh.VTEP("test", "evil").String(), true},
		{mesh.VTEP("test", "victim").String(), false},
		{mesh.VTEP("other", "evil").String(), false},
		{"ff:ff:ff:ff:ff:ff", false},
		{"", false},
	} {
		n := apitest.Node("evil")
		n.Annotations = map[string]string{AnnotationVTEP: tc.end}
		if got := agent.machine(n).VTEP; (got != nil) != tc.want {
			t.Errorf("with the end %s: got %s, want it: %v", tc.end, got, tc.want)
		}
	}
	n := &corev1.Node{}
	for i := range 1000 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{
			Type:    corev1.NodeInternalIP,
			Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250),
		})
	}
	if got := len(agent.machine(n).Addrs); got != maxAddresses {
		t.Errorf("%d addresses, want %d", got, maxAddresses)
	}
}
