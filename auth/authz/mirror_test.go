// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/auth"
)

// TestMirrorPodsOpenNothing: what a pod refers to that its node made itself is not the node's to read.
func TestMirrorPodsOpenNothing(t *testing.T) {
	claim := "gpu"
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
		Spec: corev1.PodSpec{
			NodeName:           "one",
			ServiceAccountName: "web",
			ImagePullSecrets:   []corev1.LocalObjectReference{{Name: "s"}},
			ResourceClaims:     []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: &claim}},
			Volumes: []corev1.Volume{
				{
					Name: "m",
					VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "m"},
					}},
				},
				{
					Name: "v",
					VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
						ClaimName: "v",
					}},
				},
			},
		},
	}
	mirror := p.DeepCopy()
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	for what, pod := range map[string]*corev1.Pod{"a pod": p, "a mirror pod": mirror} {
		node := Node{Pods: func(string) []*corev1.Pod { return []*corev1.Pod{pod} }}
		for _, attrs := range []auth.Attributes{
			{Verb: "get", Resource: "secrets", Name: "s"},
			{Verb: "get", Resource: "configmaps", Name: "m"},
			{Verb: "get", Resource: "persistentvolumeclaims", Name: "v"},
			{
				Verb:     "get",
				Group:    "resource.k8s.io",
				Resource: "resourceclaims",
				Name:     "gpu",
			},
			{
				Verb:        "create",
				Resource:    "serviceaccounts",
				Subresource: "token",
				Name:        "web",
			},
		} {
			attrs.User = &auth.User{Name: "system:node:one", Groups: []string{auth.Nodes}}
			attrs.Namespace = "default"
			attrs.ResourceRequest = true
			d, err := node.Authorize(t.Context(), &attrs)
			if err != nil || (d.Verdict == auth.Allow) != (pod == p) {
				t.Errorf("%s %s of %s: %v %s, %v", attrs.Verb, attrs.Resource, what, d.Verdict, d.Reason, err)
			}
		}
	}
}
