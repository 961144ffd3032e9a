// SPDX-License-Identifier: Apache-2.0

// Package admissiontest has what tests of admission plugins share: objects to read, requests, verdicts.
package admissiontest

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
	"keelson/auth"
)

// Reader is an admission.Reader of some objects.
type Reader map[string]runtime.Object

// ReaderOf returns a reader of objects by resource.
func ReaderOf(objs map[schema.GroupVersionResource][]runtime.Object) Reader {
	c := Reader{}
	for gvr, list := range objs {
		for _, o := range list {
			m := o.(metav1.Object)
			c[gvr.Resource+"/"+m.GetNamespace()+"/"+m.GetName()] = o
		}
	}
	return c
}

// Get implements admission.Reader.
func (c Reader) Get(_ context.Context, gvr schema.GroupVersionResource, ns, name string) (runtime.Object, error) {
	if o, ok := c[gvr.Resource+"/"+ns+"/"+name]; ok {
		return o, nil
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

// List implements admission.Reader.
func (c Reader) List(_ context.Context, gvr schema.GroupVersionResource, ns string) ([]runtime.Object, error) {
	var out []runtime.Object
	for k, o := range c {
		if strings.HasPrefix(k, gvr.Resource+"/"+ns) {
			out = append(out, o)
		}
	}
	return out, nil
}

// Pod is a pod of the namespace dev.
func Pod(containers ...corev1.Container) *corev1.Pod {
	if len(containers) == 0 {
		containers = []corev1.Container{{Name: "main"}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "p"},
		Spec: corev1.PodSpec{
			Containers: containers,
		},
	}
}

// Creation is a request to create a pod.
func Creation(p *corev1.Pod) *admission.Request {
	return &admission.Request{
		Operation: admission.Create,
		Resource:  admission.Pods,
		Namespace: p.Namespace,
		Name:      p.Name,
		Object:    p,
		User:      &auth.User{Name: "ann"},
		Warn:      func(string) {},
	}
}

// WantForbidden fails unless a plugin refused a request with a message that contains text.
func WantForbidden(t *testing.T, what string, err error, text string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: got %v, want 403 with %q", what, err, text)
	}
}

// Quantities are amounts of resources, as pairs of name and quantity.
func Quantities(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}
