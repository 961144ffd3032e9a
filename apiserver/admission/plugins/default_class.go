// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/scheduling"
	"keelson/api/storage"
	"keelson/apiserver/admission"
)

var (
	storageClasses = storagev1.SchemeGroupVersion.WithResource("storageclasses")
	ingressClasses = networkingv1.SchemeGroupVersion.WithResource("ingressclasses")
)

// newest is the newest class; of those created at the same time the first by name; the zero value if there is none.
func newest[T interface {
	metav1.Object
	runtime.Object
}](classes []T,
) (best T, ok bool) {
	if len(classes) == 0 {
		return best, false
	}
	return slices.MinFunc(classes, func(a, b T) int {
		x := a.GetCreationTimestamp()
		y := b.GetCreationTimestamp()
		return cmp.Or(y.Compare(x.Time), cmp.Compare(a.GetName(), b.GetName()))
	}), true
}

// defaultStorageClass sets the default class of a claim without a class.
type defaultStorageClass struct{ Reader admission.Reader }

func (defaultStorageClass) Name() string { return "DefaultStorageClass" }

// Admit sets the class of new claims.
func (p defaultStorageClass) Admit(ctx context.Context, req *admission.Request) error {
	claim, ok := req.Object.(*corev1.PersistentVolumeClaim)
	if !ok || req.Operation != admission.Create || req.Subresource != "" || claim.Spec.StorageClassName != nil {
		return nil
	}
	if _, old := claim.Annotations[corev1.BetaStorageClassAnnotation]; old {
		return nil
	}
	classes, err := admission.List[*storagev1.StorageClass](ctx, p.Reader, storageClasses, "")
	if err != nil {
		return admission.Forbidden(req, "%w", err)
	}
	if best := storage.DefaultClass(classes); best != nil {
		name := best.Name
		claim.Spec.StorageClassName = &name
		req.Changed("spec.storageClassName")
	}
	return nil
}

// defaultIngressClass sets the default class of an Ingress without a class.
type defaultIngressClass struct{ Reader admission.Reader }

func (defaultIngressClass) Name() string { return "DefaultIngressClass" }

// Admit sets the class of new ingresses.
func (p defaultIngressClass) Admit(ctx context.Context, req *admission.Request) error {
	ingress, ok := req.Object.(*networkingv1.Ingress)
	if !ok || req.Operation != admission.Create || req.Subresource != "" || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, old := ingress.Annotations["kubernetes.io/ingress.class"]; old {
		return nil
	}
	classes, err := admission.List[*networkingv1.IngressClass](ctx, p.Reader, ingressClasses, "")
	if err != nil {
		return admission.Forbidden(req, "%w", err)
	}
	classes = slices.DeleteFunc(classes, func(c *networkingv1.IngressClass) bool {
		return c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] != "true"
	})
	if best, ok := newest(classes); ok {
		name := best.Name
		ingress.Spec.IngressClassName = &name
		req.Changed("spec.ingressClassName")
	}
	return nil
}

// persistentVolumeClaimResize allows the expansion of a claim only if its class does.
type persistentVolumeClaimResize struct{ Reader admission.Reader }

func (persistentVolumeClaimResize) Name() string { return "PersistentVolumeClaimResize" }

// Validate checks claims that request more than before.
func (p persistentVolumeClaimResize) Validate(ctx context.Context, req *admission.Request) error {
	claim, ok := req.Object.(*corev1.PersistentVolumeClaim)
	old, had := req.OldObject.(*corev1.PersistentVolumeClaim)
	if !ok || !had || req.Operation != admission.Update || req.Subresource != "" {
		return nil
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	before := old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(before) <= 0 {
		return nil
	}
	class, annotated := old.Annotations[corev1.BetaStorageClassAnnotation]
	if !annotated && old.Spec.StorageClassName != nil {
		class = *old.Spec.StorageClassName
	}
	if class != "" {
		sc, err := admission.Get[*storagev1.StorageClass](ctx, p.Reader, storageClasses, "", class)
		if err == nil && sc.AllowVolumeExpansion != nil && *sc.AllowVolumeExpansion {
			return nil
		}
	}
	return admission.Forbidden(req,
		"only dynamically provisioned pvc can be resized and the storageclass that provisions the "+
			"pvc must support resize")
}

// podGroupProtection prevents the removal of pod groups that still have pods: it adds a finalizer, which the
// podgroup-protection controller removes.
type podGroupProtection struct{}

func (podGroupProtection) Name() string { return "PodGroupProtection" }

// Admit adds the finalizer to new groups.
func (podGroupProtection) Admit(_ context.Context, r *admission.Request) error {
	if g, ok := r.Object.(*schedulingv1beta1.PodGroup); ok && r.Operation == admission.Create && r.Subresource == "" {
		addFinalizer(r, g, scheduling.PodGroupProtection)
	}
	return nil
}

func addFinalizer(r *admission.Request, o metav1.Object, finalizer string) {
	if !slices.Contains(o.GetFinalizers(), finalizer) {
		o.SetFinalizers(append(slices.Clone(o.GetFinalizers()), finalizer))
		r.Changed("metadata.finalizers")
	}
}

// storageObjectInUseProtection prevents the removal of volumes, claims and volume attributes classes in use: it adds
// finalizers, which the protection controllers remove.
type storageObjectInUseProtection struct{}

func (storageObjectInUseProtection) Name() string { return "StorageObjectInUseProtection" }

// Admit adds the finalizer to new objects.
func (storageObjectInUseProtection) Admit(_ context.Context, req *admission.Request) error {
	if req.Operation != admission.Create || req.Subresource != "" {
		return nil
	}
	finalizer := ""
	switch req.Object.(type) {
	case *corev1.PersistentVolume:
		finalizer = "kubernetes.io/pv-protection"
	case *corev1.PersistentVolumeClaim:
		finalizer = "kubernetes.io/pvc-protection"
	case *storagev1.VolumeAttributesClass:
		finalizer = "kubernetes.io/vac-protection"
	}
	if o, ok := req.Object.(metav1.Object); ok && finalizer != "" {
		addFinalizer(req, o, finalizer)
	}
	return nil
}
