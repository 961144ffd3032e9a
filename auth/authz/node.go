// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/selection"

	"keelson/auth"
)

// Node is the Node authorizer. A kubelet may read only secrets, config maps, claims and service-account tokens that its
// pods refer to, and write only its own node, lease and pods.
type Node struct {
	// Pods returns the pods bound to a node. They are shared with caches and never modified.
	Pods func(node string) []*corev1.Pod
	// Objects reads objects that may refer to a node.
	Objects Objects
	// Rules are the rights of every node (the ClusterRole system:node).
	Rules []rbacv1.PolicyRule
}

const nodePrefix = "system:node:"

// NodeName returns the node whose kubelet the user is.
func NodeName(u *auth.User) (string, bool) {
	name, ok := strings.CutPrefix(u.Name, nodePrefix)
	return name, ok && name != "" && slices.Contains(u.Groups, auth.Nodes)
}

// Authorize has an opinion on kubelets only.
func (n Node) Authorize(ctx context.Context, attrs *auth.Attributes) (auth.Decision, error) {
	node, ok := NodeName(attrs.User)
	if !ok {
		return auth.Decision{}, nil
	}
	if attrs.ResourceRequest && attrs.Group == "" {
		switch attrs.Resource {
		case "nodes":
			return n.node(attrs, node), nil
		case "pods":
			return n.pod(attrs, node), nil
		}
	}
	if attrs.ResourceRequest && attrs.Group == "certificates.k8s.io" && attrs.Resource == "podcertificaterequests" {
		return certificate(attrs, node), nil
	}
	if attrs.ResourceRequest {
		switch attrs.Group + "/" + attrs.Resource {
		case "coordination.k8s.io/leases":
			return lease(attrs, node), nil
		case "storage.k8s.io/csinodes":
			return csiNode(attrs, node), nil
		case "resource.k8s.io/resourceslices":
			return n.slice(ctx, attrs, node), nil
		case "/persistentvolumes":
			return n.volume(ctx, attrs, node), nil
		case "storage.k8s.io/volumeattachments":
			return n.single(ctx, attrs, node, attachments), nil
		}
		if refers, guarded := guards[attrs.Group+"/"+attrs.Resource]; guarded {
			return n.guarded(ctx, attrs, node, refers), nil
		}
	}
	for i := range n.Rules {
		if Covers(&n.Rules[i], attrs) {
			return auth.Decision{Verdict: auth.Allow, Reason: "node authorizer: every node may"}, nil
		}
	}
	return auth.Decision{}, nil
}

func allowed(why string) auth.Decision {
	return auth.Decision{Verdict: auth.Allow, Reason: "node authorizer: " + why}
}

// node: a kubelet reads only its own node; the NodeRestriction plugin checks what it writes.
func (n Node) node(attrs *auth.Attributes, node string) auth.Decision {
	switch attrs.Subresource + " " + attrs.Verb {
	case " create", " update", " patch", "status update", "status patch":
		return allowed("nodes write themselves")
	case " get", " list", " watch":
		switch attrs.Name {
		case node:
			return allowed("its own node")
		case "":
			return refused(fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node))
		}
		return refused(fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, attrs.Name))
	}
	return auth.Decision{}
}

// pod: a kubelet reads pods bound to its node, by name or with a selector on spec.nodeName.
func (n Node) pod(attrs *auth.Attributes, node string) auth.Decision {
	switch attrs.Subresource + " " + attrs.Verb {
	case " create", " delete", "status update", "status patch", "eviction create":
		return allowed("nodes write their pods")
	case " get", " list", " watch":
		if selects(attrs, node) {
			return allowed("the pods bound to it")
		}
		if attrs.Name == "" {
			return refused("can only list/watch pods with spec.nodeName field selector")
		}
		for _, p := range n.Pods(node) {
			if p.Namespace == attrs.Namespace && p.Name == attrs.Name {
				return allowed("pod " + p.Name + " is bound to it")
			}
		}
		return noRelation(node)
	}
	return auth.Decision{}
}

