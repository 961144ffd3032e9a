// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

func TestPodResize(t *testing.T) {
	node := func(name, system string) runtime.Object {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: system}},
			Status:     corev1.NodeStatus{Allocatable: admissiontest.Quantities("cpu", "1", "memory", "1Gi")},
		}
	}
	validator := podResizeValidator{
		admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
			admission.Nodes: {node("linux", "linux"), node("other", "windows")},
		}),
	}
	resize := func(nodeName, cpu, memory string, generation int64) error {
		obj := admissiontest.Pod()
		obj.Spec.NodeName = nodeName
		obj.Generation = 2
		obj.Spec.Containers[0].Resources.Requests = admissiontest.Quantities("cpu", cpu, "memory", memory)
		old := obj.DeepCopy()
		old.Generation = generation
		return validator.Validate(t.Context(), &admission.Request{
			Operation:   admission.Update,
			Resource:    admission.Pods,
			Subresource: "resize",
			Name:        "p",
			Object:      obj,
			OldObject:   old,
		})
	}
	for what, err := range map[string]error{
		"fits":        resize("linux", "1", "1Gi", 1),
		"not bound":   resize("", "9", "9Gi", 1),
		"not changed": resize("linux", "9", "9Gi", 2),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	admissiontest.WantForbidden(t, "too much", resize("linux", "2", "2Gi", 1), "node didn't have enough allocatable resources: "+
		"cpu, requested: 2000, allocatable: 1000; memory, requested: 2147483648, allocatable: 1073741824")
	admissiontest.WantForbidden(t, "another system", resize("other", "1", "1Gi", 1),
		`pod resize is only supported on linux nodes, node "other" is "windows"`)
	for cause, err := range map[metav1.CauseType]error{
		"NodeCapacity":        resize("linux", "2", "1Gi", 1),
		"UnsupportedPlatform": resize("other", "9", "1Gi", 1),
	} {
		s, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || len(s.ErrStatus.Details.Causes) != 1 || s.ErrStatus.Details.Causes[0].Type != cause {
			t.Errorf("got %v, want the cause %s", err, cause)
		}
	}
	admissiontest.WantForbidden(t, "no such node", resize("gone", "1", "1Gi", 1), `node "gone" not found`)
}
