// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestParseInfo(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         Info
	}{
		{"GET", "/api/v1/namespaces/ns/pods/p", Info{
			Verb:      "get",
			Version:   "v1",
			Namespace: "ns",
			Resource:  "pods",
			Name:      "p",
		}},
		{"GET", "/api/v1/namespaces/ns/pods", Info{
			Verb:      "list",
			Version:   "v1",
			Namespace: "ns",
			Resource:  "pods",
		}},
		{"GET", "/api/v1/pods?watch=true", Info{Verb: "watch", Version: "v1", Resource: "pods"}},
		{"GET", "/api/v1/pods?watch=0", Info{Verb: "list", Version: "v1", Resource: "pods"}},
		{"GET", "/api/v1/watch/namespaces/ns/pods/p", Info{
			Verb:      "watch",
			Version:   "v1",
			Namespace: "ns",
			Resource:  "pods",
			Name:      "p",
		}},
		{"GET", "/api/v1/namespaces/ns", Info{
			Verb:      "get",
			Version:   "v1",
			Namespace: "ns",
			Resource:  "namespaces",
			Name:      "ns",
		}},
		{"PUT", "/api/v1/namespaces/ns/finalize", Info{
			Verb:        "update",
			Version:     "v1",
			Namespace:   "ns",
			Resource:    "namespaces",
			Name:        "ns",
			Subresource: "finalize",
		}},
		{"DELETE", "/apis/apps/v1/namespaces/ns/deployments", Info{
			Verb:      "deletecollection",
			Group:     "apps",
			Version:   "v1",
			Namespace: "ns",
			Resource:  "deployments",
		}},
		{"PATCH", "/apis/apps/v1/namespaces/ns/deployments/d/scale", Info{
			Verb:        "patch",
			Group:       "apps",
			Version:     "v1",
			Namespace:   "ns",
			Resource:    "deployments",
			Name:        "d",
			Subresource: "scale",
		}},
		{"GET", "/api/v1/namespaces/ns/services/s/proxy/a/b/", Info{
			Verb:        "get",
			Version:     "v1",
			Namespace:   "ns",
			Resource:    "services",
			Name:        "s",
			Subresource: "proxy",
			Rest:        "a/b/",
		}},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp", Info{
			Verb:     "list",
			Version:  "v1",
			Resource: "pods",
			Name:     "p",
		}},
	} {
		got := ParseInfo(httptest.NewRequest(c.method, c.path, http.NoBody))
		c.want.IsResource = true
		c.want.Path = got.Path
		got.FieldSelector = nil
		if got.Verb != c.want.Verb || got.Group != c.want.Group || got.Version != c.want.Version ||
			got.Namespace != c.want.Namespace ||
			got.Resource != c.want.Resource || got.Name != c.want.Name || got.Subresource != c.want.Subresource ||
			got.Rest != c.want.Rest || !got.IsResource {
			t.Errorf("%s %s:\ngot  %+v\nwant %+v", c.method, c.path, got, c.want)
		}
	}
	for _, path := range []string{
		"/", "/api", "/api/v1", "/apis/apps/v1", "/healthz", "/openapi/v3/apis/apps/v1", "/metrics",
	} {
		if got := ParseInfo(httptest.NewRequest("GET", path, http.NoBody)); got.IsResource || got.Verb != "get" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// FuzzParseInfo: any path and query is read without a panic, and a resource request has a resource, unless the path has
// an empty part.
func FuzzParseInfo(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/a/pods/b/log", "watch=true&fieldSelector=metadata.name%3Da")
	f.Add("DELETE", "//apis///x", "labelSelector=a%20in%20(b)")
	f.Add("PUT", "/apis/apps/v1/namespaces/a/deployments/b/status", "fieldManager=x")
	f.Add("GET", "/api///0", "")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		i := ParseInfo(&http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}})
		// which Kubernetes takes for a resource without a name
		if i.IsResource && i.Resource == "" && !strings.Contains(path, "//") {
			t.Errorf("%s %s: %+v", method, path, i)
		}
	})
}
