// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/storage"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

func TestDefaultClasses(t *testing.T) {
	at := func(minute int, name, annotation string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name:              name,
			CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)),
			Annotations:       map[string]string{annotation: "true"},
		}
	}
	yes := true
	cache := admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
		storageClasses: {
			&storagev1.StorageClass{ObjectMeta: at(1, "old", storage.DefaultClassAnnotation)}, &storagev1.StorageClass{
				ObjectMeta:           at(2, "new", "storageclass.beta.kubernetes.io/is-default-class"),
				AllowVolumeExpansion: &yes,
			},
			&storagev1.StorageClass{ObjectMeta: at(3, "other", "x")},
		},
		ingressClasses: {
			&networkingv1.IngressClass{ObjectMeta: at(1, "b", networkingv1.AnnotationIsDefaultIngressClass)},
			&networkingv1.IngressClass{ObjectMeta: at(1, "a", networkingv1.AnnotationIsDefaultIngressClass)},
		},
	})
	claim := &corev1.PersistentVolumeClaim{}
	if err := (defaultStorageClass{cache}).Admit(t.Context(), &admission.Request{Operation: admission.Create, Object: claim}); err != nil ||
		*claim.Spec.StorageClassName != "new" {
		t.Errorf("claim: got %v, %v, want new", claim.Spec.StorageClassName, err)
	}
	none := ""
	own := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &none}}
	if err := (defaultStorageClass{cache}).Admit(t.Context(), &admission.Request{Operation: admission.Create, Object: own}); err != nil ||
		*own.Spec.StorageClassName != "" {
		t.Errorf("claim that wants no class: got %q, %v", *own.Spec.StorageClassName, err)
	}
	ingress := &networkingv1.Ingress{}
	if err := (defaultIngressClass{cache}).Admit(t.Context(),
		&admission.Request{Operation: admission.Create, Object: ingress}); err != nil ||
		*ingress.Spec.IngressClassName != "a" {
		t.Errorf("ingress: got %v, %v, want a", ingress.Spec.IngressClassName, err)
	}
	sized := func(class, size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			Resources:        corev1.VolumeResourceRequirements{Requests: admissiontest.Quantities("storage", size)},
		}}
	}
	resize := persistentVolumeClaimResize{cache}
	grow := func(class string) error {
		return resize.Validate(t.Context(), &admission.Request{
			Operation: admission.Update,
			Object:    sized(class, "2Gi"),
			OldObject: sized(class, "1Gi"),
		})
	}
	if err := grow("new"); err != nil {
		t.Errorf("class that allows it: %v", err)
	}
	admissiontest.WantForbidden(t, "class that does not", grow("old"), "the storageclass that provisions the pvc must support resize")
}
