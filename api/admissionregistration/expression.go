// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"keelson/api/internal/check"
	"keelson/lib/celenv"
)

const maxConditions = 64

// expressions compiles the expressions of one object. An expression that is stored already may go on using what has
// since been taken from new ones.
type expressions struct {
	params bool     // the object has parameters
	stored []string // expressions that were there before
	// composed knows the object's variables; nil where there are none.
	composed *plugincel.CompositedCompiler
}

// plain compiles expressions that use no variables. It is made when it is first needed: that takes a while.
var plain = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(celenv.Base())
})

// source is an expression and what it may evaluate to.
type source struct {
	name, text string
	types      []*cel.Type
}

func (s source) GetName() string          { return s.name }
func (s source) GetExpression() string    { return s.text }
func (s source) ReturnTypes() []*cel.Type { return s.types }

func (x *expressions) environment(text string) environment.Type {
	if slices.Contains(x.stored, text) {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

// check compiles text, which stands at child, unless it is blank; shown is the value to print in an error.
func (x *expressions) check(
	errs *check.List, child, text, shown string, may plugincel.OptionalVariableDeclarations, types ...*cel.Type,
) {
	if strings.TrimSpace(text) == "" {
		return
	}
	may.HasParams = x.params
	var c plugincel.Compiler = x.composed
	if x.composed == nil {
		c = plain()
	}
	result := c.CompileCELExpression(source{text: text, types: types}, may, x.environment(text))
	report(errs, child, shown, result.Error)
}

func report(l *check.List, child, text string, err *apiservercel.Error) {
	switch {
	case err == nil:
	case err.Type == apiservercel.ErrorTypeRequired:
		l.Required(child, err.Detail)
	case err.Type == apiservercel.ErrorTypeInvalid:
		l.Invalid(child, text, err.Detail)
	default:
		l.Add(field.InternalError(l.Path(child), err))
	}
}

// everything is what most expressions may use.
var everything = plugincel.OptionalVariableDeclarations{HasAuthorizer: true}

func validateConditions(errs *check.List, conditions []admissionv1.MatchCondition, x expressions) {
	if len(conditions) > maxConditions {
		errs.Add(field.TooMany(errs.Path("matchConditions"), len(conditions), maxConditions))
	}
	x.composed = nil // conditions decide before variables exist
	var seen check.Set
	check.Each(errs, "matchConditions", conditions, func(_ int, matchCondition *admissionv1.MatchCondition) {
		text := strings.TrimSpace(matchCondition.Expression)
		check.Needs(errs, "expression", text)
		x.check(errs, "expression", text, text, everything, cel.BoolType)
		if matchCondition.Name == "" {
			errs.Required("name", "")
			return
		}
		errs.Qualified("name", matchCondition.Name)
		if !seen.Add(matchCondition.Name) {
			errs.Duplicate("name", matchCondition.Name)
		}
	})
}

var (
	identifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	// reserved are the words that the expression language keeps for itself.
	reserved = []string{
		"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import",
		"let",
		"loop", "package", "namespace", "return", "var", "void", "while",
	}
)

// validateVariables checks the variables and makes them known to the expressions that x checks next.
func validateVariables(
	errs *check.List, variables []admissionv1.Variable, x *expressions, may plugincel.OptionalVariableDeclarations,
) {
	if len(variables) == 0 {
		return
	}
	var err error
	if x.composed, err = plugincel.NewCompositedCompiler(celenv.Base()); err != nil {
		errs.Add(field.InternalError(errs.Path("variables"), fmt.Errorf("make an environment: %w", err)))
		return
	}
	may.HasParams = x.params
	check.Each(errs, "variables", variables, func(_ int, variable *admissionv1.Variable) {
		switch {
		case strings.TrimSpace(variable.Name) == "":
			errs.Required("name", "name is not specified")
		case !identifier.MatchString(variable.Name) || slices.Contains(reserved, variable.Name):
			errs.Invalid("name", variable.Name, "must be a valid CEL identifier")
		}
		if strings.TrimSpace(variable.Expression) == "" {
			errs.Required("expression", "expression is not specified")
			return
		}
		s := source{name: variable.Name, text: variable.Expression, types: []*cel.Type{cel.AnyType, cel.DynType}}
		report(errs, "expression", variable.Expression,
			x.composed.CompileAndStoreVariable(s, may, x.environment(variable.Expression)).Error)
	})
}
