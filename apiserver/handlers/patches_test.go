// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/apiserver/servertest"
)

// TestPatches is about what patches do, and what wrong ones answer.
func TestPatches(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "m", Finalizers: []string{"example.com/a"}},
		Data:       map[string]string{"a": "1", "b": "2"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/default/configmaps/m"
	many := "[" + strings.Repeat(`{"op":"test","path":"/data/a","value":"1"},`, 10000) +
		`{"op":"test","path":"/data/a","value":"1"}]`
	for _, c := range []struct {
		what, kind, query, body string
		code                    int
		text                    string
	}{
		{"merge", servertest.MergePatch, "", `{"data":{"a":null,"c":"3"}}`, 200, `"data":{"b":"2","c":"3"}`},
		{
			"json", servertest.JSONPatch, "", `[{"op":"add","path":"/data/a","value":"1"},{"op":"remove","path":"/data/c"}]`, 200,
			`"data":{"a":"1","b":"2"}`,
		},
		{
			"strategic", servertest.StrategicPatch, "",
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/a"],"finalizers":["example.com/b"]}}`,
			200, `"finalizers":["example.com/b"]`,
		},
		{"with a charset", servertest.MergePatch + "; charset=utf-8", "", `{"data":{"b":"2"}}`, 200, ""},
		{"no media type of a patch", "application/json", "", `{}`, 415, "415: Unsupported Media Type"},
		{"a foreign media type", "text/plain", "", `{}`, 415, "415: Unsupported Media Type"},
		{"not JSON", servertest.MergePatch, "", `{"data":`, 400, "error decoding patch: unexpected end of JSON input"},
		{"not YAML", servertest.ApplyPatch, "?fieldManager=x", "a: b: c", 400, "error encoding patch: "},
		{
			"json patch that is an object", servertest.JSONPatch, "", `{"data":{}}`, 400,
			"cannot unmarshal object into Go value of type ",
		},
		{
			"merge patch that is a list", servertest.MergePatch, "", `[1]`, 400,
			"cannot unmarshal array into Go value of type map[string]interface {}",
		},
		{
			"strategic patch that is a list", servertest.StrategicPatch, "", `[1]`, 400,
			"cannot unmarshal array into Go value of type map[string]interface {}",
		},
		{
			"json patch of an absent path", servertest.JSONPatch, "", `[{"op":"remove","path":"/data/zz"}]`, 422,
			"the server rejected our request due to an error in our request",
		},
		{
			"failed test", servertest.JSONPatch, "", `[{"op":"test","path":"/data/a","value":"9"}]`, 422,
			"the server rejected our request due to an error in our request",
		},
		{
			"too many operations", servertest.JSONPatch, "", many, 413,
			"The allowed maximum operations in a JSON patch is 10000, got 10001",
		},
		{
			"value of another type", servertest.MergePatch, "", `{"data":"x"}`, 422,
			"cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string",
		},
		{
			"value of another type, strategic", servertest.StrategicPatch, "", `{"data":"x"}`, 422,
			` is invalid: patch: Invalid value: "map[data:x]": cannot restore map from string`,
		},
		{"another kind", servertest.MergePatch, "", `{"kind":"Secret"}`, 422, ` is invalid: patch: Invalid value: `},
		{"no such kind", servertest.MergePatch, "", `{"kind":"Nothing"}`, 422, `no kind "Nothing" is registered for version "v1"`},
		{
			"another name", servertest.MergePatch, "", `{"metadata":{"name":"n"}}`, 400,
			"the name of the object (n) does not match the name on the URL (m)",
		},
		{
			"another namespace", servertest.MergePatch, "", `{"metadata":{"namespace":"n"}}`, 400,
			"the namespace of the provided object does not match the namespace sent on the request",
		},
		{
			"another uid", servertest.MergePatch, "", `{"metadata":{"uid":"u"}}`, 422,
			`metadata.uid: Invalid value: "u": field is immutable`,
		},
		{
			"an old version", servertest.MergePatch, "", `{"metadata":{"resourceVersion":"1"}}`, 409,
			"the object has been modified; please apply your changes to the latest version and try again",
		},
		{
			"force without apply", servertest.MergePatch, "?force=true", `{}`, 422,
			`PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch`,
		},
		{
			"apply without a manager", servertest.ApplyPatch, "", `{"apiVersion":"v1","kind":"ConfigMap"}`, 422,
			`fieldManager: Required value: is required for apply patch`,
		},
		{"apply of another kind", servertest.ApplyPatch, "?fieldManager=x", `{"apiVersion":"v1","kind":"Secret"}`, 400, ""},
		{
			"apply of another version", servertest.ApplyPatch, "?fieldManager=x", `{"apiVersion":"v2","kind":"ConfigMap"}`, 400,
			"invalid object type: /v2, Kind=ConfigMap",
		},
		{
			"unknown field, strict", servertest.MergePatch, "?fieldValidation=Strict", `{"datum":{}}`, 422,
			`strict decoding error: unknown field "datum"`,
		},
		{
			"unknown field, strict, strategic", servertest.StrategicPatch, "?fieldValidation=Strict", `{"datum":{}}`, 422,
			`strict decoding error: unknown field "datum"`,
		},
		{
			"duplicate field, strict", servertest.MergePatch, "?fieldValidation=Strict", `{"data":{"x":"1","x":"2"}}`, 422,
			`strict decoding error: duplicate field "data.x"`,
		},
		{
			"unknown word in an operation, strict", servertest.JSONPatch, "?fieldValidation=Strict",
			`[{"op":"test","path":"/data/a","value":"1","foo":1}]`, 422, `json patch unknown field "[0].foo"`,
		},
		{
			"duplicate, strict, apply", servertest.ApplyPatch, "?fieldValidation=Strict&fieldManager=x",
			"apiVersion: v1\nkind: ConfigMap\ndata:\n  x: a\n  x: b\n", 400,
			`error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:`,
		},
		{
			"unknown field, apply", servertest.ApplyPatch, "?fieldManager=x", "apiVersion: v1\nkind: ConfigMap\ndatum: {}\n", 500,
			`.datum: field not declared in schema`,
		},
	} {
		got := running.Call(t, "PATCH", path+c.query, c.body, "Content-Type", c.kind)
		got.Wants(t, c.what, c.code, c.text)
	}
	running.Call(t, "PATCH", strings.Replace(path, "/m", "/none", 1), `{}`, "Content-Type", servertest.MergePatch).Wants(t,
		"absent",
		404, `configmaps "none" not found`)
}

