// SPDX-License-Identifier: Apache-2.0

package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// ClaimName is the claim that a volume of p names or stands for; empty: none.
func ClaimName(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(p, v)
	}
	return ""
}

// Claims are the names of the claims of p's volumes.
func Claims(p *corev1.Pod) []string {
	var out []string
	for i := range p.Spec.Volumes {
		if name := ClaimName(p, &p.Spec.Volumes[i]); name != "" {
			out = append(out, name)
		}
	}
	return out
}
