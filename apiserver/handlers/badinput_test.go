// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
)

const typeProto = "application/vnd.kubernetes.protobuf"

// laughs is a YAML document of a few hundred bytes that would be gigabytes if its aliases were followed.
func laughs() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lol}\na: &a " +
		"[lol,lol,lol,lol,lol,lol,lol,lol,lol]\n")
	for c := 'b'; c <= 'i'; c++ {
		p := c - 1
		fmt.Fprintf(&b, "%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, p, p, p, p, p, p, p, p, p)
	}
	return b.String()
}

// TestBadInput sends invalid requests: each gets its answer, and nothing is stored.
func TestBadInput(t *testing.T) {
	running := servertest.Start(t, nil)
	deep := strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)
	big := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"a":"` + strings.Repeat("x",
		3<<20) + `"}}`
	const cm = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"%s}}`
	for _, c := range []struct {
		what, media, body string
		code              int
		text              string
	}{
		{
			"nothing", "application/json", " ", 400,
			`the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (20)`,
		},
		{
			"half a document", "application/json", `{"kind":"ConfigMap"`, 400,
			"couldn't get version/kind; json parse error: unexpected end of JSON input",
		},
		{
			"a list", "application/json", `[1,2]`, 400,
			"json parse error: json: cannot unmarshal array into Go value of type struct",
		},
		{
			"a string", "application/json", `"x"`, 400,
			"json parse error: json: cannot unmarshal string into Go value of type struct",
		},
		{"no kind", "application/json", `{"metadata":{"name":"x"}}`, 201, `"name":"x"`},
		{
			"a kind that is none", "application/json", `{"apiVersion":"v1","kind":"Thing"}`, 400,
			`Thing in version "v1" cannot be handled as a ConfigMap: no kind "Thing" is registered for version "v1"`,
		},
		{
			"a version that is none", "application/json", `{"apiVersion":"a/b/c","kind":"ConfigMap"}`, 400,
			"unexpected GroupVersion string: a/b/c",
		},
		{
			"a number for a name", "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":5}}`,
			400,
			`ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string`,
		},
		{
			"a time that is none", "application/json", fmt.Sprintf(cm, `,"creationTimestamp":"yesterday"`), 400,
			`parsing time "yesterday" as "2006-01-02T15:04:05Z07:00"`,
		},
		{"deep nesting", "application/json", deep, 400, "exceeded max depth"},
		{"deep YAML", "application/yaml", strings.Repeat("[", 20000), 400, "exceeded max depth of 1000"},
		{"a billion laughs", "application/yaml", laughs(), 400, "excessive aliasing"},
		{
			"a long text with many aliases", "application/yaml", "apiVersion: v1\nkind: ConfigMap\na: &a " +
				strings.Repeat("x", 64<<10) + "\nb: [" + strings.Repeat("*a,", 2000) + "]\n", 400,
			"excessive aliasing",
		},
		{"YAML that is none", "application/yaml", "a: b: c", 400, "mapping values are not allowed in this context"},
		{
			"a tab in YAML", "application/yaml", "apiVersion: v1\n\tkind: x", 400,
			"found a tab character that violates indentation",
		},
		{"JSON as YAML", "application/yaml", fmt.Sprintf(cm, `,"annotations":{"a":"1"}`), 409, "already exists"},
		{
			"protobuf that is none", typeProto, "hello", 400,
			"provided data does not appear to be a protobuf message, expected prefix",
		},
		{"protobuf's prefix alone", typeProto, "k8s\x00", 400, ""},
		{"broken protobuf", typeProto, "k8s\x00\x0a\xff\xff\xff\xff\xff\xff", 400, ""},
		{
			"an unknown encoding", "application/xml", "<a/>", 415, "the body of the request was in an unknown format " +
				"- accepted media types include: application/json, application/yaml, " +
				"application/vnd.kubernetes.protobuf",
		},
		{"CBOR", "application/cbor", "\xa0", 415, "accepted media types include"},
		{"three megabytes", "application/json", big, 413, "Request entity too large: limit is 3145728"},
		{
			"a long label", "application/json", fmt.Sprintf(cm, `,"labels":{"a":"`+strings.Repeat("x", 64)+`"}`), 422,
			"must be no more than 63",
		},
		{
			"a label that is none", "application/json", fmt.Sprintf(cm, `,"labels":{"a b":"c"}`), 422,
			`metadata.labels: Invalid value: "a b": name part must consist of alphanumeric characters`,
		},
		{
			"long annotations", "application/json",
			fmt.Sprintf(cm, `,"annotations":{"a":"`+strings.Repeat("x", 256<<10)+`"}`), 422,
			"metadata.annotations: Too long: may not be more than 262144 bytes",
		},
		{
			"a long name", "application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` +
				strings.Repeat("x", 254) + `"}}`, 422, "must be no more than 253 ",
		},
		{
			"an empty key", "application/json", fmt.Sprintf(cm, "") + "{}", 400,
			"invalid character '{' after top-level value",
		},
	} {
		got := running.Call(t, "POST", servertest.MapsPath, c.body, "Content-Type", c.media)
		got.Wants(t, c.what, c.code, c.text)
	}
	list := running.Call(t, "GET", servertest.MapsPath, "")
	var all metav1.PartialObjectMetadataList
	list.Into(t, &all)
	if len(all.Items) != 1 {
		t.Errorf("%d objects were stored, want the one good", len(all.Items))
	}
	// Bytes that are no UTF-8 never come out again.
	got := running.Call(t, "POST", servertest.MapsPath,
		"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"utf\"},\"data\":{\"a\":\"\xff\xfe\"}}")
	if got.Code == 201 && bytes.Contains(got.Body, []byte{0xff}) {
		t.Errorf("bad UTF-8 was stored: %q", got.Body)
	}
}

