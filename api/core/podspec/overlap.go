// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// volumeFile is a file of a volume and what it comes from: "" where the volume has one source.
type volumeFile struct {
	path, source string
}

func (p volumeFile) String() string {
	if p.source == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.source)
}

// overlaps reports whether one path is the other, or a directory on its way.
func (p volumeFile) overlaps(other volumeFile) bool {
	if p.path == "" || other.path == "" {
		return false
	}
	return strings.HasPrefix(p.path+"/", other.path+"/") || strings.HasPrefix(other.path+"/", p.path+"/")
}

// overlappingPaths warns of files of a volume of which one hides the other, or needs a directory where the other is.
func overlappingPaths(volumes []corev1.Volume) []string {
	var out []string
	for i := range volumes {
		volume := &volumes[i]
		switch {
		case volume.ConfigMap != nil:
			out = append(out, overlapsIn(volume.Name, fmt.Sprintf("ConfigMap %q", volume.ConfigMap.Name),
				keyPaths(volume.ConfigMap.Items, ""))...)
		case volume.Secret != nil:
			out = append(out, overlapsIn(volume.Name, fmt.Sprintf("Secret %q", volume.Secret.SecretName),
				keyPaths(volume.Secret.Items, ""))...)
		case volume.DownwardAPI != nil:
			out = append(out, overlapsIn(volume.Name, "DownwardAPI", fieldPaths(volume.DownwardAPI.Items, ""))...)
		case volume.Projected != nil:
			var all []volumeFile
			for j := range volume.Projected.Sources {
				source := &volume.Projected.Sources[j]
				if *source == (corev1.VolumeProjection{}) {
					out = append(out, fmt.Sprintf("volume %q (Projected) has no sources provided", volume.Name))
				}
				all = append(all, projectedPaths(source)...)
			}
			out = append(out, overlapsIn(volume.Name, "Projected", all)...)
		}
	}
	return out
}

// projectedPaths are the files whose names a source says; those of a whole ConfigMap or Secret are not known here.
func projectedPaths(source *corev1.VolumeProjection) []volumeFile {
	switch {
	case source.ConfigMap != nil:
		return keyPaths(source.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", source.ConfigMap.Name))
	case source.Secret != nil:
		return keyPaths(source.Secret.Items, fmt.Sprintf("Secret %q", source.Secret.Name))
	case source.DownwardAPI != nil:
		return fieldPaths(source.DownwardAPI.Items, "DownwardAPI")
	case source.ServiceAccountToken != nil:
		return []volumeFile{{source.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case source.ClusterTrustBundle != nil:
		bundle := source.ClusterTrustBundle
		name := bundle.Name
		if name == nil {
			name = bundle.SignerName
		}
		if name == nil {
			return nil
		}
		return []volumeFile{{bundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case source.PodCertificate != nil:
		return []volumeFile{
			{source.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{source.PodCertificate.KeyPath, "PodCertificate key"},
			{source.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		}
	}
	return nil
}

func keyPaths(items []corev1.KeyToPath, source string) []volumeFile {
	var out []volumeFile
	for _, item := range items {
		out = append(out, volumeFile{item.Path, source})
	}
	return out
}

func fieldPaths(items []corev1.DownwardAPIVolumeFile, source string) []volumeFile {
	var out []volumeFile
	for _, item := range items {
		out = append(out, volumeFile{item.Path, source})
	}
	return out
}

func overlapsIn(volume, what string, files []volumeFile) []string {
	var out []string
	for i := range files {
		files[i].path = strings.TrimRight(files[i].path, "/")
		for _, other := range files[:i] {
			if files[i].overlaps(other) {
				out = append(out, fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", volume, what, files[i],
					other))
			}
		}
	}
	return out
}
