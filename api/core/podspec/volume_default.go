// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	corev1 "k8s.io/api/core/v1"

	"keelson/api/kind"
	"keelson/api/resources"
)

// defaultVolume fills in what a volume leaves out; a volume that says nothing is an emptyDir.
func defaultVolume(volume *corev1.Volume) {
	if volume.VolumeSource == (corev1.VolumeSource{}) {
		volume.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	if image := volume.Image; image != nil && image.PullPolicy == "" {
		image.PullPolicy = pullPolicy(image.Reference)
	}
	if e := volume.Ephemeral; e != nil && e.VolumeClaimTemplate != nil {
		claim := &e.VolumeClaimTemplate.Spec
		kind.Fill(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		resources.RoundUp(claim.Resources.Limits)
		resources.RoundUp(claim.Resources.Requests)
	}
	if s := volume.Secret; s != nil {
		kind.Fill(&s.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s := volume.ConfigMap; s != nil {
		kind.Fill(&s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s := volume.DownwardAPI; s != nil {
		kind.Fill(&s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultFiles(s.Items)
	}
	if s := volume.Projected; s != nil {
		defaultProjected(s)
	}
	if s := volume.ISCSI; s != nil {
		DefaultISCSI(&s.ISCSIInterface)
	}
	if s := volume.RBD; s != nil {
		DefaultRBD(&s.RBDPool, &s.RadosUser, &s.Keyring)
	}
	if s := volume.ScaleIO; s != nil {
		DefaultScaleIO(&s.StorageMode, &s.FSType)
	}
	DefaultSharedSources(&volume.VolumeSource)
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

// DefaultSharedSources fills in the sources that have one type in pods and in persistent volumes.
func DefaultSharedSources(volumeSource *corev1.VolumeSource) {
	if s := volumeSource.HostPath; s != nil {
		kind.Fill(&s.Type, corev1.HostPathUnset)
	}
	if s := volumeSource.AzureDisk; s != nil {
		kind.Fill(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		kind.Fill(&s.Kind, corev1.AzureSharedBlobDisk)
		kind.Fill(&s.FSType, "ext4")
		kind.Fill(&s.ReadOnly, false)
	}
}

// DefaultISCSI fills in the field of an ISCSI source.
func DefaultISCSI(iface *string) { kind.FillZero(iface, "default") }

// DefaultRBD fills in the fields of an RBD source.
func DefaultRBD(pool, user, keyring *string) {
	kind.FillZero(pool, "rbd")
	kind.FillZero(user, "admin")
	kind.FillZero(keyring, "/etc/ceph/keyring")
}

// DefaultScaleIO fills in the fields of a ScaleIO source.
func DefaultScaleIO(mode, fsType *string) {
	kind.FillZero(mode, "ThinProvisioned")
	kind.FillZero(fsType, "xfs")
}
