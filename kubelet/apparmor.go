// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/podinfo"
	"keelson/kubelet/translate"
)

// appArmorFile is where the kernel says whether it enforces AppArmor profiles.
const appArmorFile = "/sys/module/apparmor/parameters/enabled"

// appArmorOn reports whether it does; file is appArmorFile but for tests.
func appArmorOn(file string) bool {
	b, err := os.ReadFile(file) //nolint:gosec // the kernel's file
	return err == nil && strings.HasPrefix(string(b), "Y")
}

// wantsAppArmor reports whether a container of the pod asks for a profile that must be enforced.
func wantsAppArmor(p *corev1.Pod) bool {
	for c := range podinfo.All(p) {
		if a := translate.AppArmorProfile(p, c); a != nil && a.Type != corev1.AppArmorProfileTypeUnconfined {
			return true
		}
	}
	return false
}
