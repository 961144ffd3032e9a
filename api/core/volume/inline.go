// SPDX-License-Identifier: Apache-2.0

package volume

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

// ValidateInline checks the description of a volume in an attachment, which has no PersistentVolume: it must be a CSI
// driver's, and says nothing of what claims have to do with.
func ValidateInline(s *corev1.PersistentVolumeSpec, at *field.Path) field.ErrorList {
	const inline = "may not be specified in the context of inline volumes"
	l := check.At(at)
	forbid := func(set bool, child, detail string) {
		if set {
			l.Forbidden(child, detail)
		}
	}
	forbid(s.ClaimRef != nil, "claimRef", inline)
	forbid(len(s.Capacity) > 0, "capacity", inline)
	if s.CSI == nil {
		l.Required("csi", "has to be specified in the context of inline volumes")
	}
	validateVolumeModes(l, s)
	policy := s.PersistentVolumeReclaimPolicy
	forbid(policy != "" && policy != corev1.PersistentVolumeReclaimRetain, "persistentVolumeReclaimPolicy",
		"may only be Retain in the context of inline volumes")
	forbid(s.NodeAffinity != nil, "nodeAffinity", inline)
	validateVolumeSources(l, &corev1.PersistentVolume{Spec: *s})
	forbid(s.StorageClassName != "", "storageClassName", inline)
	forbid(s.VolumeMode != nil && *s.VolumeMode != corev1.PersistentVolumeFilesystem, "volumeMode",
		"may not specify volumeMode other than Filesystem in the context of inline volumes")
	return l.Errors()
}
