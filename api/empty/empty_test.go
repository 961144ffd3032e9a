// SPDX-License-Identifier: Apache-2.0

package empty

import (
	"encoding/json"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Kubernetes v1.37 answers such writes with null, as it answers a GET afterwards.
func TestNormalizeEmpty(t *testing.T) {
	for _, c := range []struct {
		obj        runtime.Object
		doc, after string
	}{
		{&rbacv1.Role{}, `{"metadata":{"name":"a"},"rules":[]}`, `{"metadata":{"name":"a"},"rules":null}`},
		{
			&rbacv1.Role{}, `{"metadata":{},"rules":[{"verbs":[],"apiGroups":[]}]}`,
			`{"metadata":{},"rules":[{"verbs":null}]}`,
		},
		{
			&networkingv1.NetworkPolicy{},
			`{"metadata":{},"spec":{"podSelector":{"matchExpressions":[]},"ingress":[]}}`,
			`{"metadata":{},"spec":{"podSelector":{}}}`,
		},
		{&corev1.Secret{}, `{"metadata":{},"data":{"a":""}}`, `{"metadata":{},"data":{"a":""}}`},
		{&corev1.NodeList{}, `{"metadata":{},"items":[]}`, `{"metadata":{},"items":null}`},
		{
			&corev1.Node{}, `{"metadata":{},"spec":{},"status":{"nodeInfo":{},"images":[{"names":[]}]}}`,
			`{"names":null}`,
		},
		{&authenticationv1.TokenRequest{}, `{"metadata":{},"spec":{"audiences":[]}}`, `"audiences":null`},
		{
			&apiextensionsv1.CustomResourceDefinition{},
			`{"metadata":{},"spec":{"versions":[{"schema":{"openAPIV3Schema":{"properties":{"a":{"properties":{}}}}}}]}}`,
			`"openAPIV3Schema"`,
		},
	} {
		if err := json.Unmarshal([]byte(c.doc), c.obj); err != nil {
			t.Fatal(err)
		}
		NormalizeEmpty(c.obj)
		got, err := json.Marshal(c.obj)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(got), c.after) {
			t.Errorf("%T %s: got %s, want %s", c.obj, c.doc, got, c.after)
		}
	}
}

// TestNormalizeEmptyUnshown: what JSON leaves out is not kept either.
func TestNormalizeEmptyUnshown(t *testing.T) {
	policy := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{}},
			}},
			Ports: []networkingv1.NetworkPolicyPort{},
		}},
	}}
	NormalizeEmpty(policy)
	rule := policy.Spec.Ingress[0]
	if rule.Ports != nil || rule.From[0].PodSelector == nil || rule.From[0].PodSelector.MatchLabels != nil {
		t.Errorf("got %+v", rule)
	}
}

func BenchmarkNormalizeEmpty(b *testing.B) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "a"}, {Name: "b", Ports: []corev1.ContainerPort{{ContainerPort: 1}}}},
			Volumes:    []corev1.Volume{{Name: "a"}},
		},
	}
	b.ReportAllocs()
	for b.Loop() {
		NormalizeEmpty(pod)
	}
}
