// SPDX-License-Identifier: Apache-2.0

// Package imagepolicy is the admission plugin ImagePolicyWebhook: a service outside
// of the cluster says which images may run. The table of plugins builds it from its
// document in the admission configuration. It is off by default.
package imagepolicy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/lru"

	"keelson/apiserver/admission"
)

// Plugin asks the service about the images of pods. Safe for concurrent use.
type Plugin struct {
	config  Config
	url     string
	client  *http.Client
	answers *lru.Cache
	now     func() time.Time
}

type answer struct {
	status imagepolicyv1alpha1.ImageReviewStatus
	end    time.Time
}

const (
	remembered  = 1024
	tries       = 5
	timeout     = 30 * time.Second
	longestBody = 1 << 20

	annotationPrefix = "imagepolicywebhook.image-policy.k8s.io/"
	failedOpen       = "alpha.image-policy.k8s.io/failed-open"
)

// New reads the kubeconfig that c names.
func New(c Config) (*Plugin, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.KubeConfigFile)
	if err != nil {
		return nil, fmt.Errorf("image policy webhook: %w", err)
	}
	cfg.Timeout = timeout
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("image policy webhook: %w", err)
	}
	return &Plugin{config: c, url: cfg.Host + cfg.APIPath, client: client, answers: lru.New(remembered), now: time.Now}, nil
}

// Name is the plugin's name.
func (*Plugin) Name() string { return "ImagePolicyWebhook" }

// Validate asks about the images of a pod that is created or updated.
func (p *Plugin) Validate(ctx context.Context, r *admission.Request) error {
	if r.Resource != corev1.SchemeGroupVersion.WithResource("pods") || r.Operation != admission.Create && r.Operation != admission.Update ||
		r.Subresource != "" && r.Subresource != "ephemeralcontainers" {
		return nil
	}
	pod, ok := r.Object.(*corev1.Pod)
	if !ok {
		return apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted")
	}
	status, err := p.ask(ctx, spec(r, pod))
	if err != nil {
		if !p.config.DefaultAllow {
			return admission.Forbidden(r, "%w", err)
		}
		r.Note(annotationPrefix+"failed-open", "true")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, failedOpen, "true")
		return nil
	}
	for key, value := range status.AuditAnnotations {
		r.Note(annotationPrefix+key, value)
	}
	switch {
	case status.Allowed:
		return nil
	case status.Reason != "":
		return admission.Forbidden(r, "image policy webhook backend denied one or more images: %s", status.Reason)
	}
	return admission.Forbidden(r, "one or more images rejected by webhook backend")
}

// spec is what is asked about a pod: its images, and what its annotations say to the service.
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

// ask asks the service, unless its answer is remembered.
func (p *Plugin) ask(ctx context.Context, about imagepolicyv1alpha1.ImageReviewSpec) (imagepolicyv1alpha1.ImageReviewStatus, error) {
	var none imagepolicyv1alpha1.ImageReviewStatus
	key, err := json.Marshal(about)
	if err != nil {
		return none, err
	}
	if known, ok := p.answers.Get(string(key)); ok {
		if a, ok := known.(answer); ok && p.now().Before(a.end) {
			return a.status, nil
		}
	}
	review := imagepolicyv1alpha1.ImageReview{
		TypeMeta: metav1.TypeMeta{APIVersion: imagepolicyv1alpha1.SchemeGroupVersion.String(), Kind: "ImageReview"}, Spec: about,
	}
	body, err := json.Marshal(&review)
	if err != nil {
		return none, err
	}
	got, err := p.post(ctx, body)
	if err != nil {
		return none, err
	}
	if err := json.Unmarshal(got, &review); err != nil {
		return none, fmt.Errorf("answer of %s: %w", p.url, err)
	}
	life := p.config.DenyTTL
	if review.Status.Allowed {
		life = p.config.AllowTTL
	}
	if life > 0 {
		p.answers.Add(string(key), answer{review.Status, p.now().Add(life)})
	}
	return review.Status, nil
}

// post asks again where the service cannot be reached or is broken.
func (p *Plugin) post(ctx context.Context, body []byte) ([]byte, error) {
	wait := p.config.RetryBackoff
	for try := 1; ; try++ {
		got, again, err := p.once(ctx, body)
		if err == nil || !again || try == tries {
			return got, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
		wait += wait / 2
	}
}

func (p *Plugin) once(ctx context.Context, body []byte) (got []byte, again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, ctx.Err() == nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	got, err = io.ReadAll(io.LimitReader(resp.Body, longestBody))
	switch {
	case err != nil:
		return nil, true, err
	case resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests:
		return nil, true, fmt.Errorf("Error contacting webhook: %d", resp.StatusCode) //nolint:staticcheck // Kubernetes' words
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		return nil, false, fmt.Errorf("Error contacting webhook: %d", resp.StatusCode) //nolint:staticcheck // the same
	}
	return got, false, nil
}

var errNoConfig = errors.New("no config specified")
