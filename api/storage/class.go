// SPDX-License-Identifier: Apache-2.0

// Package storage describes the kinds of storage.k8s.io/v1: classes of volumes
// and of their attributes, attachments, and what CSI drivers say of themselves,
// of nodes and of capacity. The registry lists them.
package storage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/podspec"
	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	maxParameters     = 512
	maxParameterBytes = 256 * 1024
)

func names(k, resource, singular string, namespaced bool, short ...string) kind.Names {
	gv := storagev1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		ShortNames: short,
		Namespaced: namespaced,
	}
}

func text(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

// markedName is the name as printed, with a note for the default of its kind.
func markedName(o metav1.Object, notes ...string) string {
	for _, n := range notes {
		if o.GetAnnotations()[n] == "true" {
			return o.GetName() + " (default)"
		}
	}
	return o.GetName()
}

// StorageClass describes storage.k8s.io/v1 StorageClass.
func StorageClass() *kind.Kind {
	type class = storagev1.StorageClass
	return kind.Spec[*class]{
		Names:   names("StorageClass", "storageclasses", "storageclass", false, "sc"),
		New:     func() *class { return &class{} },
		NewList: func() runtime.Object { return &storagev1.StorageClassList{} },
		Default: func(c *class) {
			kind.Fill(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			kind.Fill(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		},
		Validate: validateClass,
		Warnings: func(c, _ *class) []string { return classWarnings(c) },
		ValidateUpdate: func(c, old *class) field.ErrorList {
			l := check.At(nil)
			l.Add(validateClass(c)...)
			l.Fixed("provisioner", c.Provisioner == old.Provisioner)
			l.Fixed("parameters", equality.Semantic.DeepEqual(c.Parameters, old.Parameters))
			l.Fixed("reclaimPolicy", equality.Semantic.DeepEqual(c.ReclaimPolicy, old.ReclaimPolicy))
			l.Fixed("volumeBindingMode", equality.Semantic.DeepEqual(c.VolumeBindingMode, old.VolumeBindingMode))
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, text("Provisioner", "Who makes the volumes."),
			text("ReclaimPolicy", "What becomes of a volume when its claim goes."),
			text("VolumeBindingMode", "When volumes are made and bound."),
			text("AllowVolumeExpansion", "Whether volumes may grow."), kind.AgeColumn,
		},
		Row: func(storageClass *class) []any {
			reclaim := corev1.PersistentVolumeReclaimDelete
			binding := storagev1.VolumeBindingImmediate
			if storageClass.ReclaimPolicy != nil {
				reclaim = *storageClass.ReclaimPolicy
			}
			if storageClass.VolumeBindingMode != nil {
				binding = *storageClass.VolumeBindingMode
			}
			name := markedName(storageClass, "storageclass.kubernetes.io/is-default-class",
				"storageclass.beta.kubernetes.io/is-default-class")
			return []any{name, storageClass.Provisioner, string(reclaim), string(binding), kind.Value(
				storageClass.AllowVolumeExpansion), kind.Age(storageClass.CreationTimestamp)}
		},
	}.Erase()
}

// classWarnings name old labels of nodes.
func classWarnings(c *storagev1.StorageClass) []string {
	var out []string
	for i := range c.AllowedTopologies {
		at := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions")
		for j, e := range c.AllowedTopologies[i].MatchLabelExpressions {
			if text := podspec.OldNodeLabel(e.Key); text != "" {
				out = append(out, fmt.Sprintf("%s: %s", at.Index(j).Child("key"), text))
			}
		}
	}
	return out
}

func validateClass(storageClass *storagev1.StorageClass) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(storageClass)...)
	if storageClass.Provisioner == "" {
		errs.Missing("provisioner")
	} else {
		errs.Qualified("provisioner", strings.ToLower(storageClass.Provisioner))
	}
	validateParameters(errs, storageClass.Parameters, true)
	if storageClass.ReclaimPolicy != nil && *storageClass.ReclaimPolicy != "" {
		check.Pointer(errs, "reclaimPolicy", storageClass.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete,
			corev1.PersistentVolumeReclaimRetain)
	}
	if storageClass.VolumeBindingMode == nil {
		errs.Required("volumeBindingMode", "")
	}
	check.Pointer(errs, "volumeBindingMode", storageClass.VolumeBindingMode, storagev1.VolumeBindingImmediate,
		storagev1.VolumeBindingWaitForFirstConsumer)
	validateTopologies(errs, storageClass.AllowedTopologies)
	return errs.Errors()
}

func validateParameters(errs *check.List, parameters map[string]string, mayBeEmpty bool) {
	const child = "parameters"
	if !mayBeEmpty && len(parameters) == 0 {
		errs.Required(child, "must contain at least one key/value pair")
	}
	if len(parameters) > maxParameters {
		errs.TooLong(child, maxParameters)
		return
	}
	size := 0
	for k, v := range parameters {
		if k == "" {
			errs.Invalid(child, k, "field can not be empty.")
		}
		size += len(k) + len(v)
	}
	if size > maxParameterBytes {
		errs.TooLong(child, maxParameterBytes)
	}
}

// validateTopologies finds an empty term to be a duplicate, as Kubernetes does.
func validateTopologies(errs *check.List, terms []corev1.TopologySelectorTerm) {
	byKey := func(t *corev1.TopologySelectorTerm) map[string]sets.Set[string] {
		m := map[string]sets.Set[string]{}
		for _, r := range t.MatchLabelExpressions {
			m[r.Key] = sets.New(r.Values...)
		}
		return m
	}
	seen := make([]map[string]sets.Set[string], len(terms))
	check.Each(errs, "allowedTopologies", terms, func(_ int, term *corev1.TopologySelectorTerm) {
		defer func() {
			this := byKey(term)
			for _, other := range seen {
				if equality.Semantic.DeepEqual(this, other) {
					errs.Duplicate("matchLabelExpressions", "")
					break
				}
			}
			seen = append(seen, this)
		}()
		var keys check.Set
		check.Each(errs, "matchLabelExpressions", term.MatchLabelExpressions, func(
			_ int, requirement *corev1.TopologySelectorLabelRequirement,
		) {
			if len(requirement.Values) == 0 {
				errs.Required("values", "")
			}
			var seen check.Set
			check.Each(errs, "values", requirement.Values, func(_ int, v *string) {
				if !seen.Add(*v) {
					errs.Duplicate("", *v)
				}
			})
			errs.Qualified("key", requirement.Key)
			if !keys.Add(requirement.Key) {
				errs.Duplicate("key", requirement.Key)
			}
		})
	})
}

// VolumeAttributesClass describes storage.k8s.io/v1 VolumeAttributesClass.
func VolumeAttributesClass() *kind.Kind {
	type class = storagev1.VolumeAttributesClass
	validate := func(c *class) field.ErrorList {
		l := check.At(nil)
		l.Add(meta.Finalizers(c)...)
		if c.DriverName == "" {
			l.Required("driverName", "")
		} else {
			l.Qualified("driverName", strings.ToLower(c.DriverName))
		}
		validateParameters(l, c.Parameters, false)
		return l.Errors()
	}
	return kind.Spec[*class]{
		Names:    names("VolumeAttributesClass", "volumeattributesclasses", "volumeattributesclass", false, "vac"),
		New:      func() *class { return &class{} },
		NewList:  func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
		Validate: validate,
		ValidateUpdate: func(c, old *class) field.ErrorList {
			l := check.At(nil)
			if c.DriverName != old.DriverName {
				l.Forbidden("driverName", "updates to driverName are forbidden.")
			}
			if !equality.Semantic.DeepEqual(c.Parameters, old.Parameters) {
				l.Forbidden("parameters", "updates to parameters are forbidden.")
			}
			l.Add(validate(c)...)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, text("DriverName", "The CSI driver that sets the attributes."), kind.AgeColumn,
		},
		Row: func(c *class) []any {
			return []any{markedName(c, "storageclass.kubernetes.io/is-default-class"), c.DriverName, kind.Age(
				c.CreationTimestamp)}
		},
	}.Erase()
}

// CSIStorageCapacity describes storage.k8s.io/v1 CSIStorageCapacity.
func CSIStorageCapacity() *kind.Kind {
	type capacity = storagev1.CSIStorageCapacity
	validate := func(c *capacity) field.ErrorList {
		l := check.At(nil)
		l.Add(meta.Finalizers(c)...)
		l.Selector("nodeTopology", c.NodeTopology)
		l.Subdomain("storageClassName", c.StorageClassName)
		if q := c.Capacity; q != nil && q.Sign() < 0 {
			l.Invalid("capacity", q.String(), "must be greater than or equal to 0")
		}
		return l.Errors()
	}
	return kind.Spec[*capacity]{
		Names:                 names("CSIStorageCapacity", "csistoragecapacities", "csistoragecapacity", true),
		New:                   func() *capacity { return &capacity{} },
		NewList:               func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		NoUnconditionalUpdate: true,
		Validate:              validate,
		Warnings:              func(c, _ *capacity) []string { return topologyWarnings(c.NodeTopology) },
		ValidateUpdate: func(c, old *capacity) field.ErrorList {
			l := check.At(nil)
			l.Add(meta.Finalizers(c)...)
			l.Immutable("nodeTopology", c.NodeTopology, old.NodeTopology)
			l.Immutable("storageClassName", c.StorageClassName, old.StorageClassName)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {Name: "Created At", Type: "date", Description: "When the object was created."},
		},
		Row: func(c *capacity) []any { return []any{c.Name, c.CreationTimestamp.UTC().Format(time.RFC3339)} },
	}.Erase()
}

// topologyWarnings name old labels of nodes.
func topologyWarnings(s *metav1.LabelSelector) []string {
	if s == nil {
		return nil
	}
	var out []string
	at := field.NewPath("nodeTopology")
	for i, e := range s.MatchExpressions {
		if text := podspec.OldNodeLabel(e.Key); text != "" {
			out = append(out, fmt.Sprintf("%s: %s is %s", at.Child("matchExpressions").Index(i).Child("key"), e.Key,
				text))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if text := podspec.OldNodeLabel(key); text != "" {
			out = append(out, fmt.Sprintf("%s: %s", at.Child("matchLabels").Child(key), text))
		}
	}
	return out
}
