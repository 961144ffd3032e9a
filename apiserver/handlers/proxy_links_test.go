// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// TestProxyKeepsLinks: pages and redirects of a pod lead on through the proxy, and its root has a slash at its end.
func TestProxyKeepsLinks(t *testing.T) {
	_, clientset, _ := servertest.StartHooked(t)
	ctx := t.Context()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			w.Header().Set("Location", "/there/")
			w.WriteHeader(http.StatusFound)
		case "/zipped":
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, `<a href="/x">t</a>`)
			_ = z.Close()
		case "/plain":
			_, _ = io.WriteString(w, `see <a href="/x">t</a>`)
		default:
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, `<a href="/x">t</a>`+r.Header.Get("X-Forwarded-Uri"))
		}
	}))
	defer backend.Close()
	address, port := servertest.Elsewhere(t, backend.Listener.Addr().String())
	p, err := clientset.CoreV1().Pods("free").Create(ctx, servertest.PodIn("free", "p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.PodIP = address
	p.Status.PodIPs = []corev1.PodIP{{IP: address}}
	if _, err := clientset.CoreV1().Pods("free").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rest, ok := clientset.CoreV1().RESTClient().(*restclient.RESTClient)
	if !ok {
		t.Fatal("no REST client")
	}
	base := fmt.Sprintf("/api/v1/namespaces/free/pods/p:%d/proxy", port)
	for ask, want := range map[string]string{
		base + "?q=1":       "301 " + base + "/?q=1 ",
		base + "/":          "200  <a href=\"" + base + "/x\">t</a>" + base + "/",
		base + "/away":      "302 " + base + "/there/ ",
		base + "/plain?x=/": "200  see <a href=\"/x\">t</a>",
		base + "/zipped":    "200  <a href=\"" + base + "/x\">t</a>",
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, rest.Get().URL().Scheme+"://"+rest.Get().URL().Host+
			ask, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip")
		resp, err := rest.Client.Transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := fmt.Sprintf("%d %s %s", resp.StatusCode, resp.Header.Get("Location"), body); got != want {
			t.Errorf("%s: %s\nwant %s", ask, got, want)
		}
	}
}
