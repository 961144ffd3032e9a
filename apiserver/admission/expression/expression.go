// SPDX-License-Identifier: Apache-2.0

// Package expression compiles and evaluates the CEL expressions of webhooks and policies, with Kubernetes' libraries
// and cost limits. The packages webhook and policy use it. Nothing is built before the first expression is compiled, so
// that a cluster without expressions has no cost. It never decides about a request.
package expression

import (
	"context"
	"errors"
	"sync"
	"time"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"

	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/apiserver/admission"
	"keelson/auth"
	"keelson/lib/celenv"
)

var conditions = sync.OnceValue(func() cel.ConditionCompiler { return cel.NewConditionCompiler(celenv.Base()) })

// Bool is an expression with a boolean result.
type Bool struct{ Name, Text string }

// GetExpression is the expression.
func (b *Bool) GetExpression() string { return b.Text }

// GetName is its name.
func (b *Bool) GetName() string { return b.Name }

// ReturnTypes are the allowed result types.
func (b *Bool) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.BoolType} }

// Conditions are the match conditions of a webhook or policy: all must be true.
type Conditions struct {
	evaluator   cel.ConditionEvaluator
	failOnError bool // an error fails the request, unless another condition is false
	observe     Observer
}

// Observer is called after an evaluation of conditions: its duration, the number of errors, and whether a condition is
// false.
type Observer func(op admission.Operation, took time.Duration, failed int, excluded bool)

// Compile compiles a webhook's conditions, which have no parameters; nil if there are none. Errors are returned by the
// evaluation.
func Compile(
	list []registrationv1.MatchCondition, policy *registrationv1.FailurePolicyType, observe Observer,
) *Conditions {
	if len(list) == 0 {
		return nil
	}
	return Wrap(conditions().CompileCondition(Accessors(list), cel.OptionalVariableDeclarations{HasAuthorizer: true},
		environment.StoredExpressions), policy, observe)
}

// Accessors converts conditions for the compiler.
func Accessors(list []registrationv1.MatchCondition) []cel.ExpressionAccessor {
	out := make([]cel.ExpressionAccessor, len(list))
	for i, c := range list {
		out[i] = &Bool{Name: c.Name, Text: c.Expression}
	}
	return out
}

// Wrap builds conditions from compiled expressions. observe may be nil.
func Wrap(e cel.ConditionEvaluator, policy *registrationv1.FailurePolicyType, observe Observer) *Conditions {
	return &Conditions{evaluator: e, failOnError: policy == nil || *policy == registrationv1.Fail, observe: observe}
}

// Budget is what the conditions of one webhook or policy may cost.
const Budget = celconfig.RuntimeCELCostBudgetMatchConditions

// Match reports whether all conditions are true. An error means that the request must fail.
func (c *Conditions) Match(ctx context.Context, in *Input) (bool, error) {
	ok, _, err := c.MatchFor(ctx, in, Budget)
	return ok, err
}

// MatchFor is Match for a cost of at most most, and returns what is left of it; below 0 after an error.
func (c *Conditions) MatchFor(ctx context.Context, in *Input, most int64) (ok bool, left int64, err error) {
	begin := time.Now()
	results, left, err := c.evaluator.ForInput(ctx, in.Attributes, in.Request(), in.Bindings, in.Namespace, most)
	var errs []error
	excluded := false
	for _, r := range results {
		if r.Error != nil {
			errs = append(errs, r.Error)
		}
		if excluded = r.EvalResult == celtypes.False; excluded {
			break
		}
	}
	if c.observe != nil {
		c.observe(admission.Operation(in.Attributes.GetOperation()), time.Since(begin), len(errs), excluded)
	}
	switch {
	case err != nil && c.failOnError:
		return false, left, err
	case err != nil || excluded:
		return false, left, nil //nolint:nilerr // failure policy Ignore: an error counts as false
	case len(errs) == 0:
		return true, left, nil
	case c.failOnError:
		return false, left, invalid.Errors(errs)
	}
	return false, left, nil
}

// Input is a request as expressions see it.
type Input struct {
	Attributes *upstream.VersionedAttributes
	Bindings   cel.OptionalVariableBindings
	Namespace  *corev1.Namespace // for namespaceObject; may be nil
	Resource   schema.GroupVersionResource
}

// NewInput builds the input for r as resource and kind; obj and old are its objects in that version, namespace is
// namespaceObject; all may be nil.
func NewInput(
	r *admission.Request, resource schema.GroupVersionResource, gvk schema.GroupVersionKind, obj, old runtime.Object,
	namespace *corev1.Namespace, authz auth.Authorizer,
) *Input {
	options := r.Options
	if r.Operation == admission.Connect {
		options = nil
	}
	attributes := &upstream.VersionedAttributes{
		Attributes: upstream.NewAttributesRecord(obj, old, r.Kind, r.Namespace, r.Name, r.Resource, r.Subresource,
			upstream.Operation(r.Operation), options, r.DryRun, info(r.User)),
		VersionedKind: gvk,
	}
	if obj != nil {
		attributes.VersionedObject.Set(Typed(obj, gvk))
	}
	if old != nil {
		attributes.VersionedOldObject.Set(Typed(old, gvk))
	}
	in := &Input{Attributes: attributes, Resource: resource, Namespace: namespace}
	if authz != nil {
		in.Bindings.Authorizer = celAuthorizer{authz}
	}
	return in
}

// Typed is obj with its kind and version; a shallow copy if they are missing, because obj may be shared.
func Typed(obj runtime.Object, gvk schema.GroupVersionKind) runtime.Object {
	return kind.Named(obj, gvk)
}

// Request is the variable "request".
func (in *Input) Request() *admissionv1.AdmissionRequest {
	return cel.CreateAdmissionRequest(in.Attributes.Attributes, metav1.GroupVersionResource(in.Resource),
		metav1.GroupVersionKind(in.Attributes.VersionedKind))
}

func info(u *auth.User) user.Info {
	if u == nil {
		return &user.DefaultInfo{}
	}
	return &user.DefaultInfo{
		Name:   u.Name,
		UID:    u.UID,
		Groups: u.Groups,
		Extra:  u.Extra,
	}
}

// celAuthorizer lets expressions call the server's authorizer.
type celAuthorizer struct{ auth.Authorizer }

// Authorize implements Kubernetes' authorizer interface.
func (j celAuthorizer) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	u := attributes.GetUser()
	if u == nil {
		return authorizer.DecisionDeny, "", errors.New("no user")
	}
	decision, err := j.Authorizer.Authorize(ctx, &auth.Attributes{
		User: &auth.User{
			Name:   u.GetName(),
			UID:    u.GetUID(),
			Groups: u.GetGroups(),
			Extra:  u.GetExtra(),
		},
		Verb:            attributes.GetVerb(),
		Group:           attributes.GetAPIGroup(),
		Version:         attributes.GetAPIVersion(),
		Resource:        attributes.GetResource(),
		Subresource:     attributes.GetSubresource(),
		Namespace:       attributes.GetNamespace(),
		Name:            attributes.GetName(),
		ResourceRequest: attributes.IsResourceRequest(),
		Path:            attributes.GetPath(),
	})
	switch decision.Verdict {
	case auth.Allow:
		return authorizer.DecisionAllow, decision.Reason, err
	case auth.Deny:
		return authorizer.DecisionDeny, decision.Reason, err
	case auth.NoOpinion:
	}
	return authorizer.DecisionNoOpinion, decision.Reason, err
}
