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

func TestSecondRound(t *testing.T) {
	p := serviceAccount{Reader: admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{admission.ServiceAccounts: {
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "default"}},
	}})}
	obj := admissiontest.Pod()
	if err := p.Admit(t.Context(), admissiontest.Creation(obj)); err != nil {
		t.Fatal(err)
	}
	obj.Spec.Containers = append(obj.Spec.Containers, corev1.Container{Name: "side"}) // by a webhook
	if err := p.Admit(t.Context(), admissiontest.Creation(obj)); err != nil {
		t.Fatal(err)
	}
	if len(obj.Spec.Volumes) != 1 || len(obj.Spec.Containers[1].VolumeMounts) != 1 ||
		obj.Spec.Containers[1].VolumeMounts[0].Name != obj.Spec.Volumes[0].Name {
		t.Errorf("got volumes %v, mounts %v", obj.Spec.Volumes, obj.Spec.Containers[1].VolumeMounts)
	}
}
