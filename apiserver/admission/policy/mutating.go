// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	kjson "sigs.k8s.io/json"

	"keelson/api/scheme"
	"keelson/apiserver/admission"
	"keelson/apiserver/admission/expression"
	"keelson/apiserver/admission/matching"
	"keelson/lib/celenv"
	"keelson/lib/quantity"
)

// Mutating is the MutatingAdmissionPolicy plugin.
type Mutating struct {
	policyStore[patches]
	Config
}

// NewMutating returns a plugin without policies. SetPolicy, SetBinding and the Remove methods update it.
func NewMutating(c Config) *Mutating {
	return &Mutating{policyStore: newPolicyStore[patches](), Config: c}
}

// Name is the plugin's name.
func (*Mutating) Name() string { return "MutatingAdmissionPolicy" }

// SetPolicy adds or updates a policy.
func (p *Mutating) SetPolicy(obj runtime.Object) {
	policy, ok := obj.(*registrationv1.MutatingAdmissionPolicy)
	if !ok {
		return
	}
	s := &policy.Spec
	p.setPolicy(policy.Name, s.MatchConstraints, s.FailurePolicy, s.ParamKind, func() *patches {
		return compilePatches(s, p.observe(policy.Name, admission.StepAdmit))
	})
}

// SetBinding adds or updates a binding.
func (p *Mutating) SetBinding(obj runtime.Object) {
	if o, ok := obj.(*registrationv1.MutatingAdmissionPolicyBinding); ok {
		p.setBinding(&binding{name: o.Name, policy: o.Spec.PolicyName, params: o.Spec.ParamRef}, o.Spec.MatchResources)
	}
}

// patches holds a policy's compiled expressions.
type patches struct {
	err        error
	compiler   *cel.CompositedCompiler
	conditions *expression.Conditions // nil: none
	patchers   []patch.Patcher
	reinvoke   bool
}

func compilePatches(spec *registrationv1.MutatingAdmissionPolicySpec, observe expression.Observer) *patches {
	compiler, err := cel.NewCompositedCompiler(celenv.Base())
	if err != nil {
		return &patches{err: fmt.Errorf("failed to initialize CEL compiler: %w", err)}
	}
	decl := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	compiler.CompileAndStoreVariables(variables(spec.Variables), decl, environment.StoredExpressions)
	out := &patches{compiler: compiler, reinvoke: spec.ReinvocationPolicy == registrationv1.IfNeededReinvocationPolicy}
	if len(spec.MatchConditions) > 0 {
		out.conditions = expression.Wrap(compiler.CompileCondition(expression.Accessors(spec.MatchConditions), decl,
			environment.StoredExpressions), spec.FailurePolicy, observe)
	}
	decl.HasPatchTypes = true
	for _, m := range spec.Mutations {
		switch {
		case m.PatchType == registrationv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			e := compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, decl,
				environment.StoredExpressions)
			out.patchers = append(out.patchers, patch.NewJSONPatcher(counted{e}))
		case m.PatchType == registrationv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			e := compiler.CompileMutatingEvaluator(&patch.ApplyConfigurationCondition{
				Expression: m.ApplyConfiguration.Expression,
			}, decl, environment.StoredExpressions)
			out.patchers = append(out.patchers, patch.NewApplyConfigurationPatcher(counted{e}))
		}
	}
	return out
}

// reinvocation is the state that Admit keeps between the two rounds of a request, by invocation.
type reinvocation struct {
	last             runtime.Object
	called, required map[string]bool
}

// requireAll requests another application of all reinvocable policies.
func (s *reinvocation) requireAll() {
	for key := range s.called {
		s.required[key] = true
		delete(s.called, key)
	}
}

