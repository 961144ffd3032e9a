// SPDX-License-Identifier: Apache-2.0

// Package policy holds the ValidatingAdmissionPolicy and MutatingAdmissionPolicy plugins: users store CEL expressions
// in the cluster that validate or modify requests, and bindings that enable each policy. The admission chain runs them.
// They never call another server.
//
// Invariants:
//  1. Policies are applied in the order of their names, and so are the bindings of each.
//  2. Requests for policies, and reviews, are never evaluated.
//  3. Expressions are compiled when the first request is matched; a policy without a binding costs nothing, and where
//     no policy is in force a write costs one atomic load.
package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	celgo "github.com/google/cel-go/cel"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission/plugin/cel"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/expression"
	"keelson/apiserver/admission/matching"
	"keelson/auth"
)

// Resources that the plugins follow.
var (
	ValidatingResource        = registrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies")
	ValidatingBindingResource = registrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings")
	MutatingResource          = registrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies")
	MutatingBindingResource   = registrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicybindings")
)

// Reader reads the server's objects and knows their kinds.
type Reader interface {
	matching.Reader
	// Select lists a namespace's objects ("": all) that match; a nil selector matches everything.
	Select(
		ctx context.Context, r schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector,
	) ([]runtime.Object, error)
	// ResourceOf returns the resource of a kind.
	ResourceOf(gvk schema.GroupVersionKind) (r schema.GroupVersionResource, namespaced, ok bool)
	// Types returns the type converter of a resource's objects.
	Types(r schema.GroupVersionResource) (managedfields.TypeConverter, error)
}

// Config holds the dependencies of both plugins.
type Config struct {
	Reader     Reader
	Authorizer auth.Authorizer
	Metrics    *admission.Metrics // may be nil
}

// observe returns the observer for the metrics of a policy's match conditions.
func (c *Config) observe(policy, step string) expression.Observer {
	return func(op admission.Operation, took time.Duration, failed int, excluded bool) {
		c.Metrics.Conditions(policy, "policy", step, op, took, failed, excluded)
	}
}

// errorType is the metrics label of an error message.
func errorType(message string) string {
	switch {
	case strings.HasPrefix(message, "compilation"):
		return admission.CompileError
	case strings.HasPrefix(message, "validation failed due to running out of cost budget"):
		return admission.OutOfBudget
	}
	return admission.InvalidError
}

// compiledPolicy is the common part of both kinds of policies; P is the type of the compiled expressions.
type compiledPolicy[P any] struct {
	name      string
	criteria  *matching.Criteria
	configErr error
	policy    *registrationv1.FailurePolicyType
	params    *registrationv1.ParamKind
	compiled  func() *P
	bindings  []*binding
}

// binding is a policy binding.
type binding struct {
	name      string
	policy    string
	criteria  *matching.Criteria // nil: the policy's
	configErr error
	params    *registrationv1.ParamRef
	actions   []registrationv1.ValidationAction
}

func (p *compiledPolicy[P]) ignoresFailure() bool {
	return p.policy != nil && *p.policy == registrationv1.Ignore
}

// setPolicy adds or updates a policy, whose expressions compile compiles.
func (s *policyStore[P]) setPolicy(
	name string, match *registrationv1.MatchResources, failure *registrationv1.FailurePolicyType,
	params *registrationv1.ParamKind, compile func() *P,
) {
	criteria, err := criteriaOf(match)
	pol := &compiledPolicy[P]{
		name:      name,
		criteria:  criteria,
		configErr: err,
		policy:    failure,
		params:    params,
		compiled:  sync.OnceValue(compile),
	}
	s.update(func() { s.policies[name] = pol })
}

// setBinding adds or updates a binding, which applies to match.
func (s *policyStore[P]) setBinding(b *binding, match *registrationv1.MatchResources) {
	b.criteria, b.configErr = criteriaOf(match)
	s.update(func() { s.bindings[b.name] = b })
}

func criteriaOf(m *registrationv1.MatchResources) (*matching.Criteria, error) {
	if m == nil {
		return nil, nil
	}
	return matching.NewAll(m.ResourceRules, m.ExcludeResourceRules, m.MatchPolicy, m.NamespaceSelector,
		m.ObjectSelector)
}

// policyStore stores policies and bindings, and publishes the policies that have bindings.
type policyStore[P any] struct {
	mu       sync.Mutex
	policies map[string]*compiledPolicy[P]
	bindings map[string]*binding
	// active are the policies with bindings, by name; nil: none.
	active atomic.Pointer[[]*compiledPolicy[P]]
}

func newPolicyStore[P any]() policyStore[P] {
	return policyStore[P]{policies: map[string]*compiledPolicy[P]{}, bindings: map[string]*binding{}}
}

