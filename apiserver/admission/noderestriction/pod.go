// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
)

// mirror checks a new mirror pod: its only owner is the node, and it refers to nothing that the node could then read.
func (p Plugin) mirror(ctx context.Context, req *admission.Request, pod *corev1.Pod, node string) error {
	switch {
	case pod.Spec.NodeName != node:
		return admission.Forbidden(req, "node %q can only create pods with spec.nodeName set to itself", node)
	case len(pod.OwnerReferences) > 1:
		return admission.Forbidden(req,
			"node %q can only create pods with a single owner reference set to itself", node)
	case len(pod.OwnerReferences) == 0:
		return admission.Forbidden(req, "node %q can only create pods with an owner reference set to itself", node)
	default:
		if err := p.owner(ctx, req, pod, node); err != nil {
			return err
		}
	}
	what := ""
	switch {
	case pod.Spec.ServiceAccountName != "", hasVolume(pod, func(v *corev1.Volume) bool {
		return hasSource(v, func(s *corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil || s.PodCertificate != nil
		})
	}):
		what = "a service account"
	case refersToSecrets(pod):
		what = "secrets"
	case refersToConfigMaps(pod):
		what = "configmaps"
	case hasVolume(pod, func(v *corev1.Volume) bool {
		return hasSource(v, func(s *corev1.VolumeProjection) bool { return s.ClusterTrustBundle != nil })
	}):
		what = "clustertrustbundles"
	case hasVolume(pod, func(v *corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }):
		what = "persistentvolumeclaims"
	case len(pod.Spec.ResourceClaims) > 0:
		what = "resourceclaims"
	default:
		return nil
	}
	return admission.Forbidden(req, "node %q can not create pods that reference %s", node, what)
}

// owner checks that a mirror pod's owner is the node.
func (p Plugin) owner(ctx context.Context, req *admission.Request, pod *corev1.Pod, node string) error {
	ownerReference := pod.OwnerReferences[0]
	switch {
	case ownerReference.APIVersion != "v1" || ownerReference.Kind != "Node" || ownerReference.Name != node:
		return admission.Forbidden(req, "node %q can only create pods with an owner reference set to itself", node)
	case ownerReference.Controller == nil || !*ownerReference.Controller:
		return admission.Forbidden(req,
			"node %q can only create pods with a controller owner reference set to itself", node)
	case ownerReference.BlockOwnerDeletion != nil && *ownerReference.BlockOwnerDeletion:
		return admission.Forbidden(req, "node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	own, err := admission.Get[*corev1.Node](ctx, p.Reader, admission.Nodes, "", node)
	if err != nil {
		return err
	}
	if own.UID != ownerReference.UID {
		return admission.Forbidden(req, "node %s UID mismatch: expected %s got %s", node, ownerReference.UID, own.UID)
	}
	return nil
}

func hasVolume(pod *corev1.Pod, is func(*corev1.Volume) bool) bool {
	for i := range pod.Spec.Volumes {
		if is(&pod.Spec.Volumes[i]) {
			return true
		}
	}
	return false
}

func hasSource(v *corev1.Volume, is func(*corev1.VolumeProjection) bool) bool {
	return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
		return is(&s)
	})
}

func refersToSecrets(pod *corev1.Pod) bool {
	return len(pod.Spec.ImagePullSecrets) > 0 || hasVolume(pod, func(v *corev1.Volume) bool {
		return v.Secret != nil || hasSource(v, func(s *corev1.VolumeProjection) bool { return s.Secret != nil }) ||
			v.AzureFile != nil || v.CephFS != nil && v.CephFS.SecretRef != nil ||
			v.Cinder != nil && v.Cinder.SecretRef != nil ||
			v.FlexVolume != nil && v.FlexVolume.SecretRef != nil || v.RBD != nil && v.RBD.SecretRef != nil ||
			v.ScaleIO != nil || v.ISCSI != nil && v.ISCSI.SecretRef != nil ||
			v.StorageOS != nil && v.StorageOS.SecretRef != nil ||
			v.CSI != nil && v.CSI.NodePublishSecretRef != nil
	}) || hasEnv(pod, func(e *corev1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil },
		func(f *corev1.EnvFromSource) bool { return f.SecretRef != nil })
}

func refersToConfigMaps(pod *corev1.Pod) bool {
	return hasVolume(pod, func(v *corev1.Volume) bool {
		return v.ConfigMap != nil || hasSource(v, func(s *corev1.VolumeProjection) bool { return s.ConfigMap != nil })
	}) || hasEnv(pod, func(e *corev1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil },
		func(f *corev1.EnvFromSource) bool { return f.ConfigMapRef != nil })
}

// hasEnv checks the env and envFrom of all containers.
func hasEnv(pod *corev1.Pod, is func(*corev1.EnvVar) bool, from func(*corev1.EnvFromSource) bool) bool {
	in := func(env []corev1.EnvVar, sources []corev1.EnvFromSource) bool {
		return slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return is(&e) }) ||
			slices.ContainsFunc(sources, func(f corev1.EnvFromSource) bool { return from(&f) })
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if in(list[i].Env, list[i].EnvFrom) {
				return true
			}
		}
	}
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return in(c.Env, c.EnvFrom)
	})
}

// podStatus limits an update of the status to the status.
func podStatus(req *admission.Request, old *corev1.Pod, node string) error {
	pod, err := admission.PodOf(req)
	if err != nil {
		return err
	}
	if !maps.Equal(pod.Labels, old.Labels) {
		return admission.Forbidden(req, "node %q cannot update labels through pod status", node)
	}
	if !apiequality.Semantic.DeepEqual(pod.Status.ResourceClaimStatuses, old.Status.ResourceClaimStatuses) {
		return admission.Forbidden(req, "node %q cannot update resource claim statues", node)
	}
	if !apiequality.Semantic.DeepEqual(pod.Status.ExtendedResourceClaimStatus, old.Status.ExtendedResourceClaimStatus) {
		return admission.Forbidden(req, "node %q cannot update extended resource claim status", node)
	}
	return nil
}

// claimStatus lets a kubelet write the result of a volume expansion.
func claimStatus(req *admission.Request, node string) error {
	claim, ok := req.Object.(*corev1.PersistentVolumeClaim)
	old, had := req.OldObject.(*corev1.PersistentVolumeClaim)
	if req.Subresource != "status" || req.Operation != admission.Update || !ok || !had {
		return admission.Forbidden(req, "may only update PVC status")
	}
	claim = claim.DeepCopy()
	old = old.DeepCopy()
	for _, c := range []*corev1.PersistentVolumeClaim{claim, old} {
		c.TypeMeta = metav1.TypeMeta{}
		c.ResourceVersion = ""
		c.ManagedFields = nil // a decoded patch has a kind
		c.Status.Capacity = nil
		c.Status.Conditions = nil
		c.Status.AllocatedResources = nil
		c.Status.AllocatedResourceStatuses = nil
	}
	if !apiequality.Semantic.DeepEqual(claim, old) {
		return admission.Forbidden(req, "node %q is not allowed to update fields other than status.capacity and "+
			"status.conditions",
			node)
	}
	return nil
}
