// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/auth"
)

// maxRoleTokenSeconds is the maximum lifetime, in seconds, of a token for a node role other than the kubelet.
const maxRoleTokenSeconds = 3600

// roleToken reports whether the token is not bound to a pod and is for a node role other than the kubelet.
func (p Plugin) roleToken(r *admission.Request, ref *authenticationv1.BoundObjectReference) bool {
	return r.Namespace == metav1.NamespaceSystem && slices.Contains(p.RoleAccounts, r.Name) && ref != nil &&
		ref.APIVersion == "v1" && ref.Kind == "Node"
}

// nodeToken allows a kubelet a token of another role of its node: for an hour, for the API server only, and bound to
// its Node.
func (p Plugin) nodeToken(
	ctx context.Context, req *admission.Request, tr *authenticationv1.TokenRequest, node string,
) error {
	ref := tr.Spec.BoundObjectRef
	switch {
	case ref.Name != node:
		return admission.Forbidden(req, "node %q requested token bound to node %q", node, ref.Name)
	case ref.UID == "":
		return admission.Forbidden(req, "node requested token with a node binding without a uid")
	case len(tr.Spec.Audiences) > 0:
		return admission.Forbidden(req,
			"node may only request the API server's own audience for a token bound to itself")
	case tr.Spec.ExpirationSeconds != nil && *tr.Spec.ExpirationSeconds > maxRoleTokenSeconds:
		return admission.Forbidden(req,
			"node may only request a token bound to itself for %d seconds", maxRoleTokenSeconds)
	}
	own, err := admission.Get[*corev1.Node](ctx, p.Reader, admission.Nodes, "", node)
	if err != nil {
		return err
	}
	if own.UID != ref.UID {
		return admission.Forbidden(req,
			"the UID in the bound object reference (%s) does not match the UID in record. The "+
				"object "+
				"might have been deleted and then recreated", ref.UID)
	}
	return nil
}

// RoleNode returns the node of a role other than the kubelet: the user has one of these service accounts of
// kube-system, and its token is bound to the node.
func RoleNode(u *auth.User, accounts []string) (string, bool) {
	name, ok := strings.CutPrefix(u.Name, "system:serviceaccount:"+metav1.NamespaceSystem+":")
	if !ok || !slices.Contains(accounts, name) {
		return "", false
	}
	if node := u.Extra["authentication.kubernetes.io/node-name"]; len(node) == 1 && node[0] != "" {
		return node[0], true
	}
	return "", false
}

// role limits a node role other than the kubelet to its node's objects.
func (p Plugin) role(r *admission.Request) error {
	node, ok := RoleNode(r.User, p.RoleAccounts)
	if !ok {
		return nil
	}
	switch r.Resource.Resource {
	case "endpointslices":
		return ownNames(r, node)
	case "services":
		return namesService(r, node)
	}
	return nil
}