// Admit applies every policy through every binding, in order.
func (p *Mutating) Admit(ctx context.Context, req *admission.Request) error {
	force := p.active.Load()
	if force == nil || req.Object == nil || matching.ExemptOfPolicies(req) {
		return nil
	}
	state, _ := req.PluginState(p.Name()).(*reinvocation)
	if state == nil {
		state = &reinvocation{called: map[string]bool{}, required: map[string]bool{}}
		req.SetPluginState(p.Name(), state)
	}
	if req.Reinvocation && !apiequality.Semantic.DeepEqual(state.last, req.Object) {
		state.requireAll()
	}
	run := &mutatingRun{plugin: p, r: req, state: state}
	for _, pol := range *force {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("evaluate policy %q: %w", pol.name, err)
		}
		if err := run.policy(ctx, pol); err != nil {
			return err
		}
	}
	if len(state.called) > 0 && !req.Reinvocation {
		state.last = req.Object.DeepCopyObject()
	}
	if run.refusal != nil {
		return run.refusal
	}
	return nil
}

// mutatingRun applies all policies to one request.
type mutatingRun struct {
	plugin  *Mutating
	r       *admission.Request
	state   *reinvocation
	refusal *apierrors.StatusError
}

// policy applies one policy. An error ends the request; a failure that the failure policy handles is stored in refusal.
func (m *mutatingRun) policy(ctx context.Context, pol *compiledPolicy[patches]) error {
	target, err := pol.match(ctx, m.r, m.plugin.Reader)
	if err != nil {
		m.fail(pol, nil, fmt.Errorf("failed to configure policy: %w", err), "")
		return nil
	}
	if target == nil {
		return nil
	}
	for _, binding := range pol.bindings {
		params, err := pol.parameters(ctx, m.r, m.plugin.Reader, binding)
		if err != nil {
			m.fail(pol, binding, fmt.Errorf("failed to configure binding: %w", err), "")
			continue
		}
		left := newBudget()
		for _, param := range params {
			left.show(param, m.r.Object, m.r.OldObject)
			if err := m.invoke(left.with(ctx), pol, binding, target, param, left); err != nil {
				return err
			}
			if left.spent() && len(params) > 1 { // whatever the failure policy
				m.refuse(pol, binding, errBudget, metav1.StatusReasonInvalid)
				return nil
			}
		}
	}
	return nil
}

func (m *mutatingRun) fail(pol *compiledPolicy[patches], b *binding, err error, reason metav1.StatusReason) {
	if !pol.ignoresFailure() {
		m.refuse(pol, b, err, reason)
	}
}

func (m *mutatingRun) refuse(pol *compiledPolicy[patches], b *binding, err error, reason metav1.StatusReason) {
	message := fmt.Sprintf("policy %q denied request: %v", pol.name, err)
	if b != nil {
		message = fmt.Sprintf("policy '%s' with binding '%s' denied request: %v", pol.name, b.name, err)
	}
	if m.refusal == nil {
		m.refusal = admission.Forbidden(m.r, "admission request denied by policy")
		m.refusal.ErrStatus.Message = message
		if reason != "" {
			m.refusal.ErrStatus.Reason = reason
		}
	}
	m.refusal.ErrStatus.Details.Causes = append(m.refusal.ErrStatus.Details.Causes, metav1.StatusCause{
		Message: message,
	})
}

