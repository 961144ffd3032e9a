// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
	"keelson/auth/authz"
)

func TestNodeLabels(t *testing.T) {
	restriction := Plugin{Reader: admissiontest.Reader{}, NodeName: authz.NodeName}
	node := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels}}
	}
	kubelet := &auth.User{Name: "system:node:node-1", Groups: []string{auth.Nodes}}
	try := func(op admission.Operation, labels, old map[string]string) error {
		r := &admission.Request{
			Operation: op,
			Resource:  admission.Nodes,
			Name:      "node-1",
			Object:    node(labels),
			User:      kubelet,
		}
		if op == admission.Update {
			r.OldObject = node(old)
		}
		return restriction.Validate(t.Context(), r)
	}
	if err := try(admission.Create,
		map[string]string{corev1.LabelHostname: "h", "example.com/x": "y", "node.kubernetes.io/y": "z"},
		nil); err != nil {
		t.Errorf("its own labels: %v", err)
	}
	admissiontest.WantForbidden(t, "create",
		try(admission.Create, map[string]string{"node-role.kubernetes.io/master": "", "node-restriction.kubernetes.io/x": ""},
			nil),
		`node "node-1" is not allowed to set the following labels: node-restriction.kubernetes.io/x, node-role.kubernetes.io/master`)
	admissiontest.WantForbidden(t, "update", try(admission.Update, nil, map[string]string{"node-restriction.kubernetes.io/x": ""}),
		"is not allowed to modify labels: node-restriction.kubernetes.io/x")
}
