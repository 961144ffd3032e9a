// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/admission"
)

// certificate allows a kubelet only PodCertificateRequests for its pods that mount a certificate of that signer. An
// error that a stale cache may have caused is no rejection, so that the kubelet can retry.
func (p Plugin) certificate(ctx context.Context, r *admission.Request, node string) error {
	req, ok := r.Object.(*certificatesv1.PodCertificateRequest)
	switch {
	case r.Operation != admission.Create:
		return admission.Forbidden(r, "unexpected operation %v", r.Operation)
	case r.Subresource != "":
		return admission.Forbidden(r, "unexpected subresource %v", r.Subresource)
	case !ok:
		return admission.Forbidden(r, "unexpected type %T", r.Object)
	case string(req.Spec.NodeName) != node:
		return admission.Forbidden(r, "PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q",
			req.Spec.NodeName, node)
	}
	spec := &req.Spec
	name := r.Namespace + "/" + req.Spec.PodName
	n, err := admission.Get[*corev1.Node](ctx, p.Reader, admission.Nodes, "", node)
	if err != nil {
		return readError(r, fmt.Sprintf("node %q", node), err)
	}
	if n.UID != spec.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node "+
			"(%q)", name, spec.NodeUID, n.UID)
	}
	pod, err := admission.Get[*corev1.Pod](ctx, p.Reader, admission.Pods, r.Namespace, spec.PodName)
	switch {
	case err != nil:
		return readError(r, fmt.Sprintf("pod %q", name), err)
	case spec.PodUID != pod.UID:
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q",
			name, spec.PodUID, pod.UID)
	case pod.Spec.NodeName != node:
		return admission.Forbidden(r, "pod %q is not running on node %q named in the PodCertificateRequest", name, node)
	case isMirror(pod):
		return admission.Forbidden(r, "pod %q is a mirror pod", name)
	case spec.ServiceAccountName != pod.Spec.ServiceAccountName:
		return admission.Forbidden(r,
			"PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from "+
				"running pod (%q)",
			name, spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account, err := admission.Get[*corev1.ServiceAccount](ctx, p.Reader, admission.ServiceAccounts, r.Namespace,
		spec.ServiceAccountName)
	switch {
	case err != nil:
		return readError(r, fmt.Sprintf("service account %q", r.Namespace+"/"+spec.ServiceAccountName), err)
	case spec.ServiceAccountUID != account.UID:
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the "+
			"running service account (%q)",
			name, spec.ServiceAccountUID, account.UID)
	case !mountsCertificate(pod, spec.SignerName):
		return admission.Forbidden(r, "pod %q does not mount a podCertificate projected volume for signer %q", name,
			spec.SignerName)
	}
	return nil
}

// readError is the error for an object that could not be read: a rejection, unless it may only be missing in the cache;
// nil if it was read.
func readError(r *admission.Request, what string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("while retrieving %s named in the PodCertificateRequest: %w", what, err)
	case err != nil:
		return admission.Forbidden(r, "while retrieving %s named in the PodCertificateRequest: %v", what, err)
	}
	return nil
}

func mountsCertificate(pod *corev1.Pod, signer string) bool {
	return hasVolume(pod, func(v *corev1.Volume) bool {
		return hasSource(v, func(s *corev1.VolumeProjection) bool {
			return s.PodCertificate != nil && s.PodCertificate.SignerName == signer
		})
	})
}

func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}
