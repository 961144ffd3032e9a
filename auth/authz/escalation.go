// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/auth/rbac/validation"

	"keelson/auth"
)

// Escalation prevents privilege escalation: a user may write a role only with rules that the user holds, or with the
// verb "escalate"; a binding only to such a role, or with the verb "bind". (Kubernetes documentation, "Privilege
// escalation prevention and bootstrapping".)
type Escalation struct {
	Rules      *RBAC
	Authorizer auth.Authorizer
}

// everything is required to write an aggregation rule, which may collect any rules.
var everything = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// Check checks a write of an RBAC object by u. old is nil for a create; namespace is the request's. Other kinds pass.
// The error is a 403 Status.
func (e Escalation) Check(ctx context.Context, a *auth.Attributes, obj, old runtime.Object) error {
	user := a.User
	namespace := a.Namespace
	if user == nil || slices.Contains(user.Groups, auth.Masters) || old != nil && onlyForCollector(obj, old) {
		return nil
	}
	switch o := obj.(type) {
	case *rbacv1.Role:
		return e.role(ctx, user, namespace, o, old == nil)
	case *rbacv1.ClusterRole:
		before, _ := old.(*rbacv1.ClusterRole)
		return e.clusterRole(ctx, user, o, before)
	case *rbacv1.RoleBinding:
		return e.binding(ctx, user, "rolebindings", namespace, o.Name, o.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return e.binding(ctx, user, "clusterrolebindings", "", o.Name, o.RoleRef)
	}
	return nil
}

func (e Escalation) clusterRole(ctx context.Context, u *auth.User, o, before *rbacv1.ClusterRole) error {
	const resource = "clusterroles"
	if e.may(ctx, u, "escalate", resource, "", escalationName(o.Name, before == nil)) {
		return nil
	}
	if err := refuse(resource, o.Name, e.covers(u, "", o.Rules)); err != nil {
		return err
	}
	if aggregates(o) || before != nil && aggregates(before) {
		if err := e.covers(u, "", everything); err != nil {
			return refuse(resource, o.Name, errors.New("must have cluster-admin privileges to use the aggregationRule"))
		}
	}
	return nil
}

// aggregates reports whether a role has an aggregation rule. One without selectors is left to validation.
func aggregates(r *rbacv1.ClusterRole) bool {
	return r.AggregationRule != nil && len(r.AggregationRule.ClusterRoleSelectors) > 0
}

// escalationName is the object name in the check of "escalate". For a create it is empty, because a right for named
// roles must not cover new ones.
func escalationName(name string, create bool) string {
	if create {
		return ""
	}
	return name
}

func (e Escalation) role(ctx context.Context, u *auth.User, namespace string, o *rbacv1.Role, create bool) error {
	const resource = "roles"
	if e.may(ctx, u, "escalate", resource, namespace, escalationName(o.Name, create)) {
		return nil
	}
	return refuse(resource, o.Name, e.covers(u, namespace, o.Rules))
}

func (e Escalation) binding(
	ctx context.Context, user *auth.User, resource, namespace, name string, ref rbacv1.RoleRef,
) error {
	of := "clusterroles"
	if ref.Kind == "Role" {
		of = "roles"
	}
	if e.may(ctx, user, "bind", of, namespace, ref.Name) {
		return nil
	}
	rules, ok := e.Rules.RoleRules(ref, namespace)
	if !ok {
		// Kubernetes also names the binding's resource here
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, ref.Name)
	}
	return refuse(resource, name, e.covers(user, namespace, rules))
}

func (e Escalation) may(ctx context.Context, u *auth.User, verb, resource, namespace, name string) bool {
	d, err := e.Authorizer.Authorize(ctx, &auth.Attributes{
		User:            u,
		Verb:            verb,
		Group:           rbacv1.GroupName,
		Version:         "*",
		Resource:        resource,
		Namespace:       namespace,
		Name:            name,
		ResourceRequest: true,
	})
	return err == nil && d.Verdict == auth.Allow
}

// covers returns an error with the rules that user does not hold in namespace.
func (e Escalation) covers(user *auth.User, namespace string, rules []rbacv1.PolicyRule) error {
	ok, missing := validation.Covers(e.Rules.RulesFor(user, namespace), rules)
	if ok {
		return nil
	}
	var lines []string
	for _, r := range compact(missing) {
		if line := describeRule(&r); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s", user.Name,
		user.Groups, strings.Join(lines, "\n"))
}

func refuse(resource, name string, err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, name, err)
}

// compact merges rules for the same single resource into one with all verbs.
func compact(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	simple := map[string]*rbacv1.PolicyRule{}
	for i := range rules {
		r := &rules[i]
		if len(r.APIGroups) != 1 || len(r.Resources) != 1 || len(r.ResourceNames) > 1 || len(r.NonResourceURLs) > 0 {
			out = append(out, *r)
			continue
		}
		id := fmt.Sprintf("%q %q %q", r.APIGroups, r.Resources, r.ResourceNames)
		if have := simple[id]; have != nil {
			have.Verbs = append(have.Verbs, r.Verbs...)
			continue
		}
		simple[id] = r.DeepCopy()
	}
	for _, id := range slices.Sorted(maps.Keys(simple)) {
		out = append(out, *simple[id])
	}
	return out
}

func describeRule(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name string
		list []string
	}{
		{"APIGroups", r.APIGroups},
		{"Resources", r.Resources},
		{"NonResourceURLs", r.NonResourceURLs},
		{"ResourceNames", r.ResourceNames},
		{"Verbs", r.Verbs},
	} {
		if len(p.list) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.list))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// onlyForCollector reports whether obj differs from old at most in owner references and finalizers, which the garbage
// collector changes before it deletes an object.
func onlyForCollector(obj, old runtime.Object) bool {
	a := obj.DeepCopyObject()
	b := old.DeepCopyObject()
	for _, o := range []runtime.Object{a, b} {
		m, ok := o.(metav1.Object)
		if !ok {
			return false
		}
		m.SetOwnerReferences(nil)
		m.SetFinalizers(nil)
		m.SetManagedFields(nil)
		m.SetResourceVersion("")
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return apiequality.Semantic.DeepEqual(a, b)
}
