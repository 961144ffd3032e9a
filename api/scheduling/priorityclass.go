// SPDX-License-Identifier: Apache-2.0

// Package scheduling describes the kinds of scheduling.k8s.io.
package scheduling

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	systemPrefix = "system-"
	// highestUser is the highest priority a user's class may have; the system's own are above it.
	highestUser = 1_000_000_000
)

// PriorityClass describes scheduling.k8s.io/v1 PriorityClass.
func PriorityClass() *kind.Kind {
	gv := schedulingv1.SchemeGroupVersion
	return kind.Spec[*schedulingv1.PriorityClass]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       "PriorityClass",
			Resource:   "priorityclasses",
			Singular:   "priorityclass",
			ShortNames: []string{"pc"},
		},
		New:     func() *schedulingv1.PriorityClass { return &schedulingv1.PriorityClass{} },
		NewList: func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		Default: func(p *schedulingv1.PriorityClass) {
			if p.PreemptionPolicy == nil {
				lower := corev1.PreemptLowerPriority
				p.PreemptionPolicy = &lower
			}
		},
		PrepareCreate: func(p *schedulingv1.PriorityClass) { p.Generation = 1 },
		Validate: func(p *schedulingv1.PriorityClass) field.ErrorList {
			return append(meta.Finalizers(p), validatePriorityClass(p)...)
		},
		ValidateUpdate: func(p, old *schedulingv1.PriorityClass) field.ErrorList {
			var errs field.ErrorList
			if p.Value != old.Value {
				errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
			}
			return append(errs, apivalidation.ValidateImmutableField(p.PreemptionPolicy, old.PreemptionPolicy,
				field.NewPath("preemptionPolicy"))...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Value", Type: "integer", Description: "The integer value of this priority class."},
			{Name: "Global-Default", Type: "boolean", Description: "Whether pods without a class get this one."},
			kind.AgeColumn,
			{Name: "PreemptionPolicy", Type: "string", Description: "Whether pods of this class may preempt others."},
		},
		Row: func(p *schedulingv1.PriorityClass) []any {
			policy := ""
			if p.PreemptionPolicy != nil {
				policy = string(*p.PreemptionPolicy)
			}
			return []any{p.Name, int64(p.Value), p.GlobalDefault, kind.Age(p.CreationTimestamp), policy}
		},
	}.Erase()
}

// System are the two classes every cluster has.
func System() []*schedulingv1.PriorityClass {
	lower := corev1.PreemptLowerPriority
	of := func(name string, value int32, text string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{
			ObjectMeta:       metav1.ObjectMeta{Name: name},
			Value:            value,
			Description:      text,
			PreemptionPolicy: &lower,
		}
	}
	return []*schedulingv1.PriorityClass{
		of("system-node-critical", 2_000_001_000,
			"Used for system critical pods that must not be moved from their current node."),
		of("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, "+
			"but can be moved to another node if necessary."),
	}
}

// ProtectDelete reports why a priority class that every cluster has may not be deleted.
func ProtectDelete(name string) error {
	if slices.ContainsFunc(System(), func(p *schedulingv1.PriorityClass) bool { return p.Name == name }) {
		return errors.New("this is a system priority class and cannot be deleted")
	}
	return nil
}

func validatePriorityClass(priorityClass *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(priorityClass.Name, systemPrefix) {
		if !isSystem(priorityClass) {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				fmt.Sprintf("priority class names with '%s' prefix are reserved for system use only. error: %v is "+
					"not a known system priority class", systemPrefix, priorityClass.Name)))
		}
	} else if priorityClass.Value > highestUser {
		errs = append(errs, field.Forbidden(field.NewPath("value"),
			fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestUser)))
	}
	if pol := priorityClass.PreemptionPolicy; pol != nil {
		switch *pol {
		case corev1.PreemptLowerPriority, corev1.PreemptNever:
		case "":
			errs = append(errs, field.Required(field.NewPath("preemptionPolicy"), ""))
		default:
			errs = append(errs, field.NotSupported(field.NewPath("preemptionPolicy"), *pol, []corev1.PreemptionPolicy{
				corev1.PreemptLowerPriority, corev1.PreemptNever,
			}))
		}
	}
	return errs
}

func isSystem(p *schedulingv1.PriorityClass) bool {
	for _, s := range System() {
		if s.Name == p.Name {
			return s.Value == p.Value && !p.GlobalDefault
		}
	}
	return false
}
