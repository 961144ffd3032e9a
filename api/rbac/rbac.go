// SPDX-License-Identifier: Apache-2.0

// Package rbac describes the kinds of rbac.authorization.k8s.io/v1.
package rbac

import (
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/invalid"
	"keelson/api/kind"
	"keelson/api/meta"
)

func names(k, resource, singular string, namespaced bool) kind.Names {
	gv := rbacv1.SchemeGroupVersion
	return kind.Names{
		Group:      gv.Group,
		Version:    gv.Version,
		Kind:       k,
		Resource:   resource,
		Singular:   singular,
		Namespaced: namespaced,
	}
}

// validName: RBAC objects may be called anything that fits in a path.
func validName(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

var createdColumns = []metav1.TableColumnDefinition{
	kind.NameColumn, {Name: "Created At", Type: "date", Description: "When the object was created."},
}

func createdRow(o metav1.Object) []any {
	return []any{o.GetName(), o.GetCreationTimestamp().UTC().Format("2006-01-02T15:04:05Z")}
}

// Role describes a Role.
func Role() *kind.Kind {
	valid := func(r *rbacv1.Role) field.ErrorList {
		return append(meta.Finalizers(r), validateRules(r.Rules, true)...)
	}
	return kind.Spec[*rbacv1.Role]{
		Names:          names("Role", "roles", "role", true),
		New:            func() *rbacv1.Role { return &rbacv1.Role{} },
		NewList:        func() runtime.Object { return &rbacv1.RoleList{} },
		ValidateName:   validName,
		CreateOnUpdate: true,
		Validate:       valid,
		ValidateUpdate: func(r, _ *rbacv1.Role) field.ErrorList { return valid(r) },
		Columns:        createdColumns,
		Row:            func(r *rbacv1.Role) []any { return createdRow(r) },
	}.Erase()
}

// ClusterRole describes a ClusterRole.
func ClusterRole() *kind.Kind {
	valid := func(r *rbacv1.ClusterRole) field.ErrorList {
		errs := append(meta.Finalizers(r), validateRules(r.Rules, false)...)
		if a := r.AggregationRule; a != nil {
			at := field.NewPath("aggregationRule", "clusterRoleSelectors")
			if len(a.ClusterRoleSelectors) == 0 {
				errs = append(errs,
					field.Required(at, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
			}
			for i := range a.ClusterRoleSelectors {
				errs = invalid.Append(errs, metav1validation.ValidateLabelSelector(&a.ClusterRoleSelectors[i],
					metav1validation.LabelSelectorValidationOptions{}, at.Index(i))...)
				if _, err := metav1.LabelSelectorAsSelector(&a.ClusterRoleSelectors[i]); err != nil {
					errs = invalid.Append(errs, field.Invalid(at.Index(i), nil, "invalid label selector."))
				}
			}
		}
		return errs
	}
	return kind.Spec[*rbacv1.ClusterRole]{
		Names:          names("ClusterRole", "clusterroles", "clusterrole", false),
		New:            func() *rbacv1.ClusterRole { return &rbacv1.ClusterRole{} },
		NewList:        func() runtime.Object { return &rbacv1.ClusterRoleList{} },
		ValidateName:   validName,
		CreateOnUpdate: true,
		Validate:       valid,
		ValidateUpdate: func(r, _ *rbacv1.ClusterRole) field.ErrorList { return valid(r) },
		Columns:        createdColumns,
		Row:            func(r *rbacv1.ClusterRole) []any { return createdRow(r) },
	}.Erase()
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		policyRule := &rules[i]
		at := field.NewPath("rules").Index(i)
		if len(policyRule.Verbs) == 0 {
			errs = invalid.Append(errs, field.Required(at.Child("verbs"), "").MarkBeta())
		}
		if len(policyRule.NonResourceURLs) > 0 {
			if namespaced {
				errs = invalid.Append(errs, field.Invalid(at.Child("nonResourceURLs"), policyRule.NonResourceURLs,
					"namespaced rules cannot apply to non-resource URLs"))
			}
			if len(policyRule.APIGroups) > 0 || len(policyRule.Resources) > 0 || len(policyRule.ResourceNames) > 0 {
				errs = invalid.Append(errs, field.Invalid(at.Child("nonResourceURLs"), policyRule.NonResourceURLs,
					"rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(policyRule.APIGroups) == 0 {
			errs = invalid.Append(errs,
				field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(policyRule.Resources) == 0 {
			errs = invalid.Append(errs,
				field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

var bindingColumns = []metav1.TableColumnDefinition{
	kind.NameColumn,
	{Name: "Role", Type: "string", Description: "The role that is granted."},
	kind.AgeColumn,
	{
		Name:        "Users",
		Type:        "string",
		Priority:    1,
		Description: "Users in the binding.",
	},
	{
		Name:        "Groups",
		Type:        "string",
		Priority:    1,
		Description: "Groups in the binding.",
	},
	{
		Name:        "ServiceAccounts",
		Type:        "string",
		Priority:    1,
		Description: "Service accounts in the binding.",
	},
}

func bindingRow(obj metav1.Object, ref rbacv1.RoleRef, subjects []rbacv1.Subject) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		}
	}
	return []any{
		obj.GetName(), ref.Kind + "/" + ref.Name, kind.Age(obj.GetCreationTimestamp()),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
	}
}

// RoleBinding describes a RoleBinding.
func RoleBinding() *kind.Kind {
	valid := func(b *rbacv1.RoleBinding) field.ErrorList {
		return append(meta.Finalizers(b), validateBinding(b.RoleRef, b.Subjects, true)...)
	}
	return kind.Spec[*rbacv1.RoleBinding]{
		Names:          names("RoleBinding", "rolebindings", "rolebinding", true),
		New:            func() *rbacv1.RoleBinding { return &rbacv1.RoleBinding{} },
		NewList:        func() runtime.Object { return &rbacv1.RoleBindingList{} },
		Default:        func(b *rbacv1.RoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		ValidateName:   validName,
		CreateOnUpdate: true,
		Validate:       valid,
		ValidateUpdate: func(b, old *rbacv1.RoleBinding) field.ErrorList {
			return append(valid(b), sameRole(b.RoleRef, old.RoleRef)...)
		},
		Columns: bindingColumns,
		Row:     func(b *rbacv1.RoleBinding) []any { return bindingRow(b, b.RoleRef, b.Subjects) },
	}.Erase()
}

// ClusterRoleBinding describes a ClusterRoleBinding.
func ClusterRoleBinding() *kind.Kind {
	valid := func(b *rbacv1.ClusterRoleBinding) field.ErrorList {
		return append(meta.Finalizers(b), validateBinding(b.RoleRef, b.Subjects, false)...)
	}
	return kind.Spec[*rbacv1.ClusterRoleBinding]{
		Names:          names("ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding", false),
		New:            func() *rbacv1.ClusterRoleBinding { return &rbacv1.ClusterRoleBinding{} },
		NewList:        func() runtime.Object { return &rbacv1.ClusterRoleBindingList{} },
		Default:        func(b *rbacv1.ClusterRoleBinding) { defaultBinding(&b.RoleRef, b.Subjects) },
		ValidateName:   validName,
		CreateOnUpdate: true,
		Validate:       valid,
		ValidateUpdate: func(b, old *rbacv1.ClusterRoleBinding) field.ErrorList {
			return append(valid(b), sameRole(b.RoleRef, old.RoleRef)...)
		},
		Columns: bindingColumns,
		Row:     func(b *rbacv1.ClusterRoleBinding) []any { return bindingRow(b, b.RoleRef, b.Subjects) },
	}.Erase()
}

func defaultBinding(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	if ref.APIGroup == "" {
		ref.APIGroup = rbacv1.GroupName
	}
	for i := range subjects {
		if s := &subjects[i]; s.APIGroup == "" && (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) {
			s.APIGroup = rbacv1.GroupName
		}
	}
}

func sameRole(ref, old rbacv1.RoleRef) field.ErrorList {
	if ref != old {
		return field.ErrorList{field.Invalid(field.NewPath("roleRef"), ref, "field is immutable")}
	}
	return nil
}

func validateBinding(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("roleRef")
	if ref.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), ref.APIGroup, []string{rbacv1.GroupName}))
	}
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	if ref.Kind != "ClusterRole" && (!namespaced || ref.Kind != "Role") {
		errs = append(errs, field.NotSupported(at.Child("kind"), ref.Kind, kinds))
	}
	for _, msg := range validName(ref.Name, false) {
		if ref.Name != "" {
			errs = invalid.Append(errs, field.Invalid(at.Child("name"), ref.Name, msg))
		}
	}
	for i := range subjects {
		errs = invalid.Append(errs, validateSubject(&subjects[i], namespaced, field.NewPath("subjects").Index(i))...)
	}
	if ref.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "").MarkBeta())
	}
	return errs
}

func validateSubject(subject *rbacv1.Subject, namespaced bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if subject.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), "").MarkBeta())
	}
	switch subject.Kind {
	case rbacv1.ServiceAccountKind:
		if subject.Name != "" {
			for _, msg := range validation.IsDNS1123Subdomain(subject.Name) {
				errs = invalid.Append(errs, field.Invalid(at.Child("name"), subject.Name, msg))
			}
		}
		if subject.APIGroup != "" {
			errs = append(errs, field.NotSupported(at.Child("apiGroup"), subject.APIGroup, []string{""}))
		}
		if !namespaced && subject.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		if subject.APIGroup != rbacv1.GroupName {
			errs = append(errs, field.NotSupported(at.Child("apiGroup"), subject.APIGroup, []string{rbacv1.GroupName}))
		}
	default:
		errs = append(errs, field.NotSupported(at.Child("kind"), subject.Kind,
			[]string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}
