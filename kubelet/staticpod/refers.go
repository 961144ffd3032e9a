// SPDX-License-Identifier: Apache-2.0

package staticpod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/refs"
)

// checkReferences refuses a pod that refers to objects of the API, as Kubernetes does since v1.34: the API server has
// not checked who may use them, and would not take the mirror pod.
func checkReferences(pod *corev1.Pod) error {
	what, err := referred(pod)
	if err != nil {
		return err
	}
	if what != "" {
		return fmt.Errorf("static pods may not reference %s; create the pod in the API instead", what)
	}
	return nil
}

// referred returns the resource that a pod refers to; empty: none.
func referred(pod *corev1.Pod) (string, error) {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts", nil
	}
	if len(pod.Spec.ImagePullSecrets) > 0 {
		return "secrets", nil
	}
	all, err := refs.Of(pod)
	if err != nil {
		return "", err
	}
	for _, ref := range all {
		switch ref.Kind {
		case refs.Secret:
			return "secrets", nil
		case refs.ConfigMap:
			return "configmaps", nil
		default:
			return "clustertrustbundles", nil
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims", nil
	}
	for i := range pod.Spec.Volumes {
		if what := referredBy(&pod.Spec.Volumes[i]); what != "" {
			return what, nil
		}
	}
	return "", nil
}

// referredBy returns the resource that a volume refers to, other than those of refs.Of; empty: none.
func referredBy(v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistentvolumeclaims"
	case v.CSI != nil:
		return "csidrivers"
	case v.Projected == nil:
		return ""
	}
	for _, source := range v.Projected.Sources {
		if source.ServiceAccountToken != nil || source.PodCertificate != nil {
			return "serviceaccounts"
		}
	}
	return ""
}
