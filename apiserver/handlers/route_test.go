// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"strings"
	"testing"

	"keelson/apiserver/servertest"
)

// TestRoutes: what Kubernetes v1.37 has no route for, and what it says of names that no path can hold.
func TestRoutes(t *testing.T) {
	running := servertest.Start(t, nil)
	const base = "/api/v1/namespaces/default/"
	const notFound, notAllowed = "the server could not find the requested resource",
		"the server does not allow this method on the requested resource"
	one := "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, " +
		"application/vnd.kubernetes.protobuf"
	many := one + ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
	for _, tc := range []struct {
		method, path string
		header       string // name: value
		code         int
		message      string
	}{
		{"GET", base + "pods", "Accept: application/xml", 406, many},
		{"GET", base + "pods", "Accept: application/*", 406, many},
		{"GET", base + "pods?watch=1", "Accept: text/html", 406, many},
		{"GET", base + "pods/x", "Accept: garbage", 406, one},
		{"GET", base + "pods/x/status", "Accept: text/*", 406, one},
		{"POST", base + "configmaps", "Accept: application/xml", 406, one},
		{
			"GET", base + "pods/x/log", "Accept: application/xml", 406,
			strings.Replace(one, ": app", ": text/plain, app", 1),
		},
		{"GET", base + "pods/x", "Accept: text/html, */*", 404, `pods "x" not found`},
		{
			"GET", base + "pods", "Accept: application/json;as=Foo;g=x;v=v1", 406,
			"only the following media types are accepted: application/json, application/yaml, " +
				"application/vnd.kubernetes.protobuf",
		},
		{"PATCH", base + "configmaps/a", "Content-Type: application/json", 415, "415: Unsupported Media Type"},
		{
			"PATCH", base + "configmaps/a", "Content-Type: application/apply-patch+cbor", 415,
			"415: Unsupported Media Type",
		},
		{"GET", base + "configmaps/a%25b", "", 400, `Name parameter invalid: "a%b": may not contain '%'`},
		{"GET", base + "configmaps/%2e%2e", "", 400, `Name parameter invalid: "..": may not be '..'`},
		{"DELETE", base + "configmaps/a%25b", "", 400, `Name parameter invalid: "a%b": may not contain '%'`},
		{
			"GET", base + "configmaps?resourceVersion=x", "", 400,
			`invalid resource version: resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax`,
		},
		{
			"GET", base + "configmaps?limit=1&continue=x&resourceVersion=1", "", 400,
			"invalid continue token: continue key is not valid: illegal base64 data at input byte 0",
		},
		{"GET", "/api/v1/bindings", "", 404, notFound},
		{"POST", "/apis/authorization.k8s.io/v1/localsubjectaccessreviews", "", 404, notFound},
		{"GET", "/api/v1/namespaces/default/finalize", "", 405, notAllowed},
		{"POST", "/api/v1", "", 405, notAllowed},
	} {
		var headers []string
		if name, value, ok := strings.Cut(tc.header, ": "); ok {
			headers = []string{name, value}
		}
		running.Call(t, tc.method, tc.path, "", headers...).Wants(t, tc.method+" "+tc.path+" "+tc.header, tc.code,
			tc.message)
	}
	if b := running.Call(t, "GET", base+"pods", "", "Accept", "text/plain").Body; !strings.HasPrefix(string(b), "{\n") {
		t.Errorf("who takes nothing that there is gets it in a form to be read: %s", b)
	}
	for path, want := range map[string]int{
		base + "pods":   405,
		base + "pods/x": 405,
		"/version":      405,
		"/api":          405,
		"/apis/apps/v1": 405,
		"/healthz":      200,
		"/metrics":      200,
	} {
		if got := running.Call(t, "HEAD", path, "").Code; got != want {
			t.Errorf("HEAD %s: %d, want %d", path, got, want)
		}
	}
	for _, path := range []string{
		"/openapi/v3/apis/nothing/v1", "/openapi/v3/nothing", "/openapi/v3/", "//api/v1/pods", "//apis/apps/v1/deployments",
	} {
		if got := running.Call(t, "GET", path, "").Code; got != 404 {
			t.Errorf("GET %s: %d, want 404", path, got)
		}
	}
}
