// SPDX-License-Identifier: Apache-2.0

// Package imagepolicy is the admission plugin ImagePolicyWebhook: a service outside of the cluster decides which images
// may run. The table of plugins builds it from its document in the admission configuration. It is off by default and
// never modifies an object.
package imagepolicy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/auth/remote"
)

// Plugin reviews the images of pods. It is safe for concurrent use.
type Plugin struct {
	config Config
	hook   *remote.Hook
}

const (
	annotationPrefix = "imagepolicywebhook.image-policy.k8s.io/"
	failedOpen       = "alpha.image-policy.k8s.io/failed-open"
)

// New reads the kubeconfig in c.
func New(c Config, via remote.Via) (*Plugin, error) {
	via.Retry = c.RetryBackoff
	hook, err := remote.New(c.KubeConfigFile, "image policy webhook", 0, via)
	if err != nil {
		return nil, fmt.Errorf("image policy webhook: %w", err)
	}
	return &Plugin{c, hook}, nil
}

// Name is the plugin's name.
func (*Plugin) Name() string { return "ImagePolicyWebhook" }

// Validate reviews the images of a new or updated pod.
func (p *Plugin) Validate(ctx context.Context, req *admission.Request) error {
	if req.Resource != corev1.SchemeGroupVersion.WithResource("pods") ||
		req.Operation != admission.Create && req.Operation != admission.Update ||
		req.Subresource != "" && req.Subresource != "ephemeralcontainers" {
		return nil
	}
	pod, ok := req.Object.(*corev1.Pod)
	if !ok {
		return apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted")
	}
	status, err := p.postReview(ctx, spec(req, pod))
	if err != nil {
		if !p.config.DefaultAllow {
			return admission.Forbidden(req, "%w", err)
		}
		req.AddAuditAnnotation(annotationPrefix+"failed-open", "true")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, failedOpen, "true")
		return nil
	}
	for key, value := range status.AuditAnnotations {
		req.AddAuditAnnotation(annotationPrefix+key, value)
	}
	switch {
	case status.Allowed:
		return nil
	case status.Reason != "":
		return admission.Forbidden(req, "image policy webhook backend denied one or more images: %s", status.Reason)
	}
	return admission.Forbidden(req, "one or more images rejected by webhook backend")
}

// spec is the review's spec: the pod's images, and its annotations for the service.
func spec(r *admission.Request, pod *corev1.Pod) imagepolicyv1alpha1.ImageReviewSpec {
	out := imagepolicyv1alpha1.ImageReviewSpec{Namespace: r.Namespace}
	add := func(image string) {
		out.Containers = append(out.Containers, imagepolicyv1alpha1.ImageReviewContainerSpec{Image: image})
	}
	if r.Subresource != "" {
		for i := range pod.Spec.EphemeralContainers {
			add(pod.Spec.EphemeralContainers[i].Image)
		}
	} else {
		for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range list {
				add(list[i].Image)
			}
		}
	}
	for key, value := range pod.Annotations {
		if strings.Contains(key, ".image-policy.k8s.io/") {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[key] = value
		}
	}
	return out
}

// postReview calls the service.
func (p *Plugin) postReview(
	ctx context.Context, about imagepolicyv1alpha1.ImageReviewSpec,
) (imagepolicyv1alpha1.ImageReviewStatus, error) {
	review := imagepolicyv1alpha1.ImageReview{
		TypeMeta: metav1.TypeMeta{APIVersion: imagepolicyv1alpha1.SchemeGroupVersion.String(), Kind: "ImageReview"},
		Spec:     about,
	}
	var got imagepolicyv1alpha1.ImageReview
	err := p.hook.Ask(ctx, &review, &got, func() time.Duration {
		if got.Status.Allowed {
			return p.config.AllowTTL
		}
		return p.config.DenyTTL
	})
	if bad, ok := errors.AsType[*remote.AnswerError](err); ok {
		err = fmt.Errorf("Error contacting webhook: %d", bad.Code) //nolint:staticcheck // Kubernetes' message
	}
	return got.Status, err
}

var errNoConfig = errors.New("no config specified")
