// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// BenchmarkCustomResourceCreate creates custom resources with a schema and rules, one after the other.
func BenchmarkCustomResourceCreate(b *testing.B) {
	c := servertest.StartCustom(b)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	widgets := c.In("v1", "widgets")
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		u := servertest.Widget(fmt.Sprintf("w-%d", n), map[string]any{"size": int64(1 + n%90), "tags": []any{"a", "b"}})
		if _, err := widgets.Create(b.Context(), u, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCustomResourceList lists 1,000 custom resources.
func BenchmarkCustomResourceList(b *testing.B) {
	custom := servertest.StartCustom(b)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus))
	widgets := custom.In("v1", "widgets")
	for n := range 1000 {
		u := servertest.Widget(fmt.Sprintf("w-%d", n), map[string]any{"size": int64(1 + n%90), "tags": []any{"a", "b"}})
		if _, err := widgets.Create(b.Context(), u, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(custom.Rest)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet,
			custom.Rest.Host+"/apis/example.com/v1/widgets",
			http.NoBody)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		size, err := io.Copy(io.Discard, resp.Body)
		if err != nil || resp.Body.Close() != nil || size < 100_000 {
			b.Fatalf("%d bytes, %v", size, err)
		}
	}
}
