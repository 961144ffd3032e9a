// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"keelson/api/kind"
	"keelson/apiserver/pipeline"
	"keelson/apiserver/resources"
	"keelson/apiserver/writes"
	"keelson/auth"
	"keelson/auth/authz"
)

// Rules lists a user's rules in a namespace; *authz.RBAC implements it.
type Rules interface {
	RulesFor(u *auth.User, namespace string) []rbacv1.PolicyRule
}

// review returns the handler of a review kind: the function answer sets the status.
func review[T kind.Object](answer func(context.Context, *pipeline.Request, T) error) verb {
	return func(w http.ResponseWriter, r *http.Request, rq *pipeline.Request, res *resources.Resource) error {
		opts, err := createOptions(r)
		if err != nil {
			return err
		}
		obj, err := decode(r, rq, res, opts.FieldValidation)
		if err != nil {
			return err
		}
		q, ok := obj.(T)
		if !ok {
			return apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", res.GVK().Kind, obj))
		}
		writes.WipeSystemFields(obj)
		if err := writes.MatchNamespace(obj, writes.Namespace(rq, res)); err != nil {
			return err
		}
		if err := res.FieldManagers[""].Update(nil, obj, manager(r, opts.FieldManager)); err != nil {
			return err
		}
		if err := answer(r.Context(), rq, q); err != nil {
			return err
		}
		return writeObject(w, r, http.StatusCreated, obj, res.GVK())
	}
}

// reviews are the handlers of review kinds. rules may be nil.
func reviews(tokens Tokens, authorizer auth.Authorizer, rules Rules) map[string]verb {
	return map[string]verb{
		"authentication.k8s.io/tokenreviews": review(func(
			ctx context.Context, _ *pipeline.Request, q *authenticationv1.TokenReview,
		) error {
			return reviewToken(ctx, tokens, q)
		}),
		"authentication.k8s.io/selfsubjectreviews": review(func(
			_ context.Context, rq *pipeline.Request, q *authenticationv1.SelfSubjectReview,
		) error {
			// The response has nothing of the request's.
			*q = authenticationv1.SelfSubjectReview{}
			q.CreationTimestamp = metav1.Now().Rfc3339Copy()
			q.Status.UserInfo = userInfo(rq.User)
			return nil
		}),
		"authorization.k8s.io/subjectaccessreviews": review(func(
			ctx context.Context, rq *pipeline.Request, q *authorizationv1.SubjectAccessReview,
		) error {
			if err := invalidReview(
				append(validateAccess(&q.Spec, true), noMetadata(&q.ObjectMeta, "must be empty")...)); err != nil {
				return err
			}
			return reviewAccess(ctx, reviewAuthorizer{rq.User, authorizer}, &q.Spec, &q.Status)
		}),
		"authorization.k8s.io/localsubjectaccessreviews": review(func(
			ctx context.Context, rq *pipeline.Request, q *authorizationv1.LocalSubjectAccessReview,
		) error {
			if err := invalidReview(validateLocal(q)); err != nil {
				return err
			}
			if q.Namespace != rq.Namespace {
				return apierrors.NewBadRequest(
					fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", rq.Namespace))
			}
			return reviewAccess(ctx, authorizer, &q.Spec, &q.Status)
		}),
		"authorization.k8s.io/selfsubjectaccessreviews": review(func(
			ctx context.Context, rq *pipeline.Request, q *authorizationv1.SelfSubjectAccessReview,
		) error {
			spec := authorizationv1.SubjectAccessReviewSpec{
				ResourceAttributes:    q.Spec.ResourceAttributes,
				NonResourceAttributes: q.Spec.NonResourceAttributes,
				User:                  rq.User.Name,
				UID:                   rq.User.UID,
				Groups:                rq.User.Groups,
				Extra:                 extraOf(rq.User),
			}
			if err := invalidReview(
				append(validateAccess(&spec, false), noMetadata(&q.ObjectMeta, "must be empty")...)); err != nil {
				return err
			}
			return reviewAccess(ctx, authorizer, &spec, &q.Status)
		}),
		"authorization.k8s.io/selfsubjectrulesreviews": review(func(
			_ context.Context, rq *pipeline.Request, q *authorizationv1.SelfSubjectRulesReview,
		) error {
			if q.Spec.Namespace == "" {
				return apierrors.NewBadRequest("no namespace on request")
			}
			// The response has no spec.
			*q = authorizationv1.SelfSubjectRulesReview{Status: listRules(rules, rq.User, q.Spec.Namespace)}
			return nil
		}),
	}
}

func reviewToken(ctx context.Context, tokens Tokens, tokenReview *authenticationv1.TokenReview) error {
	if tokenReview.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	if tokens == nil {
		tokenReview.Status.Error = "no token authenticator"
		return nil
	}
	u, audiences, err := tokens.Check(ctx, tokenReview.Spec.Token, tokenReview.Spec.Audiences)
	if err != nil {
		tokenReview.Status = authenticationv1.TokenReviewStatus{Error: err.Error()}
		return nil //nolint:nilerr // an invalid token is a result, not an error
	}
	tokenReview.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true,
		User:          userInfo(u),
		Audiences:     audiences,
	}
	return nil
}

func userInfo(u *auth.User) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for k, v := range u.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return info
}