// invoke applies a policy with one parameter.
func (m *mutatingRun) invoke(
	ctx context.Context, pol *compiledPolicy[patches], b *binding, target *matching.Target, param runtime.Object,
	left *budget,
) error {
	c := pol.compiled()
	if c.err != nil {
		m.fail(pol, b, c.err, metav1.StatusReasonInvalid)
		return nil //nolint:nilerr // fail has recorded it
	}
	if c.conditions != nil {
		in, err := m.input(ctx, target, param)
		if err != nil {
			return err
		}
		allowed := left.allow(expression.Budget)
		ok, rest, err := c.conditions.MatchFor(ctx, in, allowed)
		left.spend(allowed, rest)
		if err != nil {
			m.fail(pol, b, err, metav1.StatusReasonInvalid)
		}
		if err != nil || !ok {
			return nil //nolint:nilerr // fail has recorded it
		}
	}
	key := pol.name + "/" + b.name
	if o, ok := param.(metav1.Object); ok {
		key += "/" + o.GetNamespace() + "/" + o.GetName()
	}
	if m.r.Reinvocation && !m.state.required[key] {
		return nil
	}
	before := m.r.Object.DeepCopyObject()
	for _, patcher := range c.patchers {
		begin := time.Now()
		err := m.apply(c.compiler.CreateContext(ctx), patcher, target, param)
		m.plugin.Metrics.Mutation(pol.name, b.name, mutationError(err), time.Since(begin))
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
			return status
		}
		if err != nil {
			m.fail(pol, b, err, metav1.StatusReasonInvalid)
		}
	}
	if !apiequality.Semantic.DeepEqual(before, m.r.Object) {
		m.r.ChangedBy("MutatingAdmissionPolicy "+pol.name, admission.ChangedFields(before, m.r.Object)...)
		m.state.requireAll()
		m.r.Reinvoke()
	}
	if c.reinvoke {
		m.state.called[key] = true
	}
	return nil
}

// mutationError is the metrics label of err.
func mutationError(err error) string {
	switch {
	case err == nil:
		return admission.NoError
	case errors.Is(err, apiservercel.ErrCompilation):
		return admission.CompileError
	case errors.Is(err, apiservercel.ErrOutOfBudget):
		return admission.OutOfBudget
	}
	return admission.InvalidError
}

func (m *mutatingRun) input(ctx context.Context, t *matching.Target, param runtime.Object) (*expression.Input, error) {
	in, err := input(ctx, m.plugin.Reader, m.r, t, m.plugin.Authorizer)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	in.Bindings.VersionedParams = param
	return in, nil
}

// objects makes the objects that the results of JSON patches are decoded into.
type objects struct{ upstream.ObjectInterfaces }

var interfaces = sync.OnceValue(func() upstream.ObjectInterfaces {
	return objects{upstream.NewObjectInterfacesFromScheme(scheme.Scheme)}
})

func (o objects) GetObjectCreater() runtime.ObjectCreater { return o }

// New returns an object that is decoded only if its quantities are bounded.
func (o objects) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	made, err := o.ObjectInterfaces.GetObjectCreater().New(gvk)
	return &bounded{made}, err
}

// bounded is an object that checks what it is decoded from.
type bounded struct{ runtime.Object }

// UnmarshalJSON decodes strictly, as the patcher does.
func (b *bounded) UnmarshalJSON(doc []byte) error {
	if err := quantity.CheckJSON(doc, reflect.TypeOf(b.Object)); err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(doc, b.Object)
	if err == nil && len(strict) > 0 {
		err = runtime.NewStrictDecodingError(strict)
	}
	return err
}

// apply evaluates one mutation and applies its result to the request's object.
func (m *mutatingRun) apply(
	ctx context.Context, patcher patch.Patcher, target *matching.Target, param runtime.Object,
) error {
	in, err := m.input(ctx, target, param)
	if err != nil {
		return err
	}
	types, err := m.plugin.Reader.Types(target.Resource)
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("Resource kind %s not found. There can be a delay between "+
			"when CustomResourceDefinitions are created and when they are available.", target.Kind))
	}
	seen := in.Attributes.VersionedObject.Object()
	next, err := patcher.Patch(ctx, patch.Request{
		MatchedResource:     target.Resource,
		VersionedAttributes: in.Attributes,
		ObjectInterfaces:    interfaces(),
		OptionalVariables:   in.Bindings,
		Namespace:           cel.CreateNamespaceObject(in.Namespace),
		TypeConverter:       types,
	}, celconfig.RuntimeCELCostBudget)
	if err != nil || next == seen {
		return err
	}
	if made, ok := next.(*bounded); ok {
		next = made.Object
	}
	doc, err := admission.Document(next, target.Kind)
	if err != nil {
		return err
	}
	obj, err := matching.FromTarget(ctx, m.plugin.Reader, m.r, target, seen, doc)
	if err != nil {
		return err
	}
	return m.r.SetObject(obj)
}
