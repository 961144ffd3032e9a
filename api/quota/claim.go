// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var claimMeter = &Meter{
	Tracks:   claimTracks,
	Usage:    claimUsage,
	InScope:  claimInScope,
	OnUpdate: true,
}

// ofClass comes between a storage class's name and what is limited in it.
const ofClass = ".storageclass.storage.k8s.io/"

func claimTracks(n corev1.ResourceName) bool {
	switch n {
	case "count/persistentvolumeclaims", corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage:
		return true
	}
	return strings.HasSuffix(string(n), ofClass+string(corev1.ResourcePersistentVolumeClaims)) ||
		strings.HasSuffix(string(n), ofClass+string(corev1.ResourceRequestsStorage))
}

func claimUsage(obj runtime.Object, _ time.Time) corev1.ResourceList {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	out := corev1.ResourceList{"count/persistentvolumeclaims": one(), corev1.ResourcePersistentVolumeClaims: one()}
	class, old := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if !old && claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	if class != "" {
		out[corev1.ResourceName(class+ofClass)+corev1.ResourcePersistentVolumeClaims] = one()
	}
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return out
	}
	size = size.DeepCopy()
	// While a claim that was being grown shrinks back, what was allocated for it still counts.
	if has, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && has.Cmp(size) > 0 {
		size = has.DeepCopy()
	}
	size.RoundUp(0) // whole bytes, which is all that a quota's status may hold
	out[corev1.ResourceRequestsStorage] = size
	if class != "" {
		out[corev1.ResourceName(class+ofClass)+corev1.ResourceRequestsStorage] = size.DeepCopy()
	}
	return out
}

// claimInScope knows one scope, the class of volume attributes: the one asked for, the one in force and the one on its
// way.
func claimInScope(sel corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false, fmt.Errorf("expect a persistent volume claim, got %T", obj)
	}
	if sel.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	var classes []string
	for _, p := range []*string{claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName} {
		if p != nil && *p != "" {
			classes = append(classes, *p)
		}
	}
	if m := claim.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		classes = append(classes, m.TargetVolumeAttributesClassName)
	}
	if len(classes) == 0 {
		return selects(sel, "")
	}
	for _, class := range classes {
		if ok, err := selects(sel, class); err != nil || ok {
			return ok, err
		}
	}
	return false, nil
}
