// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// elsewhere is a source without a resource.
type elsewhere struct{}

func (elsewhere) List(
	_ context.Context, gvr schema.GroupVersionResource, _ string, _ metav1.ListOptions,
) ([]runtime.Object, string, error) {
	return nil, "", apierrors.NewNotFound(gvr.GroupResource(), "")
}

func (elsewhere) Watch(
	_ context.Context, gvr schema.GroupVersionResource, _ string, _ metav1.ListOptions,
) (watch.Interface, error) {
	return nil, apierrors.NewNotFound(gvr.GroupResource(), "")
}

// TestMetadataOf: in process the objects are the server's own and no request is made; what the source does not have is
// asked for.
func TestMetadataOf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "5"}}
	gvr := schema.GroupVersionResource{Group: "example.org", Version: "v2", Resource: "things"}
	const answer = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"b"}}]}`
	for name, tc := range map[string]struct {
		source Source
		want   []string
	}{
		"of the source": {&fixedSource{pods: []*corev1.Pod{pod}}, nil},
		"elsewhere": {
			elsewhere{},
			[]string{"GET /apis/example.org/v2/things", "GET /apis/example.org/v2/things?watch=true"},
		},
		"no source": {
			nil, []string{"GET /apis/example.org/v2/things", "GET /apis/example.org/v2/things?watch=true"},
		},
	} {
		var asked []string
		c, err := InProcess(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.Method+" "+r.URL.RequestURI())
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Query().Get("watch") == "" {
				_, _ = w.Write([]byte(answer))
			}
		}), tc.source, "test")
		if err != nil {
			t.Fatal(err)
		}
		lw := c.MetadataOf(gvr)
		l, err := lw.ListWithContext(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		items, err := meta.ExtractList(l)
		if err != nil || len(items) != 1 || tc.want == nil && items[0] != runtime.Object(pod) {
			t.Errorf("%s: got %v, %v", name, items, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w, err := lw.WatchWithContext(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w.Stop()
		cancel()
		if !slices.Equal(asked, tc.want) {
			t.Errorf("%s: the server was asked %q, want %q", name, asked, tc.want)
		}
	}
}
