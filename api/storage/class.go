// SPDX-License-Identifier: Apache-2.0

// Package storage describes the kinds of storage.k8s.io/v1: classes of volumes
// and of their attributes, attachments, and what CSI drivers say of themselves,
// of nodes and of capacity. The registry lists them.
package storage

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
	return kind.Names{Group: gv.Group, Version: gv.Version, Kind: k, Resource: resource, Singular: singular, ShortNames: short, Namespaced: namespaced}
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
		ValidateUpdate: func(c, old *class) field.ErrorList {
			l := check.At(nil)
			l.Add(validateClass(c)...)
			fixed := func(child string, same bool) {
				if !same {
					l.Forbidden(child, "updates to "+child+" are forbidden.")
				}
			}
			fixed("parameters", equality.Semantic.DeepEqual(c.Parameters, old.Parameters))
			fixed("provisioner", c.Provisioner == old.Provisioner)
			fixed("reclaimPolicy", equality.Semantic.DeepEqual(c.ReclaimPolicy, old.ReclaimPolicy))
			l.Immutable("volumeBindingMode", c.VolumeBindingMode, old.VolumeBindingMode)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, text("Provisioner", "Who makes the volumes."), text("ReclaimPolicy", "What becomes of a volume when its claim goes."),
			text("VolumeBindingMode", "When volumes are made and bound."), text("AllowVolumeExpansion", "Whether volumes may grow."), kind.AgeColumn,
		},
		Row: func(c *class) []any {
			reclaim, binding := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingImmediate
			if c.ReclaimPolicy != nil {
				reclaim = *c.ReclaimPolicy
			}
			if c.VolumeBindingMode != nil {
				binding = *c.VolumeBindingMode
			}
			name := markedName(c, "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
			return []any{name, c.Provisioner, string(reclaim), string(binding), kind.Value(c.AllowVolumeExpansion), kind.Age(c.CreationTimestamp)}
		},
	}.Erase()
}

func validateClass(c *storagev1.StorageClass) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(c)...)
	validateProvisioner(l, "provisioner", c.Provisioner)
	validateParameters(l, c.Parameters, true)
	if c.ReclaimPolicy != nil && *c.ReclaimPolicy != "" {
		check.Pointer(l, "reclaimPolicy", c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)
	}
	if c.VolumeBindingMode == nil {
		l.Required("volumeBindingMode", "")
	}
	check.Pointer(l, "volumeBindingMode", c.VolumeBindingMode, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)
	validateTopologies(l, c.AllowedTopologies)
	return l.Errors()
}

func validateProvisioner(l *check.List, child, name string) {
	if name == "" {
		l.Required(child, "")
		return
	}
	for _, msg := range validation.IsQualifiedName(strings.ToLower(name)) {
		l.Invalid(child, name, msg)
	}
}

func validateParameters(l *check.List, parameters map[string]string, mayBeEmpty bool) {
	const child = "parameters"
	if !mayBeEmpty && len(parameters) == 0 {
		l.Required(child, "must contain at least one key/value pair")
	}
	if len(parameters) > maxParameters {
		l.TooLong(child, maxParameters)
	}
	size := 0
	for k, v := range parameters {
		if k == "" {
			l.Invalid(child, k, "field can not be empty.")
		}
		size += len(k) + len(v)
	}
	if size > maxParameterBytes {
		l.TooLong(child, maxParameterBytes)
	}
}

func validateTopologies(l *check.List, terms []corev1.TopologySelectorTerm) {
	check.Each(l, "allowedTopologies", terms, func(i int, t *corev1.TopologySelectorTerm) {
		for j := range terms[:i] {
			if equality.Semantic.DeepEqual(terms[j], *t) {
				l.Duplicate("matchLabelExpressions", "")
				break
			}
		}
		var keys check.Set
		check.Each(l, "matchLabelExpressions", t.MatchLabelExpressions, func(_ int, r *corev1.TopologySelectorLabelRequirement) {
			l.Qualified("key", r.Key)
			if !keys.Add(r.Key) {
				l.Duplicate("key", r.Key)
			}
			if len(r.Values) == 0 {
				l.Required("values", "")
			}
			var seen check.Set
			check.Each(l, "values", r.Values, func(_ int, v *string) {
				if !seen.Add(*v) {
					l.Duplicate("", *v)
				}
			})
		})
	})
}

// VolumeAttributesClass describes storage.k8s.io/v1 VolumeAttributesClass.
func VolumeAttributesClass() *kind.Kind {
	type class = storagev1.VolumeAttributesClass
	validate := func(c *class) field.ErrorList {
		l := check.At(nil)
		l.Add(meta.Finalizers(c)...)
		validateProvisioner(l, "driverName", c.DriverName)
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
			l.Add(validate(c)...)
			l.Immutable("driverName", c.DriverName, old.DriverName)
			l.Immutable("parameters", c.Parameters, old.Parameters)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{kind.NameColumn, text("DriverName", "The CSI driver that sets the attributes."), kind.AgeColumn},
		Row: func(c *class) []any {
			return []any{markedName(c, "storageclass.kubernetes.io/is-default-class"), c.DriverName, kind.Age(c.CreationTimestamp)}
		},
	}.Erase()
}

// CSIStorageCapacity describes storage.k8s.io/v1 CSIStorageCapacity.
func CSIStorageCapacity() *kind.Kind {
	type capacity = storagev1.CSIStorageCapacity
	validate := func(c *capacity) field.ErrorList {
		l := check.At(nil)
		l.Add(meta.Finalizers(c)...)
		l.Subdomain("storageClassName", c.StorageClassName)
		for child, q := range map[string]*resource.Quantity{"capacity": c.Capacity, "maximumVolumeSize": c.MaximumVolumeSize} {
			if q != nil && q.Sign() < 0 {
				l.Invalid(child, q.String(), "must be greater than or equal to 0")
			}
		}
		l.Sort(0)
		l.Selector("nodeTopology", c.NodeTopology)
		return l.Errors()
	}
	return kind.Spec[*capacity]{
		Names:    names("CSIStorageCapacity", "csistoragecapacities", "csistoragecapacity", true),
		New:      func() *capacity { return &capacity{} },
		NewList:  func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		Validate: validate,
		ValidateUpdate: func(c, old *capacity) field.ErrorList {
			l := check.At(nil)
			l.Add(validate(c)...)
			l.Immutable("nodeTopology", c.NodeTopology, old.NodeTopology)
			l.Immutable("storageClassName", c.StorageClassName, old.StorageClassName)
			return l.Errors()
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, text("StorageClassName", "The class that the capacity is for."), text("Capacity", "How much there is."),
		},
		Row: func(c *capacity) []any {
			size := "<unset>"
			if c.Capacity != nil {
				size = c.Capacity.String()
			}
			return []any{c.Name, c.StorageClassName, size}
		},
	}.Erase()
}
