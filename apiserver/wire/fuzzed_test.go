// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/http"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var podGVK = corev1.SchemeGroupVersion.WithKind("Pod")

// FuzzDecode: a body is an object or a 400, never anything else.
func FuzzDecode(f *testing.F) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"k": "v"}}}
	for _, m := range []Media{JSON, YAML, Proto} {
		b, err := NewEncoder(m, podGVK).Encode(pod)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(m), b)
	}
	f.Add(uint8(YAML), []byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, media uint8, body []byte) {
		for _, v := range []Validation{Ignore, Warn, Strict} {
			obj, err := Decode(body, Media(media%3), v, podGVK, &corev1.Pod{}, func(string) {})
			if err != nil {
				if !apierrors.IsBadRequest(err) {
					t.Errorf("%q: %v", body, err)
				}
				continue
			}
			if _, ok := obj.(*corev1.Pod); !ok || obj.GetObjectKind().GroupVersionKind() != podGVK {
				t.Errorf("%q became a %T of kind %s", body, obj, obj.GetObjectKind().GroupVersionKind())
			}
		}
	})
}

// FuzzDecodeApply is FuzzDecode for a server-side apply.
func FuzzDecodeApply(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"))
	f.Add([]byte("a: 1\na: 2"))
	f.Add([]byte(
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","managedFields":[]},"spec":{"containers":null}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if u, err := DecodeApply(body, Strict, func(string) {}); err != nil && !apierrors.IsBadRequest(err) ||
			err == nil && u == nil {
			t.Errorf("%q: %v", body, err)
		}
	})
}

// FuzzDeleteOptions is FuzzDecode for the body of a DELETE.
func FuzzDeleteOptions(f *testing.F) {
	f.Add([]byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`))
	f.Add(
		[]byte(
			`{"kind":"DeleteOptions","apiVersion":"policy/v1","propagationPolicy":"Foreground","preconditions":{"uid":"u","resourceVersion":"1"}}`))
	f.Add([]byte(`{"orphanDependents":true,"dryRun":["All"],"gracePeriodSeconds":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if err := DecodeDeleteOptions(body, JSON, schema.GroupVersion{Version: "v1"},
			&metav1.DeleteOptions{}); err != nil && !apierrors.IsBadRequest(err) {
			t.Errorf("%q: %v", body, err)
		}
	})
}

// FuzzAccept: whatever a client accepts, it gets one of the encodings or 406.
func FuzzAccept(f *testing.F) {
	for _, s := range []string{
		"", "*/*", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json",
		"text/*;q=0.3, application/yaml;q=NaN",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		w, ok := Accept(accept, func(MediaTypeOptions) bool { return true })
		if ok && int(w.Media) >= len(mediaTypes) {
			t.Errorf("%q: encoding %d", accept, w.Media)
		}
		_, _ = BodyMedia(accept)
		_, _ = Negotiate(&http.Request{URL: &url.URL{}, Header: http.Header{"Accept": {accept}}}, nil)
	})
}
