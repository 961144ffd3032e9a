// SPDX-License-Identifier: Apache-2.0

package resources

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/api/kind"
)

// reviews are the review kinds: they are answered, never stored.
func reviews() []Row {
	authn := authenticationv1.SchemeGroupVersion
	authz := authorizationv1.SchemeGroupVersion
	return []Row{
		reviewRow(authn, "TokenReview", "tokenreviews", "tokenreview", false, func() *authenticationv1.TokenReview {
			return &authenticationv1.TokenReview{}
		}),
		reviewRow(authn, "SelfSubjectReview", "selfsubjectreviews", "selfsubjectreview", false,
			func() *authenticationv1.SelfSubjectReview { return &authenticationv1.SelfSubjectReview{} }),
		reviewRow(authz, "SubjectAccessReview", "subjectaccessreviews", "subjectaccessreview", false,
			func() *authorizationv1.SubjectAccessReview { return &authorizationv1.SubjectAccessReview{} }),
		reviewRow(authz, "LocalSubjectAccessReview", "localsubjectaccessreviews", "localsubjectaccessreview", true,
			func() *authorizationv1.LocalSubjectAccessReview { return &authorizationv1.LocalSubjectAccessReview{} }),
		reviewRow(authz, "SelfSubjectAccessReview", "selfsubjectaccessreviews", "selfsubjectaccessreview", false,
			func() *authorizationv1.SelfSubjectAccessReview { return &authorizationv1.SelfSubjectAccessReview{} }),
		reviewRow(authz, "SelfSubjectRulesReview", "selfsubjectrulesreviews", "selfsubjectrulesreview", false,
			func() *authorizationv1.SelfSubjectRulesReview { return &authorizationv1.SelfSubjectRulesReview{} }),
		reviewRow(corev1.SchemeGroupVersion, "Binding", "bindings", "binding", true, func() *corev1.Binding {
			return &corev1.Binding{}
		}),
	}
}

func reviewRow[T kind.Object](
	gv schema.GroupVersion, name, resource, singular string, namespaced bool, fresh func() T,
) Row {
	return Row{Kind: kind.Spec[T]{
		Names: kind.Names{
			Group:      gv.Group,
			Version:    gv.Version,
			Kind:       name,
			Resource:   resource,
			Singular:   singular,
			Namespaced: namespaced,
		},
		New:        fresh,
		CreateOnly: true,
	}.Erase()}
}
