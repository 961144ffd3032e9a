// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/api/kind"
	"keelson/apiserver/access"
	"keelson/auth/authn"
)

var secrets = corev1.SchemeGroupVersion.WithResource("secrets")

// TokenTracking is the ConfigMap by which Kubernetes shows since when it labels secret-based tokens with their last
// use.
func TokenTracking() *corev1.ConfigMap {
	cm := &corev1.ConfigMap{}
	cm.Namespace = metav1.NamespaceSystem
	cm.Name = "kube-apiserver-legacy-service-account-token-tracking"
	cm.Data = map[string]string{"since": time.Now().UTC().Format(time.DateOnly)}
	return cm
}

// tokenObjects looks up the objects that service-account tokens are bound to.
type tokenObjects struct {
	r *access.Reader
	w *access.Writer
}

func (t tokenObjects) find(ctx context.Context, resource, namespace, name string) (string, bool) {
	obj, err := t.r.Get(ctx, corev1.SchemeGroupVersion.WithResource(resource), namespace, name)
	if err != nil {
		return "", false
	}
	o, ok := obj.(kind.Object)
	if !ok || ended(o.GetDeletionTimestamp()) {
		return "", false
	}
	return string(o.GetUID()), true
}

// ended reports whether a token bound to this object is no longer valid. An object in deletion keeps its tokens for a
// time, to finish its work.
func ended(deletion *metav1.Time) bool {
	return deletion != nil && time.Since(deletion.Time) > time.Minute
}

func (t tokenObjects) ServiceAccount(ctx context.Context, namespace, name string) (string, bool) {
	return t.find(ctx, "serviceaccounts", namespace, name)
}

func (t tokenObjects) Pod(ctx context.Context, namespace, name string) (string, bool) {
	return t.find(ctx, "pods", namespace, name)
}

func (t tokenObjects) Secret(ctx context.Context, namespace, name string) (string, bool) {
	return t.find(ctx, "secrets", namespace, name)
}

func (t tokenObjects) Node(ctx context.Context, name string) (string, bool) {
	return t.find(ctx, "nodes", "", name)
}

func (t tokenObjects) SecretToken(ctx context.Context, namespace, name string) (authn.SecretToken, bool) {
	obj, err := t.r.Get(ctx, secrets, namespace, name)
	if err != nil {
		return authn.SecretToken{}, false
	}
	s, ok := obj.(*corev1.Secret)
	if !ok || s.DeletionTimestamp != nil || s.Type != corev1.SecretTypeServiceAccountToken {
		return authn.SecretToken{}, false
	}
	return authn.SecretToken{
		Token:        string(s.Data[corev1.ServiceAccountTokenKey]),
		InvalidSince: s.Labels[authn.LabelInvalidSince],
		LastUsed:     s.Labels[authn.LabelLastUsed],
	}, true
}

func (t tokenObjects) Lists(ctx context.Context, namespace, account, secret string) bool {
	obj, err := t.r.Get(ctx, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), namespace, account)
	if err != nil {
		return false
	}
	sa, ok := obj.(*corev1.ServiceAccount)
	return ok && slices.ContainsFunc(sa.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret })
}

// NoteUse writes the last-used label. A failed write does not make the token invalid.
func (t tokenObjects) NoteUse(ctx context.Context, namespace, secret, day string) {
	_ = t.w.GuaranteedUpdate(ctx, secrets, namespace, secret, func(current runtime.Object) (runtime.Object, error) {
		s, ok := current.(*corev1.Secret)
		if !ok {
			return nil, fmt.Errorf("secret %s/%s is a %T", namespace, secret, current)
		}
		s = s.DeepCopy()
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.Labels[authn.LabelLastUsed] = day
		return s, nil
	})
}
