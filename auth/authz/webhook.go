// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authorization/cel"

	"keelson/auth"
	"keelson/auth/remote"
)

// Webhook authorizes by a SubjectAccessReview to a service (kube-apiserver's --authorization-webhook-config-file).
type Webhook struct {
	hook *remote.Hook
	cfg  WebhookConfig
}

// WebhookConfig configures the service.
type WebhookConfig struct {
	// Via makes the connections to the service.
	Via remote.Via
	// Kubeconfig names the service; empty: the in-cluster configuration.
	Kubeconfig string
	// IfAllowed and IfRefused are how long allowed and denied answers are cached; 0: not at all.
	IfAllowed, IfRefused time.Duration
	// Timeout limits one request; 0: 30 s.
	Timeout time.Duration
	// Old sends authorization.k8s.io/v1beta1.
	Old bool
	// DenyOnFailure denies requests when the service fails; else a failure is no opinion.
	DenyOnFailure bool
	// Conditions must match, or the service is not asked; nil: always ask.
	Conditions *cel.CELMatcher
}

// NewWebhook uses the service in kubeconfig. ifAllowed and ifRefused are the cache times.
func NewWebhook(kubeconfig string, ifAllowed, ifRefused time.Duration, via remote.Via) (*Webhook, error) {
	return NewWebhookOf(WebhookConfig{
		Via:        via,
		Kubeconfig: kubeconfig,
		IfAllowed:  ifAllowed,
		IfRefused:  ifRefused,
	})
}

// NewWebhookOf returns a webhook for cfg.
func NewWebhookOf(cfg WebhookConfig) (*Webhook, error) {
	h, err := remote.New(cfg.Kubeconfig, "authorization webhook", cfg.Timeout, cfg.Via)
	if err != nil {
		return nil, err
	}
	return &Webhook{h, cfg}, nil
}

// longestRemembered limits the client-controlled parts of a cached request, to bound the memory.
const longestRemembered = 10000

// Authorize asks the service if the conditions match.
func (w *Webhook) Authorize(ctx context.Context, attrs *auth.Attributes) (auth.Decision, error) {
	question := &authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec:     access(attrs),
	}
	if w.cfg.Conditions != nil {
		holds, err := w.cfg.Conditions.Eval(ctx, question)
		if err != nil {
			return w.failed(), err
		}
		if !holds {
			return auth.Decision{}, nil
		}
	}
	var ask any = question
	if w.cfg.Old {
		ask = old(question)
	}
	got := &authorizationv1.SubjectAccessReview{} // the status is the same in both versions
	err := w.hook.Ask(ctx, ask, got, func() time.Duration {
		if len(attrs.Namespace)+len(attrs.Verb)+len(attrs.Group)+len(attrs.Version)+len(attrs.Resource)+
			len(attrs.Subresource)+len(attrs.Name)+
			len(attrs.Path) > longestRemembered {
			return 0
		}
		if got.Status.Allowed {
			return w.cfg.IfAllowed
		}
		return w.cfg.IfRefused
	})
	status := got.Status
	switch {
	case err != nil:
		return w.failed(), err
	case status.Denied && status.Allowed:
		return auth.Decision{Verdict: auth.Deny, Reason: status.Reason},
			errors.New("webhook subject access review returned both allow and deny response")
	case status.Denied:
		return auth.Decision{Verdict: auth.Deny, Reason: status.Reason}, nil
	case status.Allowed:
		return auth.Decision{Verdict: auth.Allow, Reason: status.Reason}, nil
	}
	return auth.Decision{Reason: status.Reason}, nil
}

// failed is the decision when the service fails.
func (w *Webhook) failed() auth.Decision {
	if w.cfg.DenyOnFailure {
		return auth.Decision{Verdict: auth.Deny}
	}
	return auth.Decision{}
}

// old converts the review to v1beta1.
func old(review *authorizationv1.SubjectAccessReview) *authorizationv1beta1.SubjectAccessReview {
	out := &authorizationv1beta1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1beta1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1beta1.SubjectAccessReviewSpec{
			User:   review.Spec.User,
			Groups: review.Spec.Groups,
			UID:    review.Spec.UID,
		},
	}
	for k, v := range review.Spec.Extra {
		if out.Spec.Extra == nil {
			out.Spec.Extra = map[string]authorizationv1beta1.ExtraValue{}
		}
		out.Spec.Extra[k] = authorizationv1beta1.ExtraValue(v)
	}
	if n := review.Spec.NonResourceAttributes; n != nil {
		out.Spec.NonResourceAttributes = &authorizationv1beta1.NonResourceAttributes{Path: n.Path, Verb: n.Verb}
	}
	if r := review.Spec.ResourceAttributes; r != nil {
		out.Spec.ResourceAttributes = &authorizationv1beta1.ResourceAttributes{
			Namespace:     r.Namespace,
			Verb:          r.Verb,
			Group:         r.Group,
			Version:       r.Version,
			Resource:      r.Resource,
			Subresource:   r.Subresource,
			Name:          r.Name,
			FieldSelector: r.FieldSelector,
			LabelSelector: r.LabelSelector,
		}
	}
	return out
}

func access(attrs *auth.Attributes) authorizationv1.SubjectAccessReviewSpec {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User:   attrs.User.Name,
		UID:    attrs.User.UID,
		Groups: attrs.User.Groups,
	}
	for k, v := range attrs.User.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[strings.ToLower(k)] = v
	}
	if !attrs.ResourceRequest {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: attrs.Path, Verb: attrs.Verb}
		return spec
	}
	spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace:   attrs.Namespace,
		Verb:        attrs.Verb,
		Group:       attrs.Group,
		Version:     attrs.Version,
		Resource:    attrs.Resource,
		Subresource: attrs.Subresource,
		Name:        attrs.Name,
	}
	for _, req := range attrs.FieldSelector {
		op := metav1.FieldSelectorOpIn
		if req.Operator == selection.NotEquals {
			op = metav1.FieldSelectorOpNotIn
		}
		if spec.ResourceAttributes.FieldSelector == nil {
			spec.ResourceAttributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{}
		}
		f := spec.ResourceAttributes.FieldSelector
		f.Requirements = append(f.Requirements, metav1.FieldSelectorRequirement{
			Key:      req.Field,
			Operator: op,
			Values:   []string{req.Value},
		})
	}
	if reqs := labelRequirements(attrs.LabelSelector); len(reqs) > 0 {
		spec.ResourceAttributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: reqs}
	}
	return spec
}

// labelRequirements are the requirements that the API can express. A selector only narrows a request, so leaving one
// out asks for more rights, not fewer.
func labelRequirements(list labels.Requirements) []metav1.LabelSelectorRequirement {
	var out []metav1.LabelSelectorRequirement
	for _, req := range list {
		requirement := metav1.LabelSelectorRequirement{Key: req.Key(), Values: req.ValuesUnsorted()}
		switch req.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			requirement.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			requirement.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			requirement.Operator = metav1.LabelSelectorOpExists
			requirement.Values = nil
		case selection.DoesNotExist:
			requirement.Operator = metav1.LabelSelectorOpDoesNotExist
			requirement.Values = nil
		default:
			continue
		}
		out = append(out, requirement)
	}
	return out
}
