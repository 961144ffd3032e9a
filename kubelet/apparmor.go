// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/translate"
)

// appArmorFile reports whether the kernel enforces AppArmor profiles.
const appArmorFile = "/sys/module/apparmor/parameters/enabled"

// appArmorEnabled reports whether the kernel enforces AppArmor profiles; file is appArmorFile except in tests.
func appArmorEnabled(file string) bool {
	b, err := os.ReadFile(file) // the kernel's file
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// usesAppArmor reports whether a container of the pod has an AppArmor profile that must be enforced.
func usesAppArmor(p *corev1.Pod) bool {
	for c := range podinfo.All(p) {
		if a := translate.AppArmorProfile(p, c); a != nil && a.Type != corev1.AppArmorProfileTypeUnconfined {
			return true
		}
	}
	return false
}
