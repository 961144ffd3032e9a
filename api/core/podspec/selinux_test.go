// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestSELinuxChangePolicy: seLinuxChangePolicy has two values, and is for Linux.
func TestSELinuxChangePolicy(t *testing.T) {
	for _, c := range []struct {
		policy corev1.PodSELinuxChangePolicy
		os     corev1.OSName
		want   string
	}{
		{corev1.SELinuxChangePolicyRecursive, corev1.Linux, ""},
		{corev1.SELinuxChangePolicyMountOption, corev1.Linux, ""},
		{
			"Never", corev1.Linux,
			`spec.securityContext.seLinuxChangePolicy: Unsupported value: "Never": supported values: "MountOption", "Recursive"`,
		},
		{
			corev1.SELinuxChangePolicyRecursive, corev1.Windows,
			"spec.securityContext.seLinuxChangePolicy: Forbidden: cannot be set for a windows pod",
		},
	} {
		spec := &corev1.PodSpec{
			OS:                            &corev1.PodOS{Name: c.os},
			RestartPolicy:                 corev1.RestartPolicyAlways,
			DNSPolicy:                     corev1.DNSClusterFirst,
			TerminationGracePeriodSeconds: new(int64(1)),
			SecurityContext:               &corev1.PodSecurityContext{SELinuxChangePolicy: &c.policy},
			Containers: []corev1.Container{{
				Name:                     "c",
				Image:                    "i",
				ImagePullPolicy:          corev1.PullAlways,
				TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}},
		}
		got := ""
		if errs := Validate(spec, field.NewPath("spec")); len(errs) > 0 {
			got = errs.ToAggregate().Error()
		}
		if got != c.want {
			t.Errorf("%s on %s: got %s, want %s", c.policy, c.os, got, c.want)
		}
	}
}
