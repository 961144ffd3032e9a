// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"keelson/apiserver/admission/expression"
)

// bindingBudget is what all evaluations of one binding may cost in one request: what they may cost with one parameter,
// for conditions, validations and audit annotations. A binding that selects parameters in the request's namespace has
// as many as a tenant makes.
const bindingBudget = expression.Budget + 2*celconfig.RuntimeCELCostBudget

// bytesPerUnit is the size of objects that are shown to expressions for a unit of cost. It is CEL's own for texts.
const bytesPerUnit = 10

var errBudget = fmt.Errorf("its parameters cost more than %d together; select fewer or smaller ones", bindingBudget)

// budget is the rest of bindingBudget. One goroutine uses it.
type budget struct{ left int64 }

func newBudget() *budget { return &budget{bindingBudget} }

func (b *budget) spent() bool { return b.left <= 0 }

// allow returns what an evaluation may cost.
func (b *budget) allow(most int64) int64 { return max(0, min(most, b.left)) }

// spend takes what an evaluation has cost. left is what it left of what was allowed; below 0 after an error, for which
// all counts.
func (b *budget) spend(allowed, left int64) { b.left -= allowed - max(0, left) }

// show takes the cost of objects that are converted for an evaluation.
func (b *budget) show(objects ...runtime.Object) {
	for _, obj := range objects {
		switch obj := obj.(type) {
		case *unstructured.Unstructured:
			b.left -= bytesOf(obj.Object) / bytesPerUnit
		case interface{ Size() int }:
			b.left -= int64(obj.Size()) / bytesPerUnit
		}
	}
}

// bytesOf is about the size of a value in JSON.
func bytesOf(value any) int64 {
	size := int64(8)
	switch value := value.(type) {
	case string:
		size += int64(len(value))
	case []any:
		for _, member := range value {
			size += bytesOf(member)
		}
	case map[string]any:
		for name, member := range value {
			size += int64(len(name)) + bytesOf(member)
		}
	}
	return size
}

type budgetKey struct{}

// with returns a context whose mutations take their cost from b.
func (b *budget) with(ctx context.Context) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// counted is a mutation that takes its cost from the context's budget.
type counted struct{ cel.MutatingEvaluator }

// ForInput evaluates the mutation.
func (c counted) ForInput(
	ctx context.Context, attributes *upstream.VersionedAttributes, request *admissionv1.AdmissionRequest,
	bindings cel.OptionalVariableBindings, namespace *corev1.Namespace, most int64,
) (cel.EvaluationResult, int64, error) {
	b, ok := ctx.Value(budgetKey{}).(*budget)
	if !ok {
		return cel.EvaluationResult{}, -1, fmt.Errorf("a mutation without a budget")
	}
	allowed := b.allow(most)
	result, left, err := c.MutatingEvaluator.ForInput(ctx, attributes, request, bindings, namespace, allowed)
	b.spend(allowed, left)
	return result, left, err
}
