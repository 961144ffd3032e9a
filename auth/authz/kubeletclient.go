// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"slices"

	"keelson/auth"
)

// KubeletClient is the user that the API server is to kubelets. It has no rights here, and no authenticator here knows it: its
// certificate is signed by an authority that kubelets alone believe.
const KubeletClient = "kube-apiserver-kubelet-client"

// kubeletResources are the subresources of nodes that guard a kubelet's own API, those of the ClusterRole system:kubelet-api-admin.
var kubeletResources = []string{"proxy", "log", "stats", "metrics", "healthz", "pods", "configz", "checkpoint"}

// ForKubelet answers a kubelet that asks, in a SubjectAccessReview, whether the API server may use the kubelet's own API: yes, that of the
// node which asks. It has no opinion on anything else.
func ForKubelet(asker *auth.User, a *auth.Attributes) auth.Decision {
	node, ok := NodeName(asker)
	if !ok || a.User == nil || a.User.Name != KubeletClient || !a.ResourceRequest || a.Group != "" || a.Resource != "nodes" || a.Name != node {
		return auth.Decision{}
	}
	if !slices.Contains(kubeletResources, a.Subresource) {
		return auth.Decision{}
	}
	return auth.Decision{Verdict: auth.Allow, Reason: "the API server may use the API of the kubelet that asks"}
}