// TestBadPaths asks for what is not there, in ways that look as if it were.
func TestBadPaths(t *testing.T) {
	running := servertest.Start(t, nil)
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/api/v1/namespaces/default/configmaps/..%2f..%2fsecrets", 404},
		{"GET", "/api/v1/namespaces/default/configmaps/a%00b", 400},
		{"GET", "/apis/apps/v1/namespaces/default/deployments/x/nothing", 404},
		{"POST", "/api/v1/configmaps", 405},
		{"DELETE", "/api/v1/nodes/none/status", 405},
		{"PUT", servertest.MapsPath, 405},
		{"BREW", servertest.MapsPath, 405},
		{"POST", "/api/v1/namespaces/default/pods/x", 405},
		{"GET", "/api/v1/namespaces/default/configmaps?timeout=soon", 400},
		{"GET", "/apis//v1/pods", 404},
		{"OPTIONS", servertest.MapsPath, 405},
		{"TRACE", servertest.MapsPath, 405},
		{"OPTIONS", servertest.MapsPath + "/x", 405},
		{"POST", "/version", 405},
		{"DELETE", "/api", 405},
		{"POST", "/apis/apps/v1", 405},
		{"GET", "/version/", 200},
		{"GET", "/api/", 200},
		{"GET", "/apis/", 200},
		{"GET", "/apis/apps/", 200},
		{"GET", "//version", 404},
		{"GET", "/version//", 404},
		{"GET", "/x/../version", 404},
		{"GET", "/versions", 404},
		{"GET", "/apis/nobody.example.com", 404},
		{"GET", "/apis/nobody.example.com/v1", 404},
		{"GET", servertest.MapsPath + "/", 200},
	} {
		body := ""
		if c.method == "POST" || c.method == "PUT" {
			body = "{}"
		}
		if got := running.Call(t, c.method, c.path, body); got.Code != c.code {
			t.Errorf("%s %s: %d, want %d: %s", c.method, c.path, got.Code, c.code, servertest.Short(got.Body))
		}
	}
}

// TestMetrics: the names that dashboards look for.
func TestMetrics(t *testing.T) {
	r := servertest.Start(t, nil)
	_, stop := r.Watch(t, servertest.MapsPath+"?watch=true")
	defer stop()
	if _, err := r.Clients(t).CoreV1().ConfigMaps("default").Create(t.Context(), servertest.ConfigMap("m"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Call(t, "GET", "/apis/apps/v1/namespaces/default/madeup", "")
	r.Call(t, "GET", "/api/v1/namespaces/default/endpoints", "")
	body := string(r.Call(t, "GET", "/metrics", "", "Accept", "text/plain").Body)
	for _, want := range []string{
		`apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"} 1`,
		"apiserver_request_duration_seconds_bucket{", "apiserver_current_inflight_requests{",
		"apiserver_longrunning_requests{", "etcd_request_duration_seconds_bucket{",
		`apiserver_resource_objects{group="",resource="configmaps"} 1`,
		`apiserver_storage_objects{resource="configmaps"} 1`, "go_goroutines ", "process_resident_memory_bytes ",
		`apiserver_longrunning_requests{component="apiserver",group="",resource="configmaps",scope="namespace",subresource="",verb="WATCH",version="v1"} 1`,
		"apiserver_request_sli_duration_seconds_bucket{", `authentication_attempts{result="success"}`,
		"authentication_duration_seconds_bucket{",
		`authenticated_user_requests{username="admin"}`, `authorization_attempts_total{result="allowed"}`,
		"authorization_duration_seconds_bucket{",
		"apiserver_client_certificate_expiration_seconds_bucket{",
		`aggregator_unavailable_apiservice{name="v1.apps"} 0`, "process_cpu_seconds_total ", "process_open_fds ",
		"go_memstats_alloc_bytes ", "process_start_time_seconds ", "apiserver_cel_compilation_duration_seconds_count ",
		`apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1`,
		`apiserver_response_sizes_count{component="apiserver",group="",resource="endpoints",scope="namespace",subresource="",verb="LIST",version="v1"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(body, "madeup") {
		t.Error("an unknown resource became a label")
	}
}
