// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

// Secret describes secrets. stringData is written into data and never stored.
func Secret() *kind.Kind {
	return kind.Spec[*corev1.Secret]{
		Names: kind.Names{
			Version:    "v1",
			Kind:       "Secret",
			Resource:   "secrets",
			Singular:   "secret",
			Namespaced: true,
		},
		New:     func() *corev1.Secret { return &corev1.Secret{} },
		NewList: func() runtime.Object { return &corev1.SecretList{} },
		Default: func(s *corev1.Secret) {
			kind.FillZero(&s.Type, corev1.SecretTypeOpaque)
			mergeStringData(s)
			kind.FillNil(s.Data)
		},
		PrepareCreate:  mergeStringData,
		PrepareUpdate:  func(s, _ *corev1.Secret) { mergeStringData(s) },
		Validate:       validateSecret,
		ValidateUpdate: validateSecretUpdate,
		Warnings:       func(s, _ *corev1.Secret) []string { return secretWarnings(s) },
		Fields:         func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "Type", Type: "string", Description: corev1.Secret{}.SwaggerDoc()["type"]},
			{Name: "Data", Type: "string", Description: corev1.Secret{}.SwaggerDoc()["data"]},
			kind.AgeColumn,
		},
		Row: func(s *corev1.Secret) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), kind.Age(s.CreationTimestamp)}
		},
	}.Erase()
}

func mergeStringData(s *corev1.Secret) {
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

func validateSecret(secret *corev1.Secret) field.ErrorList {
	errs := check.At(nil)
	errs.Add(meta.Finalizers(secret)...)
	size := 0
	from := errs.Len()
	errs.In("data")
	for k, v := range secret.Data {
		errs.Key(k)
		errs.ConfigKey("", k)
		errs.Out()
		size += len(v)
	}
	errs.Sort(from)
	if size > corev1.MaxSecretSize {
		errs.TooLong("", corev1.MaxSecretSize)
	}
	secretType(errs, secret)
	errs.Out()
	return errs.Errors()
}

// secretType wants the keys that the type promises; errs stands at data.
func secretType(errs *check.List, secret *corev1.Secret) {
	want := func(keys ...string) {
		for _, k := range keys {
			if _, ok := secret.Data[k]; !ok {
				errs.Key(k)
				errs.Required("", "")
				errs.Out()
			}
		}
	}
	wantJSON := func(key string) {
		want(key)
		b, ok := secret.Data[key]
		if !ok {
			return
		}
		if err := json.Unmarshal(b, &map[string]any{}); err != nil {
			errs.Key(key)
			errs.Invalid("", "<secret contents redacted>", err.Error())
			errs.Out()
		}
	}
	switch secret.Type {
	case corev1.SecretTypeServiceAccountToken:
		if secret.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs.Add(field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		wantJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		wantJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, user := secret.Data[corev1.BasicAuthUsernameKey]
		_, password := secret.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			want(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(secret.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs.Key(corev1.SSHAuthPrivateKey)
			errs.Required("", "")
			errs.Out()
		}
	case corev1.SecretTypeTLS:
		want(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
}

func validateSecretUpdate(secret, old *corev1.Secret) field.ErrorList {
	errs := check.At(nil)
	if secret.Type != old.Type {
		errs.Invalid("type", secret.Type, apivalidation.FieldImmutableErrorMsg)
	}
	if old.Immutable != nil && *old.Immutable {
		if secret.Immutable == nil || !*secret.Immutable {
			errs.Forbidden("immutable", immutableText)
		}
		if !maps.EqualFunc(secret.Data, old.Data, bytes.Equal) {
			errs.Forbidden("data", immutableText)
		}
	}
	errs.Add(validateSecret(secret)...)
	return errs.Errors()
}

// secretWarnings warns about a certificate that does not match its key.
func secretWarnings(s *corev1.Secret) []string {
	cert := s.Data[corev1.TLSCertKey]
	key := s.Data[corev1.TLSPrivateKeyKey]
	if s.Type != corev1.SecretTypeTLS || cert == nil || key == nil {
		return nil
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return []string{err.Error()}
	}
	return nil
}