// TestFieldValidation sends unknown and duplicate fields in every way.
func TestFieldValidation(t *testing.T) {
	running := servertest.Start(t, nil)
	const path = "/api/v1/namespaces/default/configmaps"
	bodies := map[string]string{
		"application/json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labelz":{}},"datum":"x","data":{"a":"1","a":"2"}}`,
		"application/yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n  labelz: {}\ndatum: x\ndata:\n " +
			" a: '1'\n  a: '2'\n",
	}
	warnings := map[string][]string{
		"application/json": {`unknown field "metadata.labelz"`, `duplicate field "data.a"`, `unknown field "datum"`},
		"application/yaml": {
			`line 9: key "a" already set in map`, `unknown field "metadata.labelz"`, `unknown field "datum"`,
		},
	}
	n := 0
	for media, body := range bodies {
		for _, v := range []string{"", "Warn", "Ignore", "Strict"} {
			n++
			name := fmt.Sprintf("m%d", n)
			if media == "application/json" {
				name = fmt.Sprintf("j%d", n)
			}
			what := media + " " + v
			got := running.Call(t, "POST", path+"?fieldValidation="+v, fmt.Sprintf(body, name), "Content-Type", media)
			want := warnings[media]
			if v == "Ignore" || v == "Strict" {
				want = nil
			}
			for _, w := range want {
				if !contains(got.Warnings(), w) {
					t.Errorf("%s: warnings %q, want %q", what, got.Warnings(), w)
				}
			}
			if len(got.Warnings()) != len(want) {
				t.Errorf("%s: warnings %q, want %d", what, got.Warnings(), len(want))
			}
			if v != "Strict" {
				got.Wants(t, what, 201, `"a":"2"`)
				continue
			}
			got.Wants(t, what, 400,
				`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: `)
			for _, w := range warnings[media] {
				if !strings.Contains(got.Status(t).Message, w) {
					t.Errorf("%s: %s does not contain %s", what, got.Status(t).Message, w)
				}
			}
		}
	}
	running.Call(t, "POST", path+"?fieldValidation=Maybe", `{}`).
		Wants(t, "no such validation", 422,
			`CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Maybe": supported values: "", "Ignore", "Strict", "Warn"`)
	update := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"datum":"x"}`
	some := "j1"
	if running.Call(t, "GET", path+"/j1", "").Code != 200 {
		some = "m1"
	}
	if got := running.Call(t, "PUT", path+"/"+some, fmt.Sprintf(update, some)); got.Code != 200 ||
		!contains(got.Warnings(), `unknown field "datum"`) {
		t.Errorf("update: %d with warnings %q", got.Code, got.Warnings())
	}
	running.Call(t, "PUT", path+"/"+some+"?fieldValidation=Strict", fmt.Sprintf(update, some)).Wants(t,
		"strict update", 400,
		`unknown field "datum"`)
	if got := running.Call(t, "PATCH", path+"/"+some, `{"datum":{},"data":{"x":"1","x":"2"}}`, "Content-Type",
		servertest.MergePatch); got.Code != 200 ||
		!contains(got.Warnings(), `unknown field "datum"`) || !contains(got.Warnings(), `duplicate field "data.x"`) {
		t.Errorf("patch: %d with warnings %q", got.Code, got.Warnings())
	}
	// Kinds without their own metadata are checked in the same way.
	running.Call(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?fieldValidation=Strict",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributez":{}}}`).
		Wants(t, "strict review", 400, `unknown field "spec.resourceAttributez"`)
}

// TestPatchesAtOnce: patches without a version do not lose to each other, those with an old one do.
func TestPatchesAtOnce(t *testing.T) {
	r := servertest.Start(t, nil)
	ctx := t.Context()
	maps := r.Clients(t).CoreV1().ConfigMaps("default")
	made, err := maps.Create(ctx, servertest.ConfigMap("m"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const clients, each = 8, 10
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := range each {
				body := fmt.Appendf(nil, `{"data":{"k%d-%d":"x"}}`, i, n)
				if _, err := maps.Patch(ctx, "m", types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
					t.Errorf("patch %d of client %d: %v", n, i, err)
				}
			}
		})
	}
	all.Wait()
	got, err := maps.Get(ctx, "m", metav1.GetOptions{})
	if err != nil || len(got.Data) != clients*each {
		t.Errorf("%v, %d keys, want %d", err, len(got.Data), clients*each)
	}
	old := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"data":{"late":"x"}}`, made.ResourceVersion)
	if _, err := maps.Patch(ctx, "m", types.MergePatchType, old, metav1.PatchOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a patch of an old version: %v", err)
	}
}

func contains(list []string, part string) bool {
	for _, s := range list {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}
