// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
)

// TestAnswers goes through answers to odd requests, as Kubernetes v1.37 gives them.
func TestAnswers(t *testing.T) {
	running := servertest.Start(t, nil)
	const object, lease = servertest.MapsPath + "/m", "/apis/coordination.k8s.io/v1/namespaces/default/leases/"
	const merge, asList = "application/merge-patch+json",
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	const asOne = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	const noNumber = `strconv.ParseUint: parsing \"abc\": invalid syntax`
	const body = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"%s}}`
	const daemons = `{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`
	m := func(more string) string { return strings.Replace(body, "%s", more, 1) }
	for _, c := range []struct {
		method, path, body, media string // media: Accept of what has no body, else Content-Type
		code                      int
		text                      string
	}{
		// Versions that are none.
		{
			"POST", servertest.MapsPath, m(`,"resourceVersion":"5"`), "", 500,
			"resourceVersion should not be set on objects to be created",
		},
		{"POST", servertest.MapsPath, m(`,"resourceVersion":"abc"`), "", 201, `"name":"m"`},
		{
			"GET", servertest.MapsPath + "?resourceVersion=abc", "", "", 400,
			`"message":"invalid resource version: resourceVersion: Invalid value: \"abc\": ` + noNumber,
		},
		{
			"GET", servertest.MapsPath + "?watch=1&resourceVersion=abc", "", "", 500,
			`"message":"resourceVersion: Invalid value: \"abc\": ` + noNumber,
		},
		{
			"GET", object + "?resourceVersion=abc", "", "", 500,
			`"message":"resourceVersion: Invalid value: \"abc\": ` + noNumber,
		},
		{"PUT", object, m(`,"resourceVersion":"abc"`), "", 500, `"message":"` + noNumber},
		{"PUT", object, m(`,"resourceVersion":"1"`), "", 409, "the object has been modified"},
		{"PUT", object, m(`,"resourceVersion":"0"`), "", 200, `"name":"m"`},
		{"PATCH", object, `{"metadata":{"resourceVersion":"abc"}}`, merge, 500, `"message":"` + noNumber},
		{
			"PUT", lease + "a",
			`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a","resourceVersion":"1"}}`, "",
			201, `"name":"a"`,
		},
		{
			"PUT", lease + "b",
			`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"b","resourceVersion":"abc"}}`,
			"", 500, noNumber,
		},
		{
			"PATCH", servertest.MapsPath + "/n?fieldManager=f", strings.Replace(m(`,"resourceVersion":"1"`), `"m"`, `"n"`, 1),
			"application/apply-patch+yaml", 201, `"name":"n"`,
		},
		// Another object's identity.
		{"PUT", object, m(`,"uid":"abc"`), "", 409, "Precondition failed: UID in precondition: abc"},
		{
			"PATCH", object, `{"metadata":{"uid":"abc"}}`, merge, 422,
			`metadata.uid: Invalid value: \"abc\": field is immutable`,
		},
		{"GET", servertest.MapsPath + "/%2e%2e", "", "", 400, `Name parameter invalid: \"..\": may not be '..'`},
		// Forms that the answer does not have.
		{
			"GET", object, "", asList, 406,
			"you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)",
		},
		{
			"GET", servertest.MapsPath, "", asOne, 406,
			"you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)",
		},
		{"GET", object, "", "application/json;v=v1;g=meta.k8s.io", 406, "only the following media types are accepted"},
		{
			"GET", servertest.MapsPath + "?watch=1", "", "application/yaml", 406,
			"only the following media types are accepted: application/json;stream=watch,",
		},
		{"GET", servertest.MapsPath + "?watch=1&timeoutSeconds=1", "", "application/yaml, application/json", 200, `"ADDED"`},
		{"GET", "/version", "", "application/yaml", 406, "Available representations: application/json"},
		{"GET", "/version", "", "text/html, application/json;q=0.5", 200, "gitVersion"},
		{"PATCH", object, "{}", "application/json", 415, `"message":"415: Unsupported Media Type"`},
		{
			"GET", servertest.MapsPath + "?watch=1&continue=a", "", "", 422,
			"resourceVersionMatch is forbidden when continue is provided",
		},
		{
			"POST", "/apis/apps/v1/namespaces/default/daemonsets", daemons, "", 201,
			`"f:annotations":{".":{},"f:deprecated.daemonset.template.generation":{}}`,
		},
		// Paths that are none.
		{
			"GET", servertest.MapsPath + "?limit=1", "", "application/json;as=Table;v=v1beta1;g=meta.k8s.io", 200,
			`"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1"`,
		},
		{"GET", "/nothing", "", "", 404, "404 page not found"},
		{"GET", "/apis/nobody.example.com/v1", "", "", 404, "404 page not found"},
		{"GET", "/apis/apps/v9", "", "", 404, "the server could not find the requested resource"},
		{"GET", "/api/v9", "", "", 404, "the server could not find the requested resource"},
		{"GET", "/openapi/v3/apis/nobody.example.com/v1", "", "", 404, ""},
		{
			"GET", object + "?export=true", "", "", 400,
			"the export parameter, deprecated since v1.14, is no longer supported",
		},
		// Pages.
		{"GET", servertest.MapsPath + "?limit=1&resourceVersion=0", "", "", 200, `"name":"n"`},
		{"DELETE", servertest.MapsPath + "?limit=1", "", "", 200, `"remainingItemCount":1`},
	} {
		header := "Content-Type"
		if c.body == "" {
			header = "Accept"
		}
		got := running.Call(t, c.method, c.path, c.body, header, c.media)
		what := c.method + " " + c.path + " " + c.media + " " + c.body
		if got.Code != c.code || !strings.Contains(string(got.Body), c.text) {
			t.Errorf("%s: %d %s, want %d %s", what, got.Code, servertest.Short(got.Body), c.code, c.text)
		}
		if cache := got.Header.Get("Cache-Control"); cache != "no-cache, private" {
			t.Errorf("%s: Cache-Control %q", what, cache)
		}
	}
	const twice = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"a","uid":"u"},{"apiVersion":"v1","kind":"A","name":"a","uid":"u"}]}}`
	running.Call(t, "POST", servertest.MapsPath, m("")).Wants(t, "again", 201, "")
	if w := running.Call(t, "PATCH", object, twice, "Content-Type", merge).Warnings(); len(w) != 1 ||
		!strings.Contains(w[0], "duplicate entries after mutating admission") {
		t.Errorf("an owner given twice: %q", w)
	}
	var versions metav1.APIVersions
	running.Call(t, "GET", "/api", "").Into(t, &versions)
	if a := versions.ServerAddressByClientCIDRs; versions.APIVersion != "" || len(a) != 1 || a[0].ServerAddress == "" {
		t.Errorf("/api is %+v", versions)
	}
}
