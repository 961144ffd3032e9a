// SPDX-License-Identifier: Apache-2.0

package policystatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	celgo "github.com/google/cel-go/cel"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	celschema "k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/lib/celenv"
)

// Schema is an OpenAPI schema without references.
type Schema = spec.Schema

// Types provides the schemas of kinds.
type Types interface {
	// Kinds are the kinds of a resource; none if it is not served.
	Kinds(gvr schema.GroupVersionResource) ([]schema.GroupVersionKind, error)
	// Schema is a kind's schema; nil if there is none.
	Schema(gvk schema.GroupVersionKind) (*Schema, error)
}

// maxKinds limits the kinds against which expressions are checked.
const maxKinds = 10

// Check type-checks a policy's expressions against the kinds in its rules. Rules with wildcards and kinds without a
// schema are not checked. An error means that the types could not be read.
func Check(policy *registrationv1.ValidatingAdmissionPolicy, types Types) ([]registrationv1.ExpressionWarning, error) {
	kinds, err := kindsOf(policy, types)
	if err != nil {
		return nil, err
	}
	var params *apiservercel.DeclType
	if policy.Spec.ParamKind != nil {
		gvk := schema.FromAPIVersionAndKind(policy.Spec.ParamKind.APIVersion, policy.Spec.ParamKind.Kind)
		if params, err = declTypeOf(types, gvk, "Params"); err != nil {
			return nil, err
		}
	}
	var checkers []*checker
	for _, gvk := range kinds {
		object, err := declTypeOf(types, gvk, "Object")
		if err != nil {
			return nil, err
		}
		if object == nil {
			continue
		}
		c, err := newChecker(gvk, object, params, policy)
		if err != nil {
			return nil, err
		}
		checkers = append(checkers, c)
	}
	var out []registrationv1.ExpressionWarning
	check := func(at *field.Path, text string) {
		if text == "" {
			return
		}
		var said []string
		for _, c := range checkers {
			if s := c.check(text); s != "" {
				said = append(said, s)
			}
		}
		if len(said) > 0 {
			out = append(out, registrationv1.ExpressionWarning{
				FieldRef: at.String(),
				Warning:  strings.Join(said, "\n"),
			})
		}
	}
	at := field.NewPath("spec", "validations")
	for i, v := range policy.Spec.Validations {
		check(at.Index(i).Child("expression"), v.Expression)
		check(at.Index(i).Child("messageExpression"), v.MessageExpression)
	}
	return out, nil
}

// kindsOf are the kinds in a policy's rules, sorted.
func kindsOf(p *registrationv1.ValidatingAdmissionPolicy, types Types) ([]schema.GroupVersionKind, error) {
	if p.Spec.MatchConstraints == nil {
		return nil, nil
	}
	var out []schema.GroupVersionKind
	for i := range p.Spec.MatchConstraints.ResourceRules {
		found := 0
		for _, gvr := range resourcesOf(&p.Spec.MatchConstraints.ResourceRules[i].Rule) {
			kinds, err := types.Kinds(gvr)
			if err != nil {
				return nil, err
			}
			for _, k := range kinds {
				if found++; !slices.Contains(out, k) {
					out = append(out, k)
				}
			}
			if found >= maxKinds {
				break
			}
		}
		if found >= maxKinds {
			break
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupVersionKind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
	})
	return out, nil
}

// resourcesOf are the resources that a rule names completely, in a fixed order; none with wildcards in groups or
// versions.
func resourcesOf(r *registrationv1.Rule) []schema.GroupVersionResource {
	starred := func(s string) bool { return strings.Contains(s, "*") }
	if slices.ContainsFunc(r.APIGroups, starred) || slices.ContainsFunc(r.APIVersions, starred) {
		return nil
	}
	var out []schema.GroupVersionResource
	for _, group := range slices.Sorted(slices.Values(r.APIGroups)) {
		for _, v := range slices.Sorted(slices.Values(r.APIVersions)) {
			for _, resource := range slices.Sorted(slices.Values(r.Resources)) {
				if !strings.ContainsAny(resource, "*/") {
					out = append(out, schema.GroupVersionResource{Group: group, Version: v, Resource: resource})
				}
			}
		}
	}
	return out
}

