// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"slices"

	"keelson/auth"
)

// KubeletClient is the user name of the API server at kubelets. It has no rights at the API server, which does not
// trust the CA of its certificate either.
const KubeletClient = "kube-apiserver-kubelet-client"

// kubeletResources are the node subresources that guard the kubelet API, as in the ClusterRole
// system:kubelet-api-admin.
var kubeletResources = []string{"proxy", "log", "stats", "metrics", "healthz", "pods", "configz", "checkpoint"}

// ForKubelet answers a kubelet's SubjectAccessReview about the API server's access to the kubelet API: allowed for the
// kubelet's own node. It has no opinion on anything else.
func ForKubelet(asker *auth.User, a *auth.Attributes) auth.Decision {
	node, ok := NodeName(asker)
	if !ok || a.User == nil || a.User.Name != KubeletClient || !a.ResourceRequest || a.Group != "" ||
		a.Resource != "nodes" || a.Name != node {
		return auth.Decision{}
	}
	if !slices.Contains(kubeletResources, a.Subresource) {
		return auth.Decision{}
	}
	return auth.Decision{Verdict: auth.Allow, Reason: "the API server may use the API of the kubelet that asks"}
}
