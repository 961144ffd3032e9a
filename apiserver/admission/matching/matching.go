// SPDX-License-Identifier: Apache-2.0

// Package matching matches requests against the rules of a webhook or policy: operations, resources, names, scope, and
// the labels of the object and of its namespace. The webhook and policy plugins use it. It only reads objects.
package matching

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
	"keelson/apiserver/admission"
)

// Reader reads the server's objects, and knows which resources serve the same objects.
type Reader interface {
	admission.Reader
	// Equivalents lists the other resources that serve the objects of r; nil if there are none.
	Equivalents(r schema.GroupVersionResource) []schema.GroupVersionResource
	// Kind is the kind of a resource.
	Kind(r schema.GroupVersionResource) (schema.GroupVersionKind, bool)
	// Describe is the kind.Kind of a resource; nil if it is not served.
	Describe(r schema.GroupVersionResource) *kind.Kind
	// Convert converts obj from one resource's version to another's. obj is shared and not modified.
	Convert(ctx context.Context, obj runtime.Object, from, to schema.GroupVersionResource) (runtime.Object, error)
}

// Criteria are the match criteria. The zero value of a selector matches everything.
type Criteria struct {
	Rules   []admissionv1.NamedRuleWithOperations
	Exclude []admissionv1.NamedRuleWithOperations
	// Exact: a rule matches only the resource that it names, not other versions of it.
	Exact bool
	// MatchAll: without rules everything matches, else nothing does.
	MatchAll          bool
	namespace, object labels.Selector
}

// New compiles criteria.
func New(
	rules, exclude []admissionv1.NamedRuleWithOperations, policy *admissionv1.MatchPolicyType,
	namespace, object *metav1.LabelSelector,
) (*Criteria, error) {
	c := &Criteria{Rules: rules, Exclude: exclude, Exact: policy != nil && *policy == admissionv1.Exact}
	var err error
	if c.namespace, err = selector(namespace); err != nil {
		return nil, fmt.Errorf("namespaceSelector: %w", err)
	}
	if c.object, err = selector(object); err != nil {
		return nil, fmt.Errorf("objectSelector: %w", err)
	}
	return c, nil
}

// NewAll compiles criteria that match everything when there are no rules.
func NewAll(
	rules, exclude []admissionv1.NamedRuleWithOperations, policy *admissionv1.MatchPolicyType,
	namespace, object *metav1.LabelSelector,
) (*Criteria, error) {
	c, err := New(rules, exclude, policy, namespace, object)
	if err != nil {
		return nil, err
	}
	c.MatchAll = true
	return c, nil
}

func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// Named converts rules without names to rules with names.
func Named(rules []admissionv1.RuleWithOperations) []admissionv1.NamedRuleWithOperations {
	out := make([]admissionv1.NamedRuleWithOperations, len(rules))
	for i := range rules {
		out[i].RuleWithOperations = rules[i]
	}
	return out
}

// Target is the resource version in which a matched request is shown: the one of the rule, which may differ from the
// request's.
type Target struct {
	Resource schema.GroupVersionResource
	Kind     schema.GroupVersionKind
}

// Match returns the target of a matching request, nil for others.
func (c *Criteria) Match(ctx context.Context, r *admission.Request, reader Reader) (*Target, error) {
	t, ok, err := c.rule(r, reader)
	if err != nil || !ok {
		return nil, err
	}
	if ok, err := c.namespaceMatches(ctx, r, reader); err != nil || !ok {
		return nil, err
	}
	if !c.object.Empty() && !matchesLabels(c.object, r.Object) && !matchesLabels(c.object, r.OldObject) {
		return nil, nil
	}
	return &t, nil
}

// rule finds the first matching rule, unless an excluding rule matches.
func (c *Criteria) rule(r *admission.Request, reader Reader) (Target, bool, error) {
	if len(c.Exclude) > 0 {
		if _, ok, err := c.find(c.Exclude, r, reader); err != nil || ok {
			return Target{}, false, err
		}
	}
	if c.MatchAll && len(c.Rules) == 0 {
		return Target{r.Resource, r.Kind}, true, nil
	}
	return c.find(c.Rules, r, reader)
}

func (c *Criteria) find(
	rules []admissionv1.NamedRuleWithOperations, req *admission.Request, reader Reader,
) (Target, bool, error) {
	for i := range rules {
		if matchesRule(&rules[i], req, req.Resource) {
			return Target{req.Resource, req.Kind}, true, nil
		}
	}
	if c.Exact {
		return Target{}, false, nil
	}
	others := reader.Equivalents(req.Resource)
	for i := range rules {
		for _, other := range others {
			if !matchesRule(&rules[i], req, other) {
				continue
			}
			t := Target{other, req.Kind}
			if own, _ := reader.Kind(req.Resource); own == req.Kind { // else it is a subresource's own kind, like Scale
				k, ok := reader.Kind(other)
				if !ok {
					return Target{}, false,
						apierrors.NewInternalError(fmt.Errorf("unable to convert to %v: unknown kind", other))
				}
				t.Kind = k
			}
			return t, true, nil
		}
	}
	return Target{}, false, nil
}

