// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

func TestTopologyLabels(t *testing.T) {
	p := podTopologyLabels{
		admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{admission.Nodes: {&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   "n",
			Labels: map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelHostname: "n"},
		}}}}),
	}
	b := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	if err := p.Admit(t.Context(), &admission.Request{
		Operation:   admission.Create,
		Resource:    admission.Pods,
		Subresource: "binding",
		Object:      b,
	}); err != nil || len(b.Labels) != 1 || b.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("got %v, %v", b.Labels, err)
	}
}
