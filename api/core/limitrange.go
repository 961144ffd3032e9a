// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
	"keelson/api/resources"
)

// LimitRange describes v1 LimitRange.
func LimitRange() *kind.Kind {
	return kind.Spec[*corev1.LimitRange]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "LimitRange",
			Resource:   "limitranges",
			Singular:   "limitrange",
			ShortNames: []string{"limits"},
			Namespaced: true,
		},
		New:     func() *corev1.LimitRange { return &corev1.LimitRange{} },
		NewList: func() runtime.Object { return &corev1.LimitRangeList{} },
		Default: defaultLimitRange,
		PrepareCreate: func(l *corev1.LimitRange) { // the only kind that needs no name
			if l.Name == "" {
				l.Name = string(uuid.NewUUID())
			}
		},
		Validate:       validateLimitRange,
		ValidateUpdate: func(l, _ *corev1.LimitRange) field.ErrorList { return validateLimitRange(l) },
		CreateOnUpdate: true,
		Columns:        []metav1.TableColumnDefinition{kind.NameColumn, createdAtColumn},
		Row:            func(l *corev1.LimitRange) []any { return []any{l.Name, createdAt(l)} },
	}.Erase()
}

var createdAtColumn = metav1.TableColumnDefinition{
	Name:        "Created At",
	Type:        "date",
	Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
}

func createdAt(o metav1.Object) string {
	return o.GetCreationTimestamp().UTC().Format("2006-01-02T15:04:05Z")
}

// defaultLimitRange: a limit defaults to max; a default request defaults to the default limit, then to min.
func defaultLimitRange(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		fillMissing(&item.Default, item.Max)
		fillMissing(&item.DefaultRequest, item.Default)
		fillMissing(&item.DefaultRequest, item.Min)
	}
}

func fillMissing(into *corev1.ResourceList, from corev1.ResourceList) {
	for k, v := range from {
		if _, ok := (*into)[k]; ok {
			continue
		}
		if *into == nil {
			*into = corev1.ResourceList{}
		}
		(*into)[k] = v.DeepCopy()
	}
}

func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
	errs := meta.Finalizers(l)
	seen := sets.New[corev1.LimitType]()
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		path := field.NewPath("spec", "limits").Index(i)
		errs = invalid.Append(errs, validateLimitType(item.Type, path.Child("type"))...)
		if seen.Has(item.Type) {
			errs = invalid.Append(errs, field.Duplicate(path.Child("type"), item.Type))
		}
		seen.Insert(item.Type)
		errs = invalid.Append(errs, validateLimitItem(item, path)...)
	}
	return errs
}

func validateLimitType(t corev1.LimitType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsQualifiedName(string(t)) {
		errs = invalid.Append(errs, field.Invalid(path, t, msg))
	}
	known := []corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim}
	if len(errs) == 0 && !strings.Contains(string(t), "/") && !slices.Contains(known, t) {
		errs = append(errs, field.Invalid(path, t, "must be a standard limit type or fully qualified"))
	}
	return errs
}

// limitNames checks the names of the resources in one of the lists of an item.
func limitNames(item *corev1.LimitRangeItem, list corev1.ResourceList, path *field.Path) field.ErrorList {
	l := check.At(path)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		l.Key(string(name))
		if item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
			podspec.ContainerResourceName(l, name)
		} else {
			podspec.ResourceName(l, name)
		}
		l.Out()
	}
	return l.Errors()
}

func validateLimitItem(item *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	keys := sets.New[corev1.ResourceName]()
	for _, list := range []corev1.ResourceList{
		item.Max, item.Min, item.Default, item.DefaultRequest, item.MaxLimitRequestRatio,
	} {
		keys = keys.Union(sets.KeySet(list))
	}
	errs = append(errs, limitNames(item, item.Max, path.Child("max"))...)
	errs = append(errs, limitNames(item, item.Min, path.Child("min"))...)
	if item.Type == corev1.LimitTypePod {
		if len(item.Default) > 0 {
			errs = append(errs, field.Forbidden(path.Child("default"), "may not be specified when `type` is 'Pod'"))
		}
		if len(item.DefaultRequest) > 0 {
			errs = append(errs,
				field.Forbidden(path.Child("defaultRequest"), "may not be specified when `type` is 'Pod'"))
		}
	} else {
		errs = append(errs, limitNames(item, item.Default, path.Child("default"))...)
		errs = append(errs, limitNames(item, item.DefaultRequest, path.Child("defaultRequest"))...)
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, hasMin := item.Min[corev1.ResourceStorage]
		_, hasMax := item.Max[corev1.ResourceStorage]
		if !hasMin && !hasMax {
			errs = append(errs, field.Required(path.Child("limits"),
				"either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	errs = append(errs, limitNames(item, item.MaxLimitRequestRatio, path.Child("maxLimitRequestRatio"))...)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		errs = invalid.Append(errs, validateLimitKey(item, k, path)...)
	}
	return errs
}

// validateLimitKey holds min <= defaultRequest <= default <= max for one resource.
func validateLimitKey(item *corev1.LimitRangeItem, resourceName corev1.ResourceName, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	order := func(name string, low, high corev1.ResourceList, lowWord, highWord string, at corev1.ResourceList) {
		a, okA := low[resourceName]
		b, okB := high[resourceName]
		if okA && okB && a.Cmp(b) > 0 {
			v := at[resourceName]
			errs = append(errs, field.Invalid(path.Child(name).Key(string(resourceName)), v.String(),
				fmt.Sprintf("%s value %s is greater than %s value %s", lowWord, a.String(), highWord, b.String())))
		}
	}
	order("min", item.Min, item.Max, "min", "max", item.Min)
	order("defaultRequest", item.Min, item.DefaultRequest, "min", "default request", item.DefaultRequest)
	order("defaultRequest", item.DefaultRequest, item.Max, "default request", "max", item.DefaultRequest)
	order("defaultRequest", item.DefaultRequest, item.Default, "default request", "default limit", item.DefaultRequest)
	order("default", item.Min, item.Default, "min", "default", item.Min)
	order("default", item.Default, item.Max, "default", "max", item.Max)
	if ratio, ok := item.MaxLimitRequestRatio[resourceName]; ok {
		at := path.Child("maxLimitRequestRatio").Key(string(resourceName))
		one := resource.MustParse("1")
		if ratio.Cmp(one) < 0 {
			errs = append(errs,
				field.Invalid(at, ratio.String(), fmt.Sprintf("ratio %s is less than 1", ratio.String())))
		}
		low, okLow := item.Min[resourceName]
		high, okHigh := item.Max[resourceName]
		if okLow && okHigh && low.AsApproximateFloat64() > 0 {
			if limit := high.AsApproximateFloat64() / low.AsApproximateFloat64(); ratio.AsApproximateFloat64() > limit {
				errs = append(errs, field.Invalid(at, ratio.String(),
					fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), limit)))
			}
		}
	}
	if def, ok := item.Default[resourceName]; ok && !resources.MayOvercommit(resourceName) {
		if req, has := item.DefaultRequest[resourceName]; has && def.Cmp(req) != 0 {
			errs = append(errs, field.Invalid(path.Child("defaultRequest").Key(string(resourceName)), req.String(),
				fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", def.String(), req.String(),
					resourceName)))
		}
	}
	return errs
}
