// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"keelson/apiserver/admission"
	"keelson/auth"
)

var csiDrivers = storagev1.SchemeGroupVersion.WithResource("csidrivers")

// audienceVerb is the verb for tokens of an audience; the rule's resource is the audience, its name the service
// account.
const audienceVerb = "request-serviceaccounts-token-audience"

// audience allows a kubelet only tokens with the audiences of the pod's volumes: projected tokens, and those of a CSI
// driver. RBAC may allow others.
func (p Plugin) audience(
	ctx context.Context, req *admission.Request, tr *authenticationv1.TokenRequest, pod *corev1.Pod,
) error {
	want := "" // the API server's own audience
	switch len(tr.Spec.Audiences) {
	case 0:
	case 1:
		want = tr.Spec.Audiences[0]
	default:
		return admission.Forbidden(req, "node may only request 0 or 1 audiences")
	}
	if hasVolume(pod, func(v *corev1.Volume) bool {
		return hasSource(v, func(s *corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == want
		})
	}) {
		return nil
	}
	for i := range pod.Spec.Volumes {
		if p.driverRequestsAudience(ctx, pod, &pod.Spec.Volumes[i], want) {
			return nil
		}
	}
	if p.Authorizer != nil && want != "" {
		d, err := p.Authorizer.Authorize(ctx, &auth.Attributes{
			User:            req.User,
			Verb:            audienceVerb,
			Version:         "v1",
			Resource:        want,
			Namespace:       pod.Namespace,
			Name:            pod.Spec.ServiceAccountName,
			ResourceRequest: true,
		})
		if d.Verdict == auth.Allow {
			return nil
		}
		if err != nil {
			return admission.Forbidden(req, "audience %q not found in pod spec volume, %v", want,
				fmt.Errorf("authorize: %w", err))
		}
	}
	return admission.Forbidden(req,
		"audience %q not found in pod spec volume, %s is not authorized to request tokens for this "+
			"audience", want, req.User.Name)
}

// driverRequestsAudience reports whether the CSI driver of a volume requests tokens for an audience.
func (p Plugin) driverRequestsAudience(
	ctx context.Context, pod *corev1.Pod, v *corev1.Volume, audience string,
) bool {
	name := ""
	claim := ""
	switch {
	case v.CSI != nil:
		name = v.CSI.Driver
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	}
	if claim != "" {
		name = p.driverOf(ctx, pod.Namespace, claim)
	}
	if name == "" {
		return false
	}
	driver, err := admission.Get[*storagev1.CSIDriver](ctx, p.Reader, csiDrivers, "", name)
	return err == nil && slices.ContainsFunc(driver.Spec.TokenRequests, func(t storagev1.TokenRequest) bool {
		return t.Audience == audience
	})
}

// driverOf is the CSI driver of the volume bound to a claim; empty: none.
func (p Plugin) driverOf(ctx context.Context, namespace, claim string) string {
	c, err := admission.Get[*corev1.PersistentVolumeClaim](ctx, p.Reader,
		corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), namespace, claim)
	if err != nil || c.Spec.VolumeName == "" {
		return ""
	}
	v, err := admission.Get[*corev1.PersistentVolume](ctx, p.Reader,
		corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
		"", c.Spec.VolumeName)
	if err != nil || v.Spec.CSI == nil {
		return ""
	}
	return v.Spec.CSI.Driver
}
