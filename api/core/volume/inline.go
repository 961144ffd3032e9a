// SPDX-License-Identifier: Apache-2.0

package volume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

// ValidateInline checks the description of a volume in an attachment, which has no PersistentVolume: it must be a CSI
// driver's, and says nothing of what claims have to do with.
func ValidateInline(spec *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	const inline = "may not be specified in the context of inline volumes"
	errs := check.At(at)
	forbid := func(set bool, child, detail string) {
		if set {
			errs.Forbidden(child, detail)
		}
	}
	forbid(spec.ClaimRef != nil, "claimRef", inline)
	forbid(len(spec.Capacity) > 0, "capacity", inline)
	if spec.CSI == nil {
		errs.Required("csi", "has to be specified in the context of inline volumes")
	}
	validateVolumeModes(errs, spec)
	policy := spec.PersistentVolumeReclaimPolicy
	forbid(policy != "" && policy != corev1.PersistentVolumeReclaimRetain, "persistentVolumeReclaimPolicy",
		"may only be Retain in the context of inline volumes")
	forbid(spec.NodeAffinity != nil, "nodeAffinity", inline)
	validateVolumeSources(errs, &corev1.PersistentVolume{Spec: *spec})
	forbid(spec.StorageClassName != "", "storageClassName", inline)
	forbid(spec.VolumeMode != nil && *spec.VolumeMode != corev1.PersistentVolumeFilesystem, "volumeMode",
		"may not specify volumeMode other than Filesystem in the context of inline volumes")
	return errs.Errors()
}