// update modifies the stored policies and publishes the result. Published policies are never modified.
func (s *policyStore[P]) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	var force []*compiledPolicy[P]
	for _, name := range slices.Sorted(maps.Keys(s.policies)) {
		p := *s.policies[name]
		for _, b := range s.bindings {
			if b.policy == name {
				p.bindings = append(p.bindings, b)
			}
		}
		slices.SortFunc(p.bindings, func(a, b *binding) int { return cmp.Compare(a.name, b.name) })
		if len(p.bindings) > 0 {
			force = append(force, &p)
		}
	}
	if force == nil {
		s.active.Store(nil)
		return
	}
	s.active.Store(&force)
}

// RemovePolicy removes a deleted policy.
func (s *policyStore[P]) RemovePolicy(obj runtime.Object) {
	if o, ok := obj.(metav1.Object); ok {
		s.update(func() { delete(s.policies, o.GetName()) })
	}
}

// RemoveBinding removes a deleted binding.
func (s *policyStore[P]) RemoveBinding(obj runtime.Object) {
	if o, ok := obj.(metav1.Object); ok {
		s.update(func() { delete(s.bindings, o.GetName()) })
	}
}

// named is a variable: an expression with a name.
type named struct{ name, text string }

func (n *named) GetName() string            { return n.name }
func (n *named) GetExpression() string      { return n.text }
func (n *named) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.AnyType, celgo.DynType} }

func variables(list []registrationv1.Variable) []cel.NamedExpressionAccessor {
	out := make([]cel.NamedExpressionAccessor, len(list))
	for i, v := range list {
		out[i] = &named{v.Name, v.Expression}
	}
	return out
}

// match returns the target of a request that matches a policy; nil: no match.
func (p *compiledPolicy[P]) match(ctx context.Context, r *admission.Request, reader Reader) (*matching.Target, error) {
	if p.configErr != nil {
		return nil, p.configErr
	}
	if p.criteria == nil {
		return nil, errors.New("policy contained no match constraints, a required field")
	}
	return p.criteria.Match(ctx, r, reader)
}

// parameters are the objects for which a binding evaluates the policy on a request: none if the binding does not match
// it, one nil if there are no parameters.
func (p *compiledPolicy[P]) parameters(
	ctx context.Context, r *admission.Request, reader Reader, b *binding,
) ([]runtime.Object, error) {
	if b.configErr != nil {
		return nil, b.configErr
	}
	if b.criteria != nil {
		if t, err := b.criteria.Match(ctx, r, reader); err != nil || t == nil {
			return nil, err
		}
	}
	k := p.params
	ref := b.params
	namespace := r.Namespace
	if k == nil || ref == nil {
		return []runtime.Object{nil}, nil
	}
	gvk := schema.FromAPIVersionAndKind(k.APIVersion, k.Kind)
	gvr, namespaced, ok := reader.ResourceOf(gvk)
	switch {
	case !ok:
		return nil, fmt.Errorf("paramKind kind `%v` not known", k.String())
	case !namespaced && ref.Namespace != "":
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case !namespaced:
		namespace = ""
	case ref.Namespace != "":
		namespace = ref.Namespace
	case namespace == "":
		return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
	}
	found, err := lookUp(ctx, reader, gvr, namespace, ref)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil &&
		*ref.ParameterNotFoundAction == registrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	for i := range found {
		found[i] = expression.Typed(found[i], gvk)
	}
	return found, nil
}

func lookUp(
	ctx context.Context, reader Reader, gvr schema.GroupVersionResource, namespace string, ref *registrationv1.ParamRef,
) ([]runtime.Object, error) {
	switch {
	case ref.Name != "" && ref.Selector != nil:
		return nil, errors.New("paramRef.name and paramRef.selector are mutually exclusive")
	case ref.Name != "":
		obj, err := reader.Get(ctx, gvr, namespace, ref.Name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []runtime.Object{obj}, nil
	case ref.Selector != nil:
		sel, err := metav1.LabelSelectorAsSelector(ref.Selector)
		if err != nil {
			return nil, fmt.Errorf("invalid paramRef.selector: %w", err)
		}
		found, err := reader.Select(ctx, gvr, namespace, sel, nil)
		return slices.Clone(found), err
	}
	return nil, errors.New("one of name or selector must be provided")
}

// input builds the expressions' input from req.
func input(
	ctx context.Context, reader Reader, req *admission.Request, t *matching.Target, authz auth.Authorizer,
) (*expression.Input, error) {
	obj, err := matching.ToTarget(ctx, reader, req.Object, req, t)
	if err != nil {
		return nil, fmt.Errorf("failed to convert object version: %w", err)
	}
	old, err := matching.ToTarget(ctx, reader, req.OldObject, req, t)
	if err != nil {
		return nil, fmt.Errorf("failed to convert object version: %w", err)
	}
	var ns *corev1.Namespace
	if req.Kind.Group != "" || req.Kind.Kind != "Namespace" { // a namespace is its own namespaceObject
		if ns, err = req.NamespaceObject(ctx, reader); err != nil {
			return nil, err
		}
	}
	return expression.NewInput(req, t.Resource, t.Kind, obj, old, ns, authz), nil
}
