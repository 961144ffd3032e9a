// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/expression"
	"keelson/apiserver/admission/matching"
	"keelson/lib/celenv"
)

// Validating is the ValidatingAdmissionPolicy plugin.
type Validating struct {
	policyStore[checks]
	Config
}

// NewValidating returns a plugin without policies. SetPolicy, SetBinding and the Remove methods update it.
func NewValidating(c Config) *Validating {
	return &Validating{policyStore: newPolicyStore[checks](), Config: c}
}

// Name is the plugin's name.
func (*Validating) Name() string { return "ValidatingAdmissionPolicy" }

// SetPolicy adds or updates a policy.
func (p *Validating) SetPolicy(obj runtime.Object) {
	policy, ok := obj.(*registrationv1.ValidatingAdmissionPolicy)
	if !ok {
		return
	}
	s := &policy.Spec
	p.setPolicy(policy.Name, s.MatchConstraints, s.FailurePolicy, s.ParamKind, func() *checks {
		return compile(s, p.observe(policy.Name, admission.StepValidate))
	})
}

// SetBinding adds or updates a binding.
func (p *Validating) SetBinding(obj runtime.Object) {
	if o, ok := obj.(*registrationv1.ValidatingAdmissionPolicyBinding); ok {
		p.setBinding(&binding{
			name:    o.Name,
			policy:  o.Spec.PolicyName,
			params:  o.Spec.ParamRef,
			actions: o.Spec.ValidationActions,
		}, o.Spec.MatchResources)
	}
}

// checks holds a policy's compiled expressions.
type checks struct {
	err         error
	conditions  *expression.Conditions // nil: none
	validations cel.ConditionEvaluator
	messages    cel.ConditionEvaluator
	annotations cel.ConditionEvaluator
}

// validation is one validation of a policy.
type validation struct {
	expression.Bool
	message string
	reason  *metav1.StatusReason
}

// text is an expression with a string result, or null if allowed.
type text struct {
	key, expression string
	nullable        bool
}

// GetExpression is the expression.
func (t *text) GetExpression() string { return t.expression }

// ReturnTypes are the allowed result types.
func (t *text) ReturnTypes() []*celgo.Type {
	if t.nullable {
		return []*celgo.Type{celgo.StringType, celgo.NullType}
	}
	return []*celgo.Type{celgo.StringType}
}

func compile(spec *registrationv1.ValidatingAdmissionPolicySpec, observe expression.Observer) *checks {
	compiler, err := cel.NewCompositedCompiler(celenv.Base())
	if err != nil {
		return &checks{err: fmt.Errorf("failed to initialize CEL compiler: %w", err)}
	}
	full := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	plain := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil}
	compiler.CompileAndStoreVariables(variables(spec.Variables), full, environment.StoredExpressions)
	out := &checks{}
	if len(spec.MatchConditions) > 0 {
		out.conditions = expression.Wrap(compiler.CompileCondition(expression.Accessors(spec.MatchConditions), full,
			environment.StoredExpressions), nil, observe)
	}
	rules := make([]cel.ExpressionAccessor, len(spec.Validations))
	messages := make([]cel.ExpressionAccessor, len(spec.Validations))
	for i, v := range spec.Validations {
		rules[i] = &validation{Bool: expression.Bool{Text: v.Expression}, message: v.Message, reason: v.Reason}
		if v.MessageExpression != "" {
			messages[i] = &text{expression: v.MessageExpression}
		}
	}
	annotations := make([]cel.ExpressionAccessor, len(spec.AuditAnnotations))
	for i, a := range spec.AuditAnnotations {
		annotations[i] = &text{key: a.Key, expression: a.ValueExpression, nullable: true}
	}
	out.validations = compiler.CompileCondition(rules, full, environment.StoredExpressions)
	out.messages = compiler.CompileCondition(messages, plain, environment.StoredExpressions)
	out.annotations = compiler.CompileCondition(annotations, full, environment.StoredExpressions)
	return out
}

// failedValidation is the result of a failed validation.
type failedValidation struct {
	index   int
	message string
	reason  metav1.StatusReason
	// failed: the evaluation had an error, which the failure policy handles.
	failed bool
	// annotation: an audit annotation failed, which denies the request whatever the binding's actions are.
	annotation bool
	took       time.Duration
}

// Validate applies every policy through every binding; the first rejection in order is the error.
func (p *Validating) Validate(ctx context.Context, r *admission.Request) error {
	force := p.active.Load()
	if force == nil || matching.ExemptOfPolicies(r) {
		return nil
	}
	run := &validatingRun{plugin: p, r: r}
	for _, pol := range *force {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("evaluate policy %q: %w", pol.name, err)
		}
		run.policy(ctx, pol)
	}
	run.annotateFailures()
	return run.refusal
}

