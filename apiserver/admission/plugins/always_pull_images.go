// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission"
)

// alwaysPullImages sets the pull policy Always, so that a pod cannot use an image that only another pod's credentials
// could pull. Off by default.
type alwaysPullImages struct{}

func (alwaysPullImages) Name() string { return "AlwaysPullImages" }

// Admit sets the pull policy.
func (alwaysPullImages) Admit(_ context.Context, req *admission.Request) error {
	pod, ok := req.Object.(*corev1.Pod)
	if !ok || req.Resource != admission.Pods ||
		req.Operation != admission.Create && req.Operation != admission.Update ||
		req.Subresource != "" && req.Subresource != "ephemeralcontainers" {
		return nil
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			alwaysPull(req, "spec.containers[*].imagePullPolicy", &containers[i].ImagePullPolicy)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		alwaysPull(req, "spec.ephemeralContainers[*].imagePullPolicy", &pod.Spec.EphemeralContainers[i].ImagePullPolicy)
	}
	return nil
}

func alwaysPull(r *admission.Request, field string, policy *corev1.PullPolicy) {
	if *policy != corev1.PullAlways {
		*policy = corev1.PullAlways
		r.Changed(field)
	}
}
