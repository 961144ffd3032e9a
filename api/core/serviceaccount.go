// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/kind"
	"keelson/api/meta"
)

// ServiceAccount describes service accounts.
func ServiceAccount() *kind.Kind {
	return kind.Spec[*corev1.ServiceAccount]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "ServiceAccount",
			Resource:   "serviceaccounts",
			Singular:   "serviceaccount",
			ShortNames: []string{"sa"},
			Namespaced: true,
		},
		New:            func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		NewList:        func() runtime.Object { return &corev1.ServiceAccountList{} },
		PrepareCreate:  onlySecretNames,
		PrepareUpdate:  func(a, _ *corev1.ServiceAccount) { onlySecretNames(a) },
		Validate:       func(a *corev1.ServiceAccount) field.ErrorList { return meta.Finalizers(a) },
		ValidateUpdate: func(a, _ *corev1.ServiceAccount) field.ErrorList { return meta.Finalizers(a) },
		ValidateName:   apivalidation.ValidateServiceAccountName,
		Warnings:       serviceAccountWarnings,
	}.Erase()
}

// onlySecretNames keeps of each secret reference what means anything.
func onlySecretNames(a *corev1.ServiceAccount) {
	for i := range a.Secrets {
		a.Secrets[i] = corev1.ObjectReference{Name: a.Secrets[i].Name}
	}
}

const enforceMountable = "kubernetes.io/enforce-mountable-secrets"

// serviceAccountWarnings are for accounts that get the annotation; one that has it already may change its value.
func serviceAccountWarnings(a, old *corev1.ServiceAccount) []string {
	if old != nil {
		if _, had := old.Annotations[enforceMountable]; had {
			return nil
		}
	}
	if _, has := a.Annotations[enforceMountable]; !has {
		return nil
	}
	return []string{
		fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to "+
			"mounted secrets", enforceMountable),
	}
}
