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

// TestDeclaredFeatures: a bound pod changes only as its node declares that it can.
func TestDeclaredFeatures(t *testing.T) {
	node := func(name string, features ...string) runtime.Object {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{DeclaredFeatures: features},
		}
	}
	const whole, inits = "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"
	validator := nodeDeclaredFeatureValidator{
		admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {node("old"), node("half", inits), node("new", whole, inits)},
		}),
	}
	resize := func(nodeName string, change func(*corev1.Pod)) error {
		old := admissiontest.Pod()
		old.Spec.NodeName = nodeName
		old.Generation = 1
		old.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		old.Spec.Resources = &corev1.ResourceRequirements{Requests: admissiontest.Quantities("cpu", "1")}
		obj := old.DeepCopy()
		obj.Generation = 2
		change(obj)
		return validator.Validate(t.Context(), &admission.Request{
			Operation:   admission.Update,
			Resource:    admission.Pods,
			Subresource: "resize",
			Name:        "p",
			Object:      obj,
			OldObject:   old,
		})
	}
	both := func(p *corev1.Pod) {
		p.Spec.Resources.Requests = admissiontest.Quantities("cpu", "2")
		p.Spec.InitContainers[0].Resources.Requests = admissiontest.Quantities("cpu", "2")
	}
	for what, err := range map[string]error{
		"declared":  resize("new", both),
		"not bound": resize("", both),
		"a container": resize("old", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = admissiontest.Quantities("cpu", "1")
		}),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	admissiontest.WantForbidden(t, "half", resize("half", both),
		`pod update requires features `+whole+` which are not available on node "half"`)
	admissiontest.WantForbidden(t, "neither", resize("old", both), `pod update requires features `+whole+`, `+inits+
		` which are not available on node "old"`)
	admissiontest.WantForbidden(t, "no such node", resize("gone", both), `node "gone" not found`)
}