// declTypeOf is a kind as a CEL type; nil if it has no schema. role distinguishes two types of the same kind.
func declTypeOf(types Types, gvk schema.GroupVersionKind, role string) (*apiservercel.DeclType, error) {
	s, err := types.Schema(gvk)
	if err != nil || s == nil {
		return nil, err
	}
	t := celschema.SchemaDeclType(&openapi.Schema{Schema: s}, true)
	if t == nil {
		return nil, nil // a schema without types
	}
	return t.MaybeAssignTypeName(role + "." + gvk.Kind), nil
}

// checker checks expressions against one kind.
type checker struct {
	gvk      schema.GroupVersionKind
	compiler *cel.CompositedCompiler
}

func newChecker(
	gvk schema.GroupVersionKind, object, params *apiservercel.DeclType,
	policy *registrationv1.ValidatingAdmissionPolicy,
) (*checker, error) {
	namespace := cel.BuildNamespaceType()
	request := cel.BuildRequestType()
	types := []*apiservercel.DeclType{namespace, request, object}
	vars := []celgo.EnvOption{
		celgo.Variable(cel.NamespaceVarName, namespace.CelType()),
		celgo.Variable(cel.RequestVarName, request.CelType()),
		celgo.Variable(cel.ObjectVarName, object.CelType()), celgo.Variable(cel.OldObjectVarName, object.CelType()),
		celgo.Variable(cel.AuthorizerVarName, library.AuthorizerType),
		celgo.Variable(cel.RequestResourceAuthorizerVarName, library.ResourceCheckType),
	}
	switch {
	case params != nil:
		types = append(types, params)
		vars = append(vars, celgo.Variable(cel.ParamsVarName, params.CelType()))
	case policy.Spec.ParamKind != nil:
		vars = append(vars, celgo.Variable(cel.ParamsVarName, celgo.DynType))
	}
	env, err := celenv.Base().Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions:        vars,
		DeclTypes:         types,
	})
	if err != nil {
		return nil, fmt.Errorf("environment of %s: %w", gvk, err)
	}
	compiler, err := cel.NewCompositedCompilerForTypeChecking(env)
	if err != nil {
		return nil, fmt.Errorf("compiler for %s: %w", gvk, err)
	}
	compiler.Compiler = typeCheckCompiler{compiler}
	for _, v := range policy.Spec.Variables {
		compiler.CompileAndStoreVariable(&expression{v.Name, v.Expression}, cel.OptionalVariableDeclarations{},
			environment.StoredExpressions)
	}
	return &checker{gvk, compiler}, nil
}

// check returns the type error of an expression; "": none.
func (c *checker) check(text string) string {
	err := c.compiler.CompileCELExpression(&expression{text: text}, cel.OptionalVariableDeclarations{},
		environment.StoredExpressions).Error
	switch {
	case err == nil:
		return ""
	case err.Type == apiservercel.ErrorTypeInvalid:
		return fmt.Sprintf("%v: %s\n", c.gvk, err)
	}
	return fmt.Sprintf("%v: type checking error: %v\n", c.gvk, err)
}

// expression is an expression or a variable of a policy.
type expression struct{ name, text string }

func (e *expression) GetName() string            { return e.name }
func (e *expression) GetExpression() string      { return e.text }
func (e *expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.AnyType} }

// typeCheckCompiler is a compiler that only type-checks.
type typeCheckCompiler struct{ env *cel.CompositedCompiler }

// CompileCELExpression type-checks an expression.
func (t typeCheckCompiler) CompileCELExpression(
	e cel.ExpressionAccessor, _ cel.OptionalVariableDeclarations, mode environment.Type,
) cel.CompilationResult {
	failed := func(kind apiservercel.ErrorType, detail string) cel.CompilationResult {
		return cel.CompilationResult{Error: &apiservercel.Error{Type: kind, Detail: detail}, ExpressionAccessor: e}
	}
	env, err := t.env.Env(mode)
	if err != nil {
		return failed(apiservercel.ErrorTypeInternal, fmt.Sprintf("fail to build env: %v", err))
	}
	ast, issues := env.Compile(e.GetExpression())
	if issues != nil {
		return failed(apiservercel.ErrorTypeInvalid, issues.String())
	}
	return cel.CompilationResult{OutputType: ast.OutputType()}
}
