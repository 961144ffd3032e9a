// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/api/kind"
)

// FuzzContinue: a token never leads out of what its list may read.
func FuzzContinue(f *testing.F) {
	f.Add(encodeContinue("/registry/pods/a/b\x00", "/registry/pods/", 5))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":1,"start":"../secrets/x"}`)))
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":-1,"start":"a/\u0000"}`)))
	f.Fuzz(func(t *testing.T, token string) {
		const prefix = "/registry/pods/ns/"
		from, _, err := decodeContinue(token, prefix)
		if err == nil && (!strings.HasPrefix(from, prefix) || strings.Contains(from, "/../")) {
			t.Errorf("token %q leads to %q", token, from)
		}
	})
}

// FuzzSelectors: what parses, matches without a panic and reads back as the same.
func FuzzSelectors(f *testing.F) {
	for _, s := range []string{
		"a=b,c!=d", "a in (b,c),!d", "x,y notin (z)", "metadata.name=a,spec.nodeName!=b", `a=b\,c`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if sel, err := labels.Parse(s); err == nil {
			sel.Matches(labels.Set{"a": "b"})
			if again, err := labels.Parse(sel.String()); err != nil || again.String() != sel.String() {
				t.Errorf("label selector %q reads back as %q, %v", s, sel, err)
			}
		}
		if sel, err := fields.ParseSelector(s); err == nil {
			sel.Matches(fields.Set{"a": "b"})
		}
	})
}

// FuzzStored: what the store holds, which another server may have written, is an object or an error; an object reads
// back as the same.
func FuzzStored(f *testing.F) {
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	codec := Protobuf(gvk, func() kind.Object { return &corev1.Pod{} }, nil)
	b, err := codec.Encode(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "a",
			Labels: map[string]string{"k": "v"},
		},
		Spec: corev1.PodSpec{NodeName: "n"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`))
	f.Add([]byte(`{"kind":"Pod","apiVersion":"v2","metadata":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		obj, err := codec.Decode(b)
		if err != nil {
			return
		}
		again, err := codec.Encode(obj)
		if err != nil {
			t.Fatalf("%q was read, but not written: %v", b, err)
		}
		if back, err := codec.Decode(again); err != nil || !cmp.Equal(obj, back) {
			t.Errorf("%q reads back otherwise: %v\n%s", b, err, cmp.Diff(obj, back))
		}
	})
}