// validatingRun applies all policies to one request.
type validatingRun struct {
	plugin           *Validating
	r                *admission.Request
	refusal          error // the first
	failures         []failureAnnotation
	auditAnnotations map[string][]string // audit annotations of the current policy
}

// failureAnnotation is a failed validation in the audit event.
type failureAnnotation struct {
	Message           string                            `json:"message"`
	Policy            string                            `json:"policy"`
	Binding           string                            `json:"binding"`
	ExpressionIndex   int                               `json:"expressionIndex"`
	ValidationActions []registrationv1.ValidationAction `json:"validationActions"`
}

func (v *validatingRun) policy(ctx context.Context, pol *compiledPolicy[checks]) {
	t, err := pol.match(ctx, v.r, v.plugin.Reader)
	if err != nil {
		v.misconfigured(pol, nil, err)
		return
	}
	if t == nil {
		return
	}
	for _, b := range pol.bindings {
		if err := v.binding(ctx, pol, b, t); err != nil {
			v.misconfigured(pol, b, err)
		}
	}
	for key, values := range v.auditAnnotations {
		v.r.AddAuditAnnotation(pol.name+"/"+key, strings.Join(values, ", "))
	}
	v.auditAnnotations = nil
}

// annotation stores the value of one binding or parameter under an audit annotation key.
func (v *validatingRun) annotation(key, value string) {
	if v.auditAnnotations == nil {
		v.auditAnnotations = map[string][]string{}
	}
	if !slices.Contains(v.auditAnnotations[key], value) {
		v.auditAnnotations[key] = append(v.auditAnnotations[key], value)
	}
}

func (v *validatingRun) misconfigured(pol *compiledPolicy[checks], b *binding, err error) {
	if pol.ignoresFailure() {
		return
	}
	what := "policy"
	if b != nil {
		what = "binding"
	}
	v.refuse(pol, b, failedValidation{message: fmt.Sprintf("failed to configure %s: %v", what, err)})
}

func (v *validatingRun) binding(
	ctx context.Context, pol *compiledPolicy[checks], b *binding, t *matching.Target,
) error {
	params, err := pol.parameters(ctx, v.r, v.plugin.Reader, b)
	if err != nil || len(params) == 0 {
		return err
	}
	in, err := input(ctx, v.plugin.Reader, v.r, t, v.plugin.Authorizer)
	if err != nil {
		return err
	}
	left := newBudget()
	for _, param := range params {
		in.Bindings.VersionedParams = param
		left.show(param, v.r.Object, v.r.OldObject)
		found := v.evaluate(ctx, pol, in, left)
		if left.spent() && len(params) > 1 {
			// Whatever the failure policy: a tenant must not end the evaluation by parameters that are expensive.
			v.act(pol, b, failedValidation{message: errBudget.Error()})
			return nil
		}
		for _, found := range found {
			switch {
			case !found.failed || !pol.ignoresFailure():
				v.act(pol, b, found)
			case !found.annotation:
				v.plugin.Metrics.Validation(pol.name, b.name, errorType(found.message), "allow", found.took)
			}
		}
	}
	return nil
}

// act applies the binding's actions to a failed validation.
func (v *validatingRun) act(pol *compiledPolicy[checks], b *binding, found failedValidation) {
	actions := b.actions
	if found.annotation {
		actions = []registrationv1.ValidationAction{registrationv1.Deny}
	}
	for _, action := range actions {
		v.plugin.Metrics.Validation(pol.name, b.name, errorType(found.message), strings.ToLower(string(action)),
			found.took)
		switch action {
		case registrationv1.Deny:
			v.refuse(pol, b, found)
		case registrationv1.Warn:
			v.r.Warn(fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s",
				pol.name, b.name, found.message))
		case registrationv1.Audit:
			v.failures = append(v.failures, failureAnnotation{found.message, pol.name, b.name, found.index, b.actions})
		}
	}
}

func (v *validatingRun) refuse(pol *compiledPolicy[checks], b *binding, found failedValidation) {
	if v.refusal != nil {
		return
	}
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", pol.name, found.message)
	if b != nil {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", pol.name, b.name,
			found.message)
	}
	if found.reason == "" {
		found.reason = metav1.StatusReasonInvalid
	}
	e := admission.Forbidden(v.r, "%s", message)
	e.ErrStatus.Reason = found.reason
	e.ErrStatus.Code = codeOf(found.reason)
	e.ErrStatus.Details.Causes = append(e.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	v.refusal = e
}

