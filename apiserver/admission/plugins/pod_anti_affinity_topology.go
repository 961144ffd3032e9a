// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission"
)

// limitPodHardAntiAffinityTopology rejects required anti-affinity with another topology key than the host name. Off by
// default.
type limitPodHardAntiAffinityTopology struct{}

func (limitPodHardAntiAffinityTopology) Name() string { return "LimitPodHardAntiAffinityTopology" }

// Validate checks the required anti-affinity terms.
func (limitPodHardAntiAffinityTopology) Validate(_ context.Context, r *admission.Request) error {
	pod, err := podIn(r, admission.Create, admission.Update)
	if pod == nil || pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return err
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return admission.Forbidden(r,
				"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key "+
					"%v is allowed", term.TopologyKey, corev1.LabelHostname)
		}
	}
	return nil
}