// selects reports whether a list or watch is restricted to the node by field selector.
func selects(a *auth.Attributes, node string) bool {
	for _, req := range a.FieldSelector {
		if req.Field == "spec.nodeName" && req.Operator == selection.Equals && req.Value == node {
			return true
		}
	}
	return false
}

// certificate: a kubelet creates PodCertificateRequests for its pods, checked by NodeRestriction, and reads its own
// ones.
func certificate(a *auth.Attributes, node string) auth.Decision {
	switch {
	case a.Subresource != "":
		return refused("nodes may not access the status subresource of PodCertificateRequests")
	case a.Verb == "create":
		return allowed("nodes request certificates of their pods")
	case a.Verb != "get" && a.Verb != "list" && a.Verb != "watch":
		return refused(fmt.Sprintf("nodes may not %s podcertificaterequests", a.Verb))
	case selects(a, node):
		return allowed("the requests of its pods")
	case a.Verb == "get":
		return noRelation(node)
	}
	return refused("can only list/watch podcertificaterequests with nodeName field selector")
}

// refersTo reports whether a pod uses the object of that name.
type refersTo func(pod *corev1.Pod, name string) bool

var guards = map[string]refersTo{
	"/secrets":                       usesSecret,
	"/configmaps":                    usesConfigMap,
	"/persistentvolumeclaims":        usesClaim,
	"resource.k8s.io/resourceclaims": usesDevices,
	"/serviceaccounts": func(p *corev1.Pod, name string) bool {
		return p.Spec.ServiceAccountName == name
	},
}

func (n Node) guarded(ctx context.Context, attrs *auth.Attributes, node string, refers refersTo) auth.Decision {
	if why := unrelated(attrs); why != "" {
		return refused(why)
	}
	for _, p := range n.Pods(node) {
		if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
			continue // a mirror pod, which the node creates itself: its references give no rights
		}
		if p.Namespace == attrs.Namespace && refers(p, attrs.Name) {
			return allowed(fmt.Sprintf("pod %s on %s refers to it", p.Name, node))
		}
	}
	if attrs.Resource == "secrets" && n.volumeNeeds(ctx, node, attrs.Namespace, attrs.Name) {
		return allowed("a volume of a pod on it refers to it")
	}
	return noRelation(node)
}

// unrelated explains why a kubelet may never make this kind of request, whatever its pods refer to.
func unrelated(attrs *auth.Attributes) string {
	changes := attrs.Verb == "update" || attrs.Verb == "patch"
	reads := attrs.Verb == "get" || attrs.Verb == "list" || attrs.Verb == "watch"
	switch attrs.Resource {
	case "persistentvolumeclaims", "resourceclaims":
		switch claim := attrs.Resource == "persistentvolumeclaims"; {
		case claim && attrs.Subresource == "status" && !changes:
			return "can only get/update/patch this type"
		case claim && attrs.Subresource == "status":
		case attrs.Verb != "get":
			return "can only get individual resources of this type"
		case attrs.Subresource != "":
			return "cannot get subresource"
		}
	case "serviceaccounts":
		switch {
		case attrs.Verb == "get" && attrs.Subresource == "":
		case attrs.Verb != "create" || attrs.Name == "":
			return "can only create tokens for individual service accounts"
		case attrs.Subresource != "token":
			return "can only create token subresource of serviceaccount"
		}
	default:
		switch {
		case !reads:
			return "can only read resources of this type"
		case attrs.Subresource != "":
			return "cannot read subresource"
		}
	}
	switch {
	case attrs.Namespace == "":
		return "can only read namespaced object of this type"
	case attrs.Name == "":
		return "No Object name found"
	}
	return ""
}

