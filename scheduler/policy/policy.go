// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"sync/atomic"

	celtypes "github.com/google/cel-go/common/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/scheduler/framework"
)

// Policy is a compiled Spec.
type Policy struct {
	Name string
	// From is FromObject or FromFile.
	From string
	// OnError, if set, is called once, with the first evaluation error. It must not block.
	OnError func(message string)

	schedulers       []string
	namespaces, pods labels.Selector // nil: all
	match            *expression
	ignore           bool
	filters          []*filter
	scores           []*score
	reported         atomic.Bool
}

type filter struct {
	rule
	message     string
	explanation *expression // messageExpression
	refusal     *framework.Status
}

type score struct {
	rule
	weight int64
	shown  string // the expression, shortened and in one line
}

// Compile compiles a Spec. Each error has its field, and the line:column of an expression.
func Compile(name string, spec *Spec, at *field.Path) (*Policy, field.ErrorList) {
	policy := &Policy{
		Name:       name,
		From:       FromObject,
		schedulers: slices.Clone(spec.SchedulerNames),
		ignore:     spec.FailurePolicy == Ignore,
	}
	var errs field.ErrorList
	policy.namespaces = selector(spec.NamespaceSelector, at.Child("namespaceSelector"), &errs)
	policy.pods = selector(spec.PodSelector, at.Child("podSelector"), &errs)
	if spec.FailurePolicy != "" && spec.FailurePolicy != Fail && spec.FailurePolicy != Ignore {
		errs = append(errs, field.NotSupported(at.Child("failurePolicy"), spec.FailurePolicy, []string{Fail, Ignore}))
	}
	c := compiler{errs: &errs}
	if spec.Match != "" {
		policy.match = c.compile(spec.Match, at.Child("match"), "match", podOnly, "a bool", celtypes.BoolKind)
	}
	for list, n := range map[string]int{"filters": len(spec.Filters), "scores": len(spec.Scores)} {
		if n > maxRules {
			errs = invalid.Append(errs, field.TooMany(at.Child(list), n, maxRules))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	if len(spec.Filters)+len(spec.Scores) == 0 {
		return nil, append(errs, field.Required(at.Child("filters"), "a policy has filters or scores"))
	}
	for i := range spec.Filters {
		policy.filters = append(policy.filters, policy.filter(i, &spec.Filters[i], at.Child("filters").Index(i), c))
	}
	for i := range spec.Scores {
		policy.scores = append(policy.scores, policy.score(i, &spec.Scores[i], at.Child("scores").Index(i), c))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return policy, nil
}

// CompileAll compiles the policies of a file.
func (a *Args) CompileAll(at *field.Path) (out []*Policy, errs field.ErrorList) {
	at = at.Child("policies")
	if len(a.Policies) > MaxPolicies {
		return nil, field.ErrorList{field.TooMany(at, len(a.Policies), MaxPolicies)}
	}
	names := map[string]bool{}
	for i := range a.Policies {
		named := &a.Policies[i]
		at := at.Index(i)
		switch {
		case named.Name == "":
			errs = invalid.Append(errs, field.Required(at.Child("name"), ""))
		case len(named.Name) > maxMessage || oneLine(named.Name) != named.Name:
			errs = invalid.Append(errs, field.Invalid(at.Child("name"), named.Name, "must be a short name in one line"))
		case names[named.Name]:
			errs = invalid.Append(errs, field.Duplicate(at.Child("name"), named.Name))
		}
		names[named.Name] = true
		p, wrong := Compile(named.Name, &named.Spec, at)
		errs = invalid.Append(errs, wrong...)
		if p != nil {
			p.From = FromFile
		}
		out = append(out, p)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return out, nil
}

func selector(s *metav1.LabelSelector, at *field.Path, errs *field.ErrorList) labels.Selector {
	if s == nil {
		return nil
	}
	if wrong := metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, at); len(
		wrong) > 0 {
		*errs = append(*errs, wrong...)
		return nil
	}
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		*errs = append(*errs, field.Invalid(at, "", err.Error()))
	}
	return out
}

type compiler struct{ errs *field.ErrorList }

func (c compiler) compile(
	source string, at *field.Path, short string, in scope, of string, wanted ...celtypes.Kind,
) *expression {
	if source == "" {
		*c.errs = append(*c.errs, field.Required(at, ""))
		return nil
	}
	e, err := compile(source, short, in, of, wanted...)
	if err != nil {
		*c.errs = append(*c.errs, field.Invalid(at, clip(source), err.Error()))
		return nil
	}
	return e
}

func (p *Policy) filter(i int, in *Filter, at *field.Path, c compiler) *filter {
	short := fmt.Sprintf("filters[%d]", i)
	f := &filter{message: oneLine(in.Message)}
	f.policy = p
	f.expression = c.compile(in.Expression, at.Child("expression"), short, podAndNode, "a bool", celtypes.BoolKind)
	if len(in.Message) > maxMessage {
		*c.errs = append(*c.errs, field.TooLong(at.Child("message"), "", maxMessage))
	}
	if in.MessageExpression != "" {
		f.explanation = c.compile(in.MessageExpression, at.Child("messageExpression"), short+".messageExpression",
			podAndNode, "a string", celtypes.StringKind)
	}
	if f.expression == nil {
		return f
	}
	if f.message == "" {
		f.message = "does not satisfy " + clip(oneLine(in.Expression))
	}
	f.refusal = f.refuse(f.message)
	return f
}

func (p *Policy) score(i int, in *Score, at *field.Path, c compiler) *score {
	s := &score{weight: 1, shown: clip(oneLine(in.Expression))}
	s.policy = p
	s.expression = c.compile(in.Expression, at.Child("expression"), fmt.Sprintf("scores[%d]", i), podAndNode,
		"a number or a bool",
		celtypes.IntKind, celtypes.UintKind, celtypes.DoubleKind, celtypes.BoolKind)
	if in.Weight != nil {
		if s.weight = int64(*in.Weight); s.weight < 1 || s.weight > maxWeight {
			*c.errs = append(*c.errs,
				field.Invalid(at.Child("weight"), s.weight, fmt.Sprintf("must be from 1 to %d", maxWeight)))
		}
	}
	return s
}

// selects reports whether the policy's selectors match a pod. known is false if the labels of its namespace are not
// known: then namespaceSelector matches.
func (p *Policy) selects(scheduler string, pod podInfo, namespace labels.Set, known bool) bool {
	return (len(p.schedulers) == 0 || slices.Contains(p.schedulers, scheduler)) &&
		(p.pods == nil || p.pods.Matches(labels.Set(pod.Pod.Labels))) &&
		(p.namespaces == nil || !known || p.namespaces.Matches(namespace))
}

// appliesTo reports whether the policy applies to a pod. The error is that of its match expression.
func (p *Policy) appliesTo(scheduler string, v *variables, namespace labels.Set, b *budget) (bool, error) {
	if !p.selects(scheduler, v.pod, namespace, true) {
		return false, nil
	}
	if p.match == nil {
		return true, nil
	}
	out, err := p.match.eval(v, b)
	if err != nil {
		p.reportError("match", err, v)
		return false, err
	}
	return out == celtypes.True, nil
}

// reportError calls OnError with the first error.
func (p *Policy) reportError(rule string, err error, v *variables) {
	if p.reported.Load() || !p.reported.CompareAndSwap(false, true) || p.OnError == nil {
		return
	}
	where := "pod " + v.pod.Key
	if v.node != nil {
		where += ", node " + v.node.Name
	}
	p.OnError(fmt.Sprintf("spec.%s: %v (%s)", rule, err, where))
}