func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}

// maxFailures limits the failures in the audit event.
const maxFailures = 50

func (v *validatingRun) annotateFailures() {
	if len(v.failures) == 0 || v.r.Annotate == nil {
		return
	}
	if b, err := json.Marshal(v.failures[:min(len(v.failures), maxFailures)]); err == nil {
		v.r.AddAuditAnnotation("validation.policy.admission.k8s.io/validation_failure", string(b))
	}
}

// evaluate evaluates a policy's expressions for one parameter.
func (v *validatingRun) evaluate(
	ctx context.Context, pol *compiledPolicy[checks], in *expression.Input, left *budget,
) []failedValidation {
	failed := func(err error) []failedValidation { return []failedValidation{{message: err.Error(), failed: true}} }
	c := pol.compiled()
	if c.err != nil {
		return failed(c.err)
	}
	if c.conditions != nil {
		allowed := left.allow(expression.Budget)
		ok, rest, err := c.conditions.MatchFor(ctx, in, allowed)
		left.spend(allowed, rest)
		if err != nil {
			return failed(err)
		}
		if !ok {
			return nil
		}
	}
	request := in.Request()
	ns := cel.CreateNamespaceObject(in.Namespace)
	allowed := left.allow(celconfig.RuntimeCELCostBudget)
	results, rest, err := c.validations.ForInput(ctx, in.Attributes, request, in.Bindings, ns, allowed)
	if err != nil {
		left.spend(allowed, rest)
		return failed(err)
	}
	plain := cel.OptionalVariableBindings{VersionedParams: in.Bindings.VersionedParams}
	messages, rest, messageErr := c.messages.ForInput(ctx, in.Attributes, request, plain, ns, rest)
	left.spend(allowed, rest)
	var out []failedValidation
	for i, result := range results {
		rule, ok := result.ExpressionAccessor.(*validation)
		switch {
		case !ok:
		case result.Error != nil:
			out = append(out, failedValidation{
				index:   i,
				message: result.Error.Error(),
				failed:  true,
				took:    result.Elapsed,
			})
		case errors.Is(messageErr, apiservercel.ErrInternal) || errors.Is(messageErr, apiservercel.ErrOutOfBudget):
			out = append(out, failedValidation{
				index:   i,
				message: fmt.Sprintf("failed messageExpression: %s", messageErr),
				failed:  true,
				took:    result.Elapsed,
			})
		case result.EvalResult == celtypes.True:
		default:
			found := failedValidation{index: i, message: rule.messageOf(messages, i), took: result.Elapsed}
			if rule.reason != nil {
				found.reason = *rule.reason
			}
			out = append(out, found)
		}
	}
	return append(out, v.annotate(ctx, c, in, left)...)
}

// messageOf is the message of a failed validation: from its message expression, its message, or the expression itself.
func (r *validation) messageOf(messages []cel.EvaluationResult, i int) string {
	if i < len(messages) && messages[i].Error == nil && messages[i].EvalResult != nil {
		if said, ok := messages[i].EvalResult.Value().(string); ok {
			said = strings.TrimSpace(said)
			if said != "" && len(said) <= celconfig.MaxEvaluatedMessageExpressionSizeBytes &&
				!strings.Contains(said, "\n") {
				return said
			}
		}
	}
	if said := strings.TrimSpace(r.message); said != "" {
		return said
	}
	return "failed expression: " + strings.TrimSpace(r.Text)
}

// maxAnnotationBytes limits an audit annotation.
const maxAnnotationBytes = 10 << 10

// annotate evaluates the policy's audit annotations.
func (v *validatingRun) annotate(
	ctx context.Context, c *checks, in *expression.Input, left *budget,
) []failedValidation {
	allowed := left.allow(celconfig.RuntimeCELCostBudget)
	results, rest, err := c.annotations.ForInput(ctx, in.Attributes, in.Request(), in.Bindings, in.Namespace, allowed)
	left.spend(allowed, rest)
	if err != nil {
		return []failedValidation{{message: err.Error(), failed: true}}
	}
	var out []failedValidation
	for i, result := range results {
		a, ok := result.ExpressionAccessor.(*text)
		if !ok {
			continue
		}
		if result.Error != nil {
			out = append(out, failedValidation{
				index:      i,
				message:    result.Error.Error(),
				failed:     true,
				annotation: true,
				took:       result.Elapsed,
			})
			continue
		}
		if said, ok := result.EvalResult.Value().(string); ok {
			if said = strings.TrimSpace(said); said != "" {
				v.annotation(a.key, said[:min(len(said), maxAnnotationBytes)])
			}
		}
	}
	return out
}
