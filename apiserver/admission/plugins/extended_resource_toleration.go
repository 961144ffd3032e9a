// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/resources"
	"keelson/apiserver/admission"
)

// extendedResourceToleration adds tolerations for the taints of extended resources that a pod requests. Off by default.
type extendedResourceToleration struct{}

func (extendedResourceToleration) Name() string { return "ExtendedResourceToleration" }

// Admit adds the tolerations.
func (extendedResourceToleration) Admit(_ context.Context, req *admission.Request) error {
	pod, err := podIn(req, admission.Create, admission.Update)
	if pod == nil {
		return err
	}
	names := map[corev1.ResourceName]bool{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if resources.IsExtended(name) {
					names[name] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := corev1.Toleration{
			Key:      string(name),
			Operator: corev1.TolerationOpExists,
			Effect:   corev1.TaintEffectNoSchedule,
		}
		if !hasToleration(pod.Spec.Tolerations, &t) {
			pod.Spec.Tolerations = append(slices.Clip(pod.Spec.Tolerations), t)
			req.Changed("spec.tolerations")
		}
	}
	return nil
}
