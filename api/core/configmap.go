// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// ConfigMap describes config maps.
func ConfigMap() *kind.Kind {
	return kind.Spec[*corev1.ConfigMap]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "ConfigMap",
			Resource:   "configmaps",
			Singular:   "configmap",
			ShortNames: []string{"cm"},
			Namespaced: true,
		},
		New:            func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		NewList:        func() runtime.Object { return &corev1.ConfigMapList{} },
		Default:        func(c *corev1.ConfigMap) { kind.FillNil(c.BinaryData) },
		Validate:       validateConfigMap,
		ValidateUpdate: validateConfigMapUpdate,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Data", Type: "string", Description: corev1.ConfigMap{}.SwaggerDoc()["data"]},
			kind.AgeColumn,
		},
		Row: func(c *corev1.ConfigMap) []any {
			return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), kind.Age(c.CreationTimestamp)}
		},
	}.Erase()
}

func validateConfigMap(configMap *corev1.ConfigMap) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(configMap)...)
	size := 0
	from := errs.Len()
	errs.In("data")
	for k, v := range configMap.Data {
		errs.Key(k)
		errs.ConfigKey("", k)
		if _, ok := configMap.BinaryData[k]; ok {
			errs.Invalid("", k, "duplicate of key present in binaryData")
		}
		errs.Out()
		size += len(v)
	}
	errs.Sort(from)
	errs.Out()
	from = errs.Len()
	errs.In("binaryData")
	for k, v := range configMap.BinaryData {
		errs.Key(k)
		errs.ConfigKey("", k)
		errs.Out()
		size += len(v)
	}
	errs.Sort(from)
	errs.Out()
	if size > corev1.MaxSecretSize {
		errs.Add(field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs.Errors()
}

const immutableText = "field is immutable when `immutable` is set"

func validateConfigMapUpdate(configMap, old *corev1.ConfigMap) field.ErrorList {
	errs := check.At(nil)
	if old.Immutable != nil && *old.Immutable {
		if configMap.Immutable == nil || !*configMap.Immutable {
			errs.Forbidden("immutable", immutableText)
		}
		if !maps.Equal(configMap.Data, old.Data) {
			errs.Forbidden("data", immutableText)
		}
		if !maps.EqualFunc(configMap.BinaryData, old.BinaryData, bytes.Equal) {
			errs.Forbidden("binaryData", immutableText)
		}
	}
	errs.Add(validateConfigMap(configMap)...)
	return errs.Errors()
}
