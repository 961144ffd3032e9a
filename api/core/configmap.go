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

func validateConfigMap(c *corev1.ConfigMap) field.ErrorList {
	l := check.At(nil)
	l.Add(meta.Finalizers(c)...)
	size := 0
	from := l.Len()
	l.In("data")
	for k, v := range c.Data {
		l.Key(k)
		l.ConfigKey("", k)
		if _, ok := c.BinaryData[k]; ok {
			l.Invalid("", k, "duplicate of key present in binaryData")
		}
		l.Out()
		size += len(v)
	}
	l.Sort(from)
	l.Out()
	from = l.Len()
	l.In("binaryData")
	for k, v := range c.BinaryData {
		l.Key(k)
		l.ConfigKey("", k)
		l.Out()
		size += len(v)
	}
	l.Sort(from)
	l.Out()
	if size > corev1.MaxSecretSize {
		l.Add(field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return l.Errors()
}

const immutableText = "field is immutable when `immutable` is set"

func validateConfigMapUpdate(c, old *corev1.ConfigMap) field.ErrorList {
	l := check.At(nil)
	if old.Immutable != nil && *old.Immutable {
		if c.Immutable == nil || !*c.Immutable {
			l.Forbidden("immutable", immutableText)
		}
		if !maps.Equal(c.Data, old.Data) {
			l.Forbidden("data", immutableText)
		}
		if !maps.EqualFunc(c.BinaryData, old.BinaryData, bytes.Equal) {
			l.Forbidden("binaryData", immutableText)
		}
	}
	l.Add(validateConfigMap(c)...)
	return l.Errors()
}
