// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"keelson/api/core/localvolume"
	podkind "keelson/api/core/pod"
	"keelson/auth"
)

// Objects reads stored objects. The results are shared and never modified.
type Objects interface {
	Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (runtime.Object, error)
}

var (
	claims      = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	volumes     = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	attachments = storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	slicesGVR   = resourcev1.SchemeGroupVersion.WithResource("resourceslices")
)

// single covers cluster-scoped objects that a kubelet gets one by one: those that refer to its node or to a claim of
// its pods.
func (n Node) single(
	ctx context.Context, a *auth.Attributes, node string, gvr schema.GroupVersionResource,
) auth.Decision {
	switch {
	case a.Verb != "get":
		return refused("can only get individual resources of this type")
	case a.Subresource != "":
		return refused("cannot get subresource")
	}
	return n.related(ctx, a, node, gvr)
}

// volume: a kubelet reads the PersistentVolumes of its pods' claims, and watches its local volumes. It removes its
// finalizer from a deleted local volume; NodeRestriction checks that.
func (n Node) volume(ctx context.Context, attrs *auth.Attributes, node string) auth.Decision {
	switch {
	case attrs.Subresource == "" && (attrs.Verb == "list" || attrs.Verb == "watch") && localVolumes(attrs, node):
		return allowed("the local volumes on it")
	case attrs.Subresource == "" && attrs.Verb == "patch" && attrs.Name != "":
		obj, err := n.Objects.Get(ctx, volumes, "", attrs.Name)
		if v, ok := obj.(*corev1.PersistentVolume); err == nil && ok && localvolume.On(v, node) {
			return allowed("a local volume on it")
		}
		return noRelation(node)
	}
	return n.single(ctx, attrs, node, volumes)
}

// volumeNeeds reports whether a pod on the node uses a volume whose CSI driver gets the secret on the node.
func (n Node) volumeNeeds(ctx context.Context, node, namespace, secret string) bool {
	is := func(r *corev1.SecretReference) bool { return r != nil && r.Namespace == namespace && r.Name == secret }
	for _, p := range n.Pods(node) {
		if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
			continue
		}
		for _, name := range podkind.Claims(p) {
			obj, err := n.Objects.Get(ctx, claims, p.Namespace, name)
			claim, ok := obj.(*corev1.PersistentVolumeClaim)
			if err != nil || !ok || claim.Spec.VolumeName == "" {
				continue
			}
			obj, err = n.Objects.Get(ctx, volumes, "", claim.Spec.VolumeName)
			v, ok := obj.(*corev1.PersistentVolume)
			if err != nil || !ok || v.Spec.CSI == nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
				continue
			}
			if c := v.Spec.CSI; is(c.NodeStageSecretRef) || is(c.NodePublishSecretRef) || is(c.NodeExpandSecretRef) {
				return true
			}
		}
	}
	return false
}

// localVolumes reports whether a list or watch is restricted to the volumes of the node.
func localVolumes(a *auth.Attributes, node string) bool {
	for i := range a.LabelSelector {
		r := &a.LabelSelector[i]
		if op := r.Operator(); r.Key() == localvolume.NodeLabel && (op == selection.Equals ||
			op == selection.DoubleEquals || op == selection.In) && r.ValuesUnsorted() != nil {
			return slices.Equal(r.ValuesUnsorted(), []string{node})
		}
	}
	return false
}

// slice: a kubelet's DRA drivers publish ResourceSlices that name its node. NodeRestriction checks new ones.
func (n Node) slice(ctx context.Context, a *auth.Attributes, node string) auth.Decision {
	if a.Subresource != "" {
		return refused("cannot authorize ResourceSlice subresources")
	}
	switch a.Verb {
	case "create":
		return allowed("nodes publish their devices")
	case "get", "update", "patch", "delete":
		return n.related(ctx, a, node, slicesGVR)
	case "list", "watch", "deletecollection":
		if selects(a, node) {
			return allowed("the slices of its devices")
		}
		return refused("can only list/watch/deletecollection resourceslices with nodeName field selector")
	}
	return refused("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, " +
		"patch, delete, deletecollection")
}

func (n Node) related(
	ctx context.Context, a *auth.Attributes, node string, gvr schema.GroupVersionResource,
) auth.Decision {
	if a.Name == "" {
		return refused("No Object name found")
	}
	obj, err := n.Objects.Get(ctx, gvr, "", a.Name)
	if err == nil && n.owns(node, obj) {
		return allowed("it is about the node, or a pod on it")
	}
	return noRelation(node) // the same answer whether the object exists or not
}

func (n Node) owns(node string, obj runtime.Object) bool {
	switch o := obj.(type) {
	case *storagev1.VolumeAttachment:
		return o.Spec.NodeName == node
	case *resourcev1.ResourceSlice:
		return o.Spec.NodeName != nil && *o.Spec.NodeName == node
	case *corev1.PersistentVolume:
		if localvolume.On(o, node) {
			return true
		}
		claim := o.Spec.ClaimRef
		if claim == nil {
			return false
		}
		for _, p := range n.Pods(node) {
			if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
				continue
			}
			if p.Namespace == claim.Namespace && usesClaim(p, claim.Name) {
				return true
			}
		}
	}
	return false
}
