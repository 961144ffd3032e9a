// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/auth"
)

// Union asks each authorizer in order: the first Allow or Deny decides. Errors of authorizers without an opinion count
// only if none decides.
type Union []auth.Authorizer

// Authorize returns the first decision. Without one it joins the reasons of all authorizers.
func (u Union) Authorize(ctx context.Context, a *auth.Attributes) (auth.Decision, error) {
	var reason string
	var errs []error
	for _, by := range u {
		decision, err := by.Authorize(ctx, a)
		if decision.Verdict != auth.NoOpinion {
			return decision, err
		}
		if err != nil {
			errs = append(errs, err)
		}
		if decision.Reason != "" {
			if reason != "" {
				reason += ", "
			}
			reason += decision.Reason
		}
	}
	return auth.Decision{Reason: reason}, errors.Join(errs...)
}

// Masters allows the group system:masters everything, so that a wrong role cannot lock the administrator out.
type Masters struct{}

// Authorize has no opinion on other users.
func (Masters) Authorize(_ context.Context, a *auth.Attributes) (auth.Decision, error) {
	if slices.Contains(a.User.Groups, auth.Masters) {
		return auth.Decision{Verdict: auth.Allow, Reason: "group system:masters"}, nil
	}
	return auth.Decision{}, nil
}

// RulesFor lists the rules of the group.
func (Masters) RulesFor(u *auth.User, _ string) []rbacv1.PolicyRule {
	if !slices.Contains(u.Groups, auth.Masters) {
		return nil
	}
	return slices.Clone(everything)
}

// Rules joins the rule lists of several authorizers. Unlisted reports whether an authorizer cannot list its rules, so
// that the result is incomplete.
type Rules struct {
	Of []interface {
		RulesFor(u *auth.User, namespace string) []rbacv1.PolicyRule
	}
	Unlisted func() bool
}

// RulesFor lists every rule of u in namespace.
func (r Rules) RulesFor(u *auth.User, namespace string) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, by := range r.Of {
		out = append(out, by.RulesFor(u, namespace)...)
	}
	return out
}

// Incomplete says why RulesFor may be incomplete; empty: it is complete.
func (r Rules) Incomplete() string {
	if r.Unlisted == nil || !r.Unlisted() {
		return ""
	}
	return "webhook authorizer does not support user rule resolution"
}