// lease: a kubelet has one lease, named after the node. NodeRestriction checks the name of a new one.
func lease(a *auth.Attributes, node string) auth.Decision {
	switch {
	case !slices.Contains(ownVerbs, a.Verb):
		return refused("can only get, create, update, patch, or delete a node lease")
	case a.Namespace != corev1.NamespaceNodeLease:
		return refused(fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease))
	case a.Verb != "create" && a.Name != node:
		return refused("can only access node lease with the same name as the requesting node")
	}
	return allowed("its own lease")
}

// csiNode: a kubelet has one, named after the node.
func csiNode(a *auth.Attributes, node string) auth.Decision {
	switch {
	case a.Subresource == "status":
		return refused("CSINode status access requires CSIVolumeHealth feature")
	case a.Subresource != "":
		return refused("cannot authorize CSINode subresources")
	case !slices.Contains(ownVerbs, a.Verb):
		return refused("can only get, create, update, patch, or delete a CSINode")
	case a.Verb != "create" && a.Name != node:
		return refused("can only access CSINode with the same name as the requesting node")
	}
	return allowed("its own CSINode")
}

// ownVerbs are the verbs of a kubelet on objects with its name.
var ownVerbs = []string{"get", "create", "update", "patch", "delete"}

// refused is no opinion, with a reason in the format of Kubernetes' node authorizer.
func refused(why string) auth.Decision { return auth.Decision{Reason: "node: " + why} }

func noRelation(node string) auth.Decision {
	return refused(fmt.Sprintf("no relationship found between node '%s' and this object", node))
}

// usesDevices reports whether a pod uses the resource claim: by reference, from a template, or for its extended
// resources.
func usesDevices(p *corev1.Pod, name string) bool {
	if e := p.Status.ExtendedResourceClaimStatus; e != nil && e.ResourceClaimName == name {
		return true
	}
	is := func(claim *string) bool { return claim != nil && *claim == name }
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return is(c.ResourceClaimName)
	}) ||
		slices.ContainsFunc(p.Status.ResourceClaimStatuses, func(c corev1.PodResourceClaimStatus) bool {
			return is(c.ResourceClaimName)
		})
}

func usesSecret(pod *corev1.Pod, name string) bool {
	for _, s := range pod.Spec.ImagePullSecrets {
		if s.Name == name {
			return true
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret != nil && v.Secret.SecretName == name {
			return true
		}
		if v.CSI != nil && v.CSI.NodePublishSecretRef != nil && v.CSI.NodePublishSecretRef.Name == name {
			return true
		}
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.Secret != nil && s.Secret.Name == name
		}) {
			return true
		}
	}
	return anyEnv(pod, func(e *corev1.EnvVar, from *corev1.EnvFromSource) bool {
		if from != nil {
			return from.SecretRef != nil && from.SecretRef.Name == name
		}
		return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name == name
	})
}

func usesConfigMap(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.ConfigMap != nil && v.ConfigMap.Name == name {
			return true
		}
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ConfigMap != nil && s.ConfigMap.Name == name
		}) {
			return true
		}
	}
	return anyEnv(pod, func(e *corev1.EnvVar, from *corev1.EnvFromSource) bool {
		if from != nil {
			return from.ConfigMapRef != nil && from.ConfigMapRef.Name == name
		}
		return e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil && e.ValueFrom.ConfigMapKeyRef.Name == name
	})
}

func usesClaim(p *corev1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name ||
			v.Ephemeral != nil && p.Name+"-"+v.Name == name
	})
}

// anyEnv calls f with each env entry, then each envFrom entry, of every container until it returns true.
func anyEnv(pod *corev1.Pod, f func(*corev1.EnvVar, *corev1.EnvFromSource) bool) bool {
	one := func(env []corev1.EnvVar, from []corev1.EnvFromSource) bool {
		for i := range env {
			if f(&env[i], nil) {
				return true
			}
		}
		for i := range from {
			if f(nil, &from[i]) {
				return true
			}
		}
		return false
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if one(list[i].Env, list[i].EnvFrom) {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if one(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom) {
			return true
		}
	}
	return false
}