func extraOf(u *auth.User) map[string]authorizationv1.ExtraValue {
	if len(u.Extra) == 0 {
		return nil
	}
	out := make(map[string]authorizationv1.ExtraValue, len(u.Extra))
	for k, v := range u.Extra {
		out[k] = v
	}
	return out
}

// reviewAuthorizer is the authorizer for SubjectAccessReviews. In reviews from kubelets it allows the API server's own
// requests to that kubelet.
type reviewAuthorizer struct {
	requester *auth.User
	auth.Authorizer
}

// Authorize implements auth.Authorizer.
func (j reviewAuthorizer) Authorize(ctx context.Context, a *auth.Attributes) (auth.Decision, error) {
	if d := authz.ForKubelet(j.requester, a); d.Verdict != auth.NoOpinion {
		return d, nil
	}
	return j.Authorizer.Authorize(ctx, a)
}

// reviewAccess calls the authorizer for another user.
func reviewAccess(
	ctx context.Context, authorizer auth.Authorizer, spec *authorizationv1.SubjectAccessReviewSpec,
	status *authorizationv1.SubjectAccessReviewStatus,
) error {
	attrs := &auth.Attributes{User: &auth.User{Name: spec.User, UID: spec.UID, Groups: spec.Groups}}
	if len(spec.Extra) > 0 {
		attrs.User.Extra = map[string][]string{}
		for k, v := range spec.Extra {
			attrs.User.Extra[k] = v
		}
	}
	if ra := spec.ResourceAttributes; ra != nil {
		attrs.ResourceRequest = true
		attrs.Verb = ra.Verb
		attrs.Group = ra.Group
		attrs.Version = ra.Version
		attrs.Resource = ra.Resource
		attrs.Subresource = ra.Subresource
		attrs.Namespace = ra.Namespace
		attrs.Name = ra.Name
		attrs.FieldSelector = fieldRequirements(ra.FieldSelector)
		attrs.LabelSelector = labelRequirements(ra.LabelSelector)
	} else {
		attrs.Verb = spec.NonResourceAttributes.Verb
		attrs.Path = spec.NonResourceAttributes.Path
	}
	d, err := authorizer.Authorize(ctx, attrs)
	*status = authorizationv1.SubjectAccessReviewStatus{
		Allowed: d.Verdict == auth.Allow,
		Denied:  d.Verdict == auth.Deny,
		Reason:  d.Reason,
	}
	var wrong []string
	if ra := spec.ResourceAttributes; ra != nil {
		wrong = invalidSelectors(ra)
	}
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	status.EvaluationError = strings.Join(wrong, ", ")
	return nil
}

// invalidSelectors lists the selectors of a review that cannot be parsed and are ignored.
func invalidSelectors(ra *authorizationv1.ResourceAttributes) (wrong []string) {
	const ignored = " ignored due to parse error"
	if s := ra.FieldSelector; s != nil && s.RawSelector != "" {
		if _, err := fields.ParseSelector(s.RawSelector); err != nil {
			wrong = append(wrong, "spec.resourceAttributes.fieldSelector"+ignored)
		}
	}
	if s := ra.LabelSelector; s != nil {
		_, err := labels.Parse(s.RawSelector)
		if len(s.Requirements) > 0 {
			_, err = metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: s.Requirements})
		}
		if err != nil {
			wrong = append(wrong, "spec.resourceAttributes.labelSelector"+ignored)
		}
	}
	return wrong
}

// fieldRequirements are the requirements that authorizers understand. Without the others the review is about a larger
// set of objects, so it never allows too much.
func fieldRequirements(attributes *authorizationv1.FieldSelectorAttributes) fields.Requirements {
	if attributes == nil {
		return nil
	}
	if attributes.RawSelector != "" {
		sel, err := fields.ParseSelector(attributes.RawSelector)
		if err != nil {
			return nil
		}
		return sel.Requirements()
	}
	var out fields.Requirements
	for _, req := range attributes.Requirements {
		if len(req.Values) != 1 {
			continue
		}
		switch req.Operator {
		case metav1.FieldSelectorOpIn:
			out = append(out, fields.Requirement{Field: req.Key, Operator: selection.Equals, Value: req.Values[0]})
		case metav1.FieldSelectorOpNotIn:
			out = append(out, fields.Requirement{Field: req.Key, Operator: selection.NotEquals, Value: req.Values[0]})
		}
	}
	return out
}

func labelRequirements(s *authorizationv1.LabelSelectorAttributes) labels.Requirements {
	if s == nil {
		return nil
	}
	sel, err := labels.Parse(s.RawSelector)
	if len(s.Requirements) > 0 {
		sel, err = metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: s.Requirements})
	}
	if err != nil {
		return nil
	}
	out, _ := sel.Requirements()
	return out
}

func listRules(rules Rules, user *auth.User, namespace string) authorizationv1.SubjectRulesReviewStatus {
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	if rules == nil {
		status.Incomplete = true
		return status
	}
	if r, ok := rules.(interface{ Incomplete() string }); ok && r.Incomplete() != "" {
		status.Incomplete = true
		status.EvaluationError = r.Incomplete()
	}
	for _, rule := range rules.RulesFor(user, namespace) {
		if len(rule.Resources) > 0 {
			status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
				Verbs:         rule.Verbs,
				APIGroups:     rule.APIGroups,
				Resources:     rule.Resources,
				ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
				Verbs:           rule.Verbs,
				NonResourceURLs: rule.NonResourceURLs,
			})
		}
	}
	return status
}
