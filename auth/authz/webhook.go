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
func (w *Webhook) Authorize(ctx context.Context, a *auth.Attributes) (auth.Decision, error) {
	question := &authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec:     access(a),
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
		if len(a.Namespace)+len(a.Verb)+len(a.Group)+len(a.Version)+len(a.Resource)+len(a.Subresource)+len(a.Name)+
			len(a.Path) > longestRemembered {
			return 0
		}
		if got.Status.Allowed {
			return w.cfg.IfAllowed
		}
		return w.cfg.IfRefused
	})
	s := got.Status
	switch {
	case err != nil:
		return w.failed(), err
	case s.Denied && s.Allowed:
		return auth.Decision{Verdict: auth.Deny, Reason: s.Reason},
			errors.New("webhook subject access review returned both allow and deny response")
	case s.Denied:
		return auth.Decision{Verdict: auth.Deny, Reason: s.Reason}, nil
	case s.Allowed:
		return auth.Decision{Verdict: auth.Allow, Reason: s.Reason}, nil
	}
	return auth.Decision{Reason: s.Reason}, nil
}

// failed is the decision when the service fails.
func (w *Webhook) failed() auth.Decision {
	if w.cfg.DenyOnFailure {
		return auth.Decision{Verdict: auth.Deny}
	}
	return auth.Decision{}
}

// old converts the review to v1beta1.
func old(q *authorizationv1.SubjectAccessReview) *authorizationv1beta1.SubjectAccessReview {
	out := &authorizationv1beta1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1beta1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1beta1.SubjectAccessReviewSpec{
			User:   q.Spec.User,
			Groups: q.Spec.Groups,
			UID:    q.Spec.UID,
		},
	}
	for k, v := range q.Spec.Extra {
		if out.Spec.Extra == nil {
			out.Spec.Extra = map[string]authorizationv1beta1.ExtraValue{}
		}
		out.Spec.Extra[k] = authorizationv1beta1.ExtraValue(v)
	}
	if n := q.Spec.NonResourceAttributes; n != nil {
		out.Spec.NonResourceAttributes = &authorizationv1beta1.NonResourceAttributes{Path: n.Path, Verb: n.Verb}
	}
	if r := q.Spec.ResourceAttributes; r != nil {
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

func access(a *auth.Attributes) authorizationv1.SubjectAccessReviewSpec {
	s := authorizationv1.SubjectAccessReviewSpec{User: a.User.Name, UID: a.User.UID, Groups: a.User.Groups}
	for k, v := range a.User.Extra {
		if s.Extra == nil {
			s.Extra = map[string]authorizationv1.ExtraValue{}
		}
		s.Extra[strings.ToLower(k)] = v
	}
	if !a.ResourceRequest {
		s.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: a.Path, Verb: a.Verb}
		return s
	}
	s.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace:   a.Namespace,
		Verb:        a.Verb,
		Group:       a.Group,
		Version:     a.Version,
		Resource:    a.Resource,
		Subresource: a.Subresource,
		Name:        a.Name,
	}
	for _, req := range a.FieldSelector {
		op := metav1.FieldSelectorOpIn
		if req.Operator == selection.NotEquals {
			op = metav1.FieldSelectorOpNotIn
		}
		if s.ResourceAttributes.FieldSelector == nil {
			s.ResourceAttributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{}
		}
		f := s.ResourceAttributes.FieldSelector
		f.Requirements = append(f.Requirements, metav1.FieldSelectorRequirement{
			Key:      req.Field,
			Operator: op,
			Values:   []string{req.Value},
		})
	}
	if reqs := labelRequirements(a.LabelSelector); len(reqs) > 0 {
		s.ResourceAttributes.LabelSelector = &authorizationv1.LabelSelectorAttributes{Requirements: reqs}
	}
	return s
}

// labelRequirements are the requirements that the API can express. A selector only narrows a request, so leaving one
// out asks for more rights, not fewer.
func labelRequirements(list labels.Requirements) []metav1.LabelSelectorRequirement {
	var out []metav1.LabelSelectorRequirement
	for _, req := range list {
		r := metav1.LabelSelectorRequirement{Key: req.Key(), Values: req.ValuesUnsorted()}
		switch req.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			r.Operator = metav1.LabelSelectorOpIn
		case selection.NotEquals, selection.NotIn:
			r.Operator = metav1.LabelSelectorOpNotIn
		case selection.Exists:
			r.Operator = metav1.LabelSelectorOpExists
			r.Values = nil
		case selection.DoesNotExist:
			r.Operator = metav1.LabelSelectorOpDoesNotExist
			r.Values = nil
		default:
			continue
		}
		out = append(out, r)
	}
	return out
}