// matchesRule reports whether a rule matches the request as if it were for resource gvr.
func matchesRule(
	rule *admissionv1.NamedRuleWithOperations, r *admission.Request, gvr schema.GroupVersionResource,
) bool {
	return (slices.Contains(rule.Operations, admissionv1.OperationAll) ||
		slices.Contains(rule.Operations, admissionv1.OperationType(r.Operation))) &&
		matchesAny(rule.APIGroups, gvr.Group) && matchesAny(rule.APIVersions, gvr.Version) &&
		matchesScope(rule.Scope, r) &&
		slices.ContainsFunc(rule.Resources, func(text string) bool {
			return matchesResource(text, gvr.Resource, r.Subresource)
		}) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.Name))
}

func matchesAny(list []string, v string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, v)
}

// matchesResource matches "pods", "pods/status", "pods/*", "*/status", "*" and "*/*".
func matchesResource(text, name, sub string) bool {
	wantName, wantSub, _ := strings.Cut(text, "/")
	return (wantName == "*" || wantName == name) && (wantSub == "*" || wantSub == sub)
}

// matchesScope matches the scope. A namespace is cluster-scoped although its requests have a namespace.
func matchesScope(scope *admissionv1.ScopeType, r *admission.Request) bool {
	if scope == nil || *scope == admissionv1.AllScopes {
		return true
	}
	cluster := r.Namespace == "" || r.Resource.Group == "" && r.Resource.Resource == "namespaces"
	return cluster == (*scope == admissionv1.ClusterScope)
}

// namespaceMatches matches the namespace selector: cluster-scoped objects match, a namespace is matched by its own
// labels.
func (c *Criteria) namespaceMatches(ctx context.Context, req *admission.Request, reader Reader) (bool, error) {
	if c.namespace.Empty() {
		return true, nil
	}
	if req.Resource.Group == "" && req.Resource.Resource == "namespaces" {
		if req.Subresource == "" && req.Operation == admission.Create && req.Object != nil ||
			req.Operation == admission.Update && req.Object != nil {
			return matchesLabels(c.namespace, req.Object), nil
		}
		if req.OldObject != nil {
			return matchesLabels(c.namespace, req.OldObject), nil
		}
	}
	if req.Namespace == "" {
		return true, nil
	}
	ns, err := req.NamespaceObject(ctx, reader)
	if apierrors.IsNotFound(err) {
		return false, err
	}
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return c.namespace.Matches(labels.Set(ns.Labels)), nil
}

// ToTarget converts a request's object, which may be nil, to target's version.
func ToTarget(
	ctx context.Context, reader Reader, obj runtime.Object, r *admission.Request, t *Target,
) (runtime.Object, error) {
	if obj == nil || t.Resource == r.Resource || t.Kind == r.Kind {
		return obj, nil
	}
	return reader.Convert(ctx, obj, r.Resource, t.Resource)
}

// FromTarget decodes doc, the changed form of the object shown, as the request's object, with defaults.
func FromTarget(
	ctx context.Context, reader Reader, req *admission.Request, target *Target, shown runtime.Object, doc []byte,
) (runtime.Object, error) {
	if target.Kind == req.Kind {
		return req.Parse(doc)
	}
	other := admission.Request{
		Operation: req.Operation,
		Resource:  target.Resource,
		Object:    shown,
		Spec:      reader.Describe(target.Resource),
	}
	obj, err := other.Parse(doc)
	if err != nil {
		return nil, err
	}
	return reader.Convert(ctx, obj, target.Resource, req.Resource)
}

// matchesLabels reports whether an object's labels match. An object without metadata matches only an empty selector.
func matchesLabels(s labels.Selector, obj runtime.Object) bool {
	o, ok := obj.(metav1.Object)
	return ok && s.Matches(labels.Set(o.GetLabels()))
}

// Exempt are the requests that no webhook receives: for webhook and policy configurations, because a wrong one could
// lock all users out, and reviews, which store nothing.
func Exempt(r *admission.Request) bool {
	if r.Resource.Group == "admissionregistration.k8s.io" &&
		(r.Resource.Resource == "validatingwebhookconfigurations" ||
			r.Resource.Resource == "mutatingwebhookconfigurations") {
		return true
	}
	return ExemptOfPolicies(r)
}

// ExemptOfPolicies are the requests that no policy receives: for policies, and reviews.
func ExemptOfPolicies(r *admission.Request) bool {
	switch r.Resource.Group {
	case "admissionregistration.k8s.io":
		switch r.Resource.Resource {
		case "validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies",
			"mutatingadmissionpolicybindings":
			return true
		}
	case "authentication.k8s.io", "authorization.k8s.io":
		return strings.HasSuffix(r.Resource.Resource, "reviews")
	}
	return false
}
