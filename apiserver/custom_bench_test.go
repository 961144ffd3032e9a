// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// BenchmarkCustomResourceCreate creates custom resources with a schema and rules, one after the other.
func BenchmarkCustomResourceCreate(b *testing.B) {
	c := startCustom(b)
	c.define(definition("widgets", "Widget", widgetSchema, withStatus))
	widgets := c.in("v1", "widgets")
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		u := widget(fmt.Sprintf("w-%d", n), map[string]any{"size": int64(1 + n%90), "tags": []any{"a", "b"}})
		if _, err := widgets.Create(b.Context(), u, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCustomResourceList lists 1,000 custom resources.
func BenchmarkCustomResourceList(b *testing.B) {
	custom := startCustom(b)
	custom.define(definition("widgets", "Widget", widgetSchema, withStatus))
	widgets := custom.in("v1", "widgets")
	for n := range 1000 {
		u := widget(fmt.Sprintf("w-%d", n), map[string]any{"size": int64(1 + n%90), "tags": []any{"a", "b"}})
		if _, err := widgets.Create(b.Context(), u, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(custom.rest)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet,
			custom.rest.Host+"/apis/example.com/v1/widgets",
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
