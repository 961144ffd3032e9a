// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

// Namespace describes namespaces. That deleting one takes two steps is the server's affair.
func Namespace() *kind.Kind {
	return kind.Spec[*corev1.Namespace]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Namespace",
			Resource:   "namespaces",
			Singular:   "namespace",
			ShortNames: []string{"ns"},
		},
		New:     func() *corev1.Namespace { return &corev1.Namespace{} },
		NewList: func() runtime.Object { return &corev1.NamespaceList{} },
		Default: defaultNamespace,
		PrepareCreate: func(n *corev1.Namespace) {
			labelNamespace(n)
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		},
		PrepareUpdate: func(n, old *corev1.Namespace) {
			labelNamespace(n)
			n.Spec.Finalizers = old.Spec.Finalizers
			n.Status = old.Status
		},
		Validate: validateNamespace,
		ValidateUpdate: func(n, _ *corev1.Namespace) field.ErrorList {
			return validateNamespace(n)
		},
		ValidateName: apivalidation.ValidateNamespaceName,
		Fields: func(n *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase)}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Status", Type: "string", Description: "The status of the namespace"},
			kind.AgeColumn,
		},
		Row: func(n *corev1.Namespace) []any {
			return []any{n.Name, string(n.Status.Phase), kind.Age(n.CreationTimestamp)}
		},
		Status: &kind.Sub[*corev1.Namespace]{
			PrepareUpdate:  func(n, old *corev1.Namespace) { n.Spec = old.Spec },
			ValidateUpdate: validateNamespaceStatus,
		},
		More: map[string]*kind.Sub[*corev1.Namespace]{"finalize": {
			PrepareUpdate: func(n, old *corev1.Namespace) { n.Status = old.Status },
			ValidateUpdate: func(n, _ *corev1.Namespace) field.ErrorList {
				errs := meta.Finalizers(n)
				path := field.NewPath("spec", "finalizers")
				for i, f := range n.Spec.Finalizers {
					errs = invalid.Append(errs, specFinalizer(f, path.Index(i))...)
				}
				return errs
			},
		}},
	}.Erase()
}

func defaultNamespace(n *corev1.Namespace) {
	kind.FillZero(&n.Status.Phase, corev1.NamespaceActive)
	labelNamespace(n)
}

// labelNamespace labels the namespace with its name (KEP-2161), which with generateName is not known at first.
func labelNamespace(n *corev1.Namespace) {
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

func validateNamespace(n *corev1.Namespace) field.ErrorList {
	errs := meta.Finalizers(n)
	for _, f := range n.Spec.Finalizers {
		errs = invalid.Append(errs, specFinalizer(f, field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func specFinalizer(f corev1.FinalizerName, path *field.Path) field.ErrorList {
	return append(apivalidation.ValidateFinalizerName(string(f), path), meta.FinalizerName(string(f), path)...)
}

func validateNamespaceStatus(n, _ *corev1.Namespace) field.ErrorList {
	errs := meta.Finalizers(n)
	path := field.NewPath("status", "Phase")
	phase := n.Status.Phase
	if n.DeletionTimestamp.IsZero() {
		if phase != corev1.NamespaceActive {
			errs = append(errs, field.Invalid(path, phase, "may only be 'Active' if `deletionTimestamp` is empty"))
		}
	} else if phase != corev1.NamespaceTerminating {
		errs = append(errs, field.Invalid(path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"))
	}
	return errs
}
