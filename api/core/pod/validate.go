// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
)

// checker checks what only pods have, in addition to their specs.
type checker struct {
	podspec.Checker

	spec *corev1.PodSpec
}

func newChecker(p *corev1.Pod) *checker { return &checker{podspec.ForPod(p), &p.Spec} }

// validateCreate checks a pod as it is first stored.
func validateCreate(pod *corev1.Pod) field.ErrorList {
	checker := newChecker(pod)
	checker.Pod(pod)
	checker.In("spec")
	if len(pod.Spec.EphemeralContainers) > 0 {
		checker.Forbidden("ephemeralContainers", "cannot be set on create")
	}
	if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) != 0 {
		checker.Forbidden("nodeName", "cannot be set until all schedulingGates have been cleared")
	}
	if len(pod.Annotations) > 0 {
		checker.ProfilesMatch(pod.Annotations)
	}
	checker.Out()
	return checker.Errors()
}

// warnings are sent when a pod is created; programs, not people, update pods.
func warnings(p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	var out []string
	if msgs := validation.IsDNS1123Label(p.Name); len(msgs) != 0 {
		out = append(out,
			fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; "+
				"a DNS label is recommended: %v", msgs))
	}
	return append(out, podspec.Warnings(p)...)
}

// statusWarnings are about addresses in a form that is not the usual one.
func statusWarnings(p *corev1.Pod) []string {
	var out []string
	at := field.NewPath("status")
	for i, ip := range p.Status.PodIPs {
		out = append(out, check.WarnIP(at.Child("podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		out = append(out, check.WarnIP(at.Child("hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return out
}
