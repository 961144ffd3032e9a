// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	celcommon "k8s.io/apiserver/pkg/cel/common"

	"keelson/api/kind"
)

// validate validates a new object.
func (v *version) validate(obj kind.Object) field.ErrorList {
	compiled, err := v.validators()
	if err != nil {
		return v.internalError(err)
	}
	c := content(obj)
	errs := v.validateType(obj)
	if len(errs) == 0 {
		errs = append(errs, schemavalidation.ValidateCustomResource(nil, c, compiled.object)...)
		errs = append(errs, v.validateScale(c, true)...)
	}
	errs = append(errs, objectmeta.Validate(context.Background(), nil, c, compiled.structure, false)...)
	return append(errs, listtype.ValidateListSetsAndMaps(nil, compiled.structure, c)...)
}

// validateUpdate validates a changed object. Unchanged errors are accepted (validation ratcheting).
func (v *version) validateUpdate(obj, old kind.Object) field.ErrorList {
	compiled, err := v.validators()
	if err != nil {
		return v.internalError(err)
	}
	now := content(obj)
	before := content(old)
	pair := compiled.correlate(now, before)
	errs := v.validateType(obj)
	if len(errs) == 0 {
		errs = append(errs, schemavalidation.ValidateCustomResourceUpdate(nil, now, before, compiled.object,
			schemavalidation.WithRatcheting(pair))...)
		errs = append(errs, v.validateScale(now, true)...)
	}
	errs = append(errs, objectmeta.Validate(context.Background(), nil, now, compiled.structure, false)...)
	return append(errs, compiled.validateLists(now, before)...)
}

// validateStatus validates a new status.
func (v *version) validateStatus(obj, old kind.Object) field.ErrorList {
	compiled, err := v.validators()
	if err != nil {
		return v.internalError(err)
	}
	now := content(obj)
	before := content(old)
	pair := compiled.correlate(now, before)
	errs := v.validateType(obj)
	if len(errs) == 0 {
		if status, ok := now["status"]; ok {
			var opts []schemavalidation.ValidationOption
			if compiled.structure != nil {
				opts = append(opts, schemavalidation.WithRatcheting(pair.Key("status")))
			}
			errs = append(errs, schemavalidation.ValidateCustomResourceUpdate(field.NewPath("status"), status,
				before["status"], compiled.status, opts...)...)
		}
		errs = append(errs, v.validateScale(now, false)...)
	}
	return append(errs, compiled.validateLists(now, before)...)
}

func (c *validators) correlate(now, before map[string]any) *celcommon.CorrelatedObject {
	return celcommon.NewCorrelatedObject(now, before, &model.Structural{Structural: c.structure})
}

// validateLists finds duplicates in sets and maps, unless they existed before.
func (c *validators) validateLists(now, before map[string]any) field.ErrorList {
	errs := listtype.ValidateListSetsAndMaps(nil, c.structure, now)
	if len(errs) > 0 && len(listtype.ValidateListSetsAndMaps(nil, c.structure, before)) > 0 {
		return nil
	}
	return errs
}

// validateRules evaluates the schema's CEL rules, unless found says that the object does not match its schema.
func (v *version) validateRules(
	ctx context.Context, _ string, obj, oldObj kind.Object, found field.ErrorList,
) field.ErrorList {
	compiled, err := v.validators()
	if err != nil || compiled.rules == nil {
		return nil // found has the error
	}
	skipsRules := func(e *field.Error) bool {
		switch e.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
			field.ErrorTypeTypeInvalid:
			return true
		default:
			return false
		}
	}
	if slices.ContainsFunc(found, skipsRules) {
		return field.ErrorList{field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to "+
				"complete validation")}
	}
	now := content(obj)
	var old any
	var opts []cel.Option
	if oldObj != nil {
		before := content(oldObj)
		old = before
		opts = []cel.Option{cel.WithRatcheting(compiled.correlate(now, before))}
	}
	violations, _ := compiled.rules.Validate(ctx, nil, compiled.structure, now, old, celconfig.RuntimeCELCostBudget,
		opts...)
	return violations
}

// rulesAndCheck evaluates the schema's CEL rules, then runs check on an object without errors.
func (v *version) rulesAndCheck(
	check Check,
) func(context.Context, string, kind.Object, kind.Object, field.ErrorList) field.ErrorList {
	return func(ctx context.Context, sub string, obj, old kind.Object, found field.ErrorList) field.ErrorList {
		violations := v.validateRules(ctx, sub, obj, old, found)
		current, ok := obj.(*unstructured.Unstructured)
		if sub != "" || !ok || len(found)+len(violations) > 0 {
			return violations
		}
		before, _ := old.(*unstructured.Unstructured)
		return check(current, before)
	}
}

func (v *version) validateType(obj kind.Object) field.ErrorList {
	var errs field.ErrorList
	got := obj.GetObjectKind().GroupVersionKind()
	if got.Kind != v.gvk.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), got.Kind, "must be "+v.gvk.Kind))
	}
	if want := v.gvk.GroupVersion(); got.GroupVersion() != want {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), got.GroupVersion().String(),
			"must be "+want.String()))
	}
	return errs
}

// validateScale validates the fields that the scale subresource uses.
func (v *version) validateScale(c map[string]any, spec bool) field.ErrorList {
	if v.scale == nil {
		return nil
	}
	var errs field.ErrorList
	count := func(path string) {
		n, _, err := unstructured.NestedInt64(c, splitPath(path)...)
		switch at := field.NewPath(path); {
		case err != nil:
			errs = append(errs, field.Invalid(at, n, err.Error()))
		case n < 0:
			errs = append(errs, field.Invalid(at, n, "should be a non-negative integer"))
		case n > math.MaxInt32:
			errs = append(errs, field.Invalid(at, n, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)))
		}
	}
	if spec {
		count(v.scale.SpecReplicasPath)
	}
	count(v.scale.StatusReplicasPath)
	if p := v.scale.LabelSelectorPath; p != nil {
		if s, _, err := unstructured.NestedString(c, splitPath(*p)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*p), s, err.Error()))
		}
	}
	return errs
}

func errNoReplicasField(path string) error {
	return apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", path))
}

// standardFinalizers need no domain.
var standardFinalizers = []string{
	metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents, string(corev1.FinalizerKubernetes),
}

// warnings returns warnings about new finalizers.
func warnings(obj, old kind.Object) []string {
	var out, before []string
	if old != nil {
		before = old.GetFinalizers()
	}
	const at = "metadata.finalizers"
	for _, f := range slices.Compact(slices.Sorted(slices.Values(obj.GetFinalizers()))) {
		if slices.Contains(before, f) {
			continue
		}
		for _, msg := range validation.IsQualifiedName(f) {
			out = append(out, fmt.Sprintf("%s: %q: %s", at, f, msg))
		}
		if strings.Contains(f, "/") || slices.Contains(standardFinalizers, f) {
			continue
		}
		advice := "prefer a domain-qualified finalizer name"
		if strings.Contains(f, ".") {
			advice += " including a path (/)"
		}
		out = append(out, fmt.Sprintf("%s: %q: %s to avoid accidental conflicts with other finalizer writers", at, f,
			advice))
	}
	return out
}
