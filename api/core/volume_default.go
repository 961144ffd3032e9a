// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
)

// defaultVolume fills in what a volume leaves out; a volume that says nothing is an emptyDir.
func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.HostPath != nil:
		defPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Image != nil && v.Image.PullPolicy == "":
		v.Image.PullPolicy = pullPolicy(v.Image.Reference)
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		claim := &v.Ephemeral.VolumeClaimTemplate.Spec
		defPtr(&claim.VolumeMode, corev1.PersistentVolumeFilesystem)
		roundUp(claim.Resources.Limits)
		roundUp(claim.Resources.Requests)
	}
	if s := v.Secret; s != nil {
		defPtr(&s.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	}
	if s := v.ConfigMap; s != nil {
		defPtr(&s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	}
	if s := v.DownwardAPI; s != nil {
		defPtr(&s.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultFiles(s.Items)
	}
	if s := v.Projected; s != nil {
		defaultProjected(s)
	}
	defaultLegacyVolume(&v.VolumeSource)
}

func defaultProjected(s *corev1.ProjectedVolumeSource) {
	defPtr(&s.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range s.Sources {
		if d := s.Sources[i].DownwardAPI; d != nil {
			defaultFiles(d.Items)
		}
		if t := s.Sources[i].ServiceAccountToken; t != nil {
			defPtr(&t.ExpirationSeconds, 3600)
		}
		if c := s.Sources[i].PodCertificate; c != nil {
			defPtr(&c.MaxExpirationSeconds, 86400)
		}
	}
}

func defaultFiles(files []corev1.DownwardAPIVolumeFile) {
	for i := range files {
		if ref := files[i].FieldRef; ref != nil {
			def(&ref.APIVersion, "v1")
		}
	}
}

// defaultLegacyVolume serves the sources that came before CSI.
func defaultLegacyVolume(v *corev1.VolumeSource) {
	if s := v.ISCSI; s != nil {
		def(&s.ISCSIInterface, "default")
	}
	if s := v.RBD; s != nil {
		def(&s.RBDPool, "rbd")
		def(&s.RadosUser, "admin")
		def(&s.Keyring, "/etc/ceph/keyring")
	}
	if s := v.AzureDisk; s != nil {
		defPtr(&s.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		defPtr(&s.Kind, corev1.AzureSharedBlobDisk)
		defPtr(&s.FSType, "ext4")
		defPtr(&s.ReadOnly, false)
	}
	if s := v.ScaleIO; s != nil {
		def(&s.StorageMode, "ThinProvisioned")
		def(&s.FSType, "xfs")
	}
}
