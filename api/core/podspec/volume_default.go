// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/api/kind"
	"keelson/api/resources"
)

// defaultVolume fills in what a volume leaves out; a volume that says nothing is an emptyDir.
func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.HostPath != nil:
		kind.Fill(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Image != nil && v.Image.PullPolicy == "":
		v.Image.PullPolicy = pullPolicy(v.Image.Reference)
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		claim := &v.Ephemeral.VolumeClaimTemplate.Spec
		kind.Fill(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		resources.RoundUp(claim.Resources.Limits)
		resources.RoundUp(claim.Resources.Requests)
	}
	if s := v.Secret; s != nil {
		kind.Fill(&s.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s := v.ConfigMap; s != nil {
		kind.Fill(&s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s := v.DownwardAPI; s != nil {
		kind.Fill(&s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultFiles(s.Items)
	}
	if s := v.Projected; s != nil {
		defaultProjected(s)
	}
	DefaultLegacyVolume(&v.VolumeSource)
}

func defaultProjected(s *corev1.ProjectedVolumeSource) {
	kind.Fill(&s.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range s.Sources {
		if d := s.Sources[i].DownwardAPI; d != nil {
			defaultFiles(d.Items)
		}
		if t := s.Sources[i].ServiceAccountToken; t != nil {
			kind.Fill(&t.ExpirationSeconds, 3600)
		}
		if c := s.Sources[i].PodCertificate; c != nil {
			kind.Fill(&c.MaxExpirationSeconds, 86400)
		}
	}
}

func defaultFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if ref := files[i].FieldRef; ref != nil {
			kind.FillZero(&ref.APIVersion, "v1")
		}
	}
}

// DefaultLegacyVolume serves the sources that came before CSI.
func DefaultLegacyVolume(v *corev1.VolumeSource) {
	if s := v.ISCSI; s != nil {
		kind.FillZero(&s.ISCSIInterface, "default")
	}
	if s := v.RBD; s != nil {
		kind.FillZero(&s.RBDPool, "rbd")
		kind.FillZero(&s.RadosUser, "admin")
		kind.FillZero(&s.Keyring, "/etc/ceph/keyring")
	}
	if s := v.AzureDisk; s != nil {
		kind.Fill(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		kind.Fill(&s.Kind, corev1.AzureSharedBlobDisk)
		kind.Fill(&s.FSType, "ext4")
		kind.Fill(&s.ReadOnly, false)
	}
	if s := v.ScaleIO; s != nil {
		kind.FillZero(&s.StorageMode, "ThinProvisioned")
		kind.FillZero(&s.FSType, "xfs")
	}
}
