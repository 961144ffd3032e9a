// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// TestStandardHTTP2: with the standard library's server, clients are served over HTTP/2 as they are with our own.
func TestStandardHTTP2(t *testing.T) {
	servertest.NoLeaks(t)
	for _, standard := range []bool{false, true} {
		running := servertest.Start(t, func(c *servertest.Setup) { c.Serving.StandardHTTP2 = standard })
		client, err := rest.HTTPClientFor(running.Rest)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, running.Rest.Host+"/version", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
			t.Errorf("standard %v: %s over %s", standard, resp.Status, resp.Proto)
		}
		maps := running.Clients(t).CoreV1().ConfigMaps("default")
		w, err := maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Create(t.Context(), servertest.ConfigMap("a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if ev := <-w.ResultChan(); ev.Type != watch.Added {
			t.Errorf("standard %v: the watch begins with %v", standard, ev)
		}
		w.Stop()
	}
}
