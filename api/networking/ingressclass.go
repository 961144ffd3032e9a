// SPDX-License-Identifier: Apache-2.0

package networking

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const maxController = 250

// IngressClass describes networking.k8s.io/v1 IngressClass.
func IngressClass() *kind.Kind {
	return kind.Spec[*networkingv1.IngressClass]{
		Names:   names("IngressClass", "ingressclasses", "ingressclass", false),
		New:     func() *networkingv1.IngressClass { return &networkingv1.IngressClass{} },
		NewList: func() runtime.Object { return &networkingv1.IngressClassList{} },
		Default: func(c *networkingv1.IngressClass) {
			if p := c.Spec.Parameters; p != nil {
				kind.Fill(&p.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
			}
		},
		PrepareCreate: func(c *networkingv1.IngressClass) { c.Generation = 1 },
		PrepareUpdate: func(c, old *networkingv1.IngressClass) {
			c.Generation = old.Generation
			if !equality.Semantic.DeepEqual(c.Spec, old.Spec) {
				c.Generation++
			}
		},
		Validate: validateClass,
		ValidateUpdate: func(c, old *networkingv1.IngressClass) field.ErrorList {
			return append(apivalidation.ValidateImmutableField(c.Spec.Controller, old.Spec.Controller,
				field.NewPath("spec", "controller")), validateClass(c)...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Controller", Type: "string", Description: "Controller that is responsible for handling this class"},
			{Name: "Parameters", Type: "string", Description: "A reference to a resource with additional parameters"},
			kind.AgeColumn,
		},
		Row: func(c *networkingv1.IngressClass) []any {
			parameters := "<none>"
			if p := c.Spec.Parameters; p != nil {
				parameters = p.Kind
				if p.APIGroup != nil {
					parameters += "." + *p.APIGroup
				}
				parameters += "/" + p.Name
			}
			return []any{c.Name, c.Spec.Controller, parameters, kind.Age(c.CreationTimestamp)}
		},
	}.Erase()
}

func validateClass(c *networkingv1.IngressClass) field.ErrorList {
	l := check.At(field.NewPath("spec"))
	l.Add(meta.Finalizers(c)...)
	if len(c.Spec.Controller) > maxController {
		l.TooLong("controller", maxController)
	}
	l.Add(validation.IsDomainPrefixedPath(l.Path("controller"), c.Spec.Controller)...)
	if p := c.Spec.Parameters; p != nil {
		l.Within("parameters", func() { validateParameters(l, p) })
	}
	return l.Errors()
}

func validateParameters(errs *check.List, reference *networkingv1.IngressClassParametersReference) {
	validateReference(errs, reference.APIGroup, reference.Kind, reference.Name, true)
	if reference.Scope == nil {
		errs.Required("scope", "")
		return
	}
	cluster := networkingv1.IngressClassParametersReferenceScopeCluster
	namespaced := networkingv1.IngressClassParametersReferenceScopeNamespace
	check.Pointer(errs, "scope", reference.Scope, cluster, namespaced)
	switch *reference.Scope {
	case namespaced:
		if reference.Namespace == nil {
			errs.Required("namespace", "`parameters.scope` is set to 'Namespace'")
		} else {
			errs.Name("namespace", *reference.Namespace, apivalidation.ValidateNamespaceName)
		}
	case cluster:
		if reference.Namespace != nil {
			errs.Forbidden("namespace", "`parameters.scope` is set to 'Cluster'")
		}
	}
}

// segment wants a part of a path; declared: that it is there is declared with the field.
func segment(l *check.List, child, v string, declared bool) {
	switch {
	case v == "" && declared:
		l.Missing(child)
		return
	case v == "":
		l.Required(child, "")
		return
	}
	for _, msg := range content.IsPathSegmentName(v) {
		l.Invalid(child, v, msg)
	}
}
