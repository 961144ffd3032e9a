// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// TestListOptions goes through the table of resourceVersion, resourceVersionMatch, limit and continue.
func TestListOptions(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	var versions []string
	for i := range 5 {
		m, err := maps.Create(ctx, servertest.ConfigMap(fmt.Sprintf("m%d", i)), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, m.ResourceVersion)
	}
	old := versions[2]
	future := "999999"
	for _, c := range []struct {
		rv, match string
		limit     int64
		items     int // -1: refused
		text      string
	}{
		{"", "", 0, 5, ""},
		{"0", "", 0, 5, ""},
		{old, "", 0, 5, ""},
		{old, "", 10, 3, ""}, // a limit makes an unmatched version exact
		{"0", "NotOlderThan", 0, 5, ""},
		{old, "NotOlderThan", 0, 5, ""},
		{old, "NotOlderThan", 10, 5, ""},
		{old, "Exact", 0, 3, ""},
		{old, "Exact", 2, 2, ""},
		{
			"", "Exact", 0, -1,
			`resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`,
		},
		{
			"0", "Exact", 0, -1,
			`resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"`,
		},
		{
			old, "Newest", 0, -1,
			`resourceVersionMatch: Unsupported value: "Newest": supported values: "Exact", "NotOlderThan", ""`,
		},
		{"abc", "", 0, -1, `Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax`},
		{"-5", "", 0, -1, `Invalid value: "-5": strconv.ParseUint: parsing "-5": invalid syntax`},
	} {
		what := fmt.Sprintf("resourceVersion=%q match=%q limit=%d", c.rv, c.match, c.limit)
		list, err := maps.List(ctx, metav1.ListOptions{
			ResourceVersion:      c.rv,
			ResourceVersionMatch: metav1.ResourceVersionMatch(c.match),
			Limit:                c.limit,
		})
		switch {
		case c.items < 0 && (err == nil || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: %v, want %s", what, err, c.text)
		case c.items >= 0 && (err != nil || len(list.Items) != c.items):
			t.Errorf("%s: %v, %d items, want %d", what, err, len(list.Items), c.items)
		case c.items >= 0 && strings.Contains(c.match, "Exact") && list.ResourceVersion != c.rv:
			t.Errorf("%s: read at %s", what, list.ResourceVersion)
		}
	}
	for _, path := range []string{servertest.MapsPath, servertest.MapsPath + "/m0"} {
		got := running.Call(t, "GET", path+"?resourceVersion="+future, "")
		got.Wants(t, "a version of the future", http.StatusGatewayTimeout,
			"Timeout: Too large resource version: "+future+", current: ")
		if s := got.Status(t); got.Header.Get("Retry-After") != "1" || s.Reason != metav1.StatusReasonTimeout ||
			len(s.Details.Causes) != 1 ||
			s.Details.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge {
			t.Errorf("a version of the future: Retry-After %q, %+v", got.Header.Get("Retry-After"), s)
		}
	}
	for _, c := range []struct{ query, text string }{
		{"limit=x", `strconv.ParseInt: parsing "x": invalid syntax`},
		{"labelSelector=" + url.QueryEscape("a in"), "unable to parse requirement"},
		{"labelSelector=" + url.QueryEscape("a=!"), "unable to parse requirement"},
		{"labelSelector=" + url.QueryEscape("-a=b"), "unable to parse requirement"},
		{"fieldSelector=a", "invalid selector: 'a'; can't understand 'a'"},
		{
			"fieldSelector=spec.color%3Dred",
			`"spec.color" is not a known field selector: only "metadata.name", "metadata.namespace"`,
		},
		{"continue=%25", "continue key is not valid"},
		{"continue=" + token("v9", 1, "x"), "server does not recognize this encoded version"},
		{"continue=" + token("meta.k8s.io/v1", 0, "x"), "incorrect encoded start resourceVersion"},
		{"continue=" + token("meta.k8s.io/v1", 5, ""), "encoded start key empty"},
		{"continue=" + token("meta.k8s.io/v1", 5, "../secrets/x"), "continue key is not valid: ../secrets/x"},
		{
			"continue=" + token("meta.k8s.io/v1", 5, "x") + "&resourceVersion=7",
			"specifying resource version is not allowed when using continue",
		},
	} {
		got := running.Call(t, "GET", servertest.MapsPath+"?"+c.query, "")
		if got.Code != 400 || !strings.Contains(got.Status(t).Message, c.text) {
			t.Errorf("%s: %d %s, want 400 %s", c.query, got.Code, got.Body, c.text)
		}
	}
	running.Call(t, "GET", servertest.MapsPath+"?continue="+token("meta.k8s.io/v1", 5, "x")+
		"&resourceVersionMatch=Exact&resourceVersion=7", "").
		Wants(t, "continue with a match", 422, "resourceVersionMatch is forbidden when continue is provided")
	running.Call(t, "GET", servertest.MapsPath+"?sendInitialEvents=true", "").Wants(t, "initial events of a list", 422,
		"sendInitialEvents is forbidden for list")
}

func token(version string, rv int64, start string) string {
	b, err := json.Marshal(map[string]any{"v": version, "rv": rv, "start": start})
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// TestPages reads in pages while others write.
func TestPages(t *testing.T) {
	r := servertest.Start(t, nil)
	ctx := t.Context()
	maps := r.Clients(t).CoreV1().ConfigMaps("default")
	for i := range 10 {
		m := servertest.ConfigMap(fmt.Sprintf("m%d", i))
		m.Labels = map[string]string{"half": strconv.Itoa(i % 2)}
		if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := maps.List(ctx, metav1.ListOptions{Limit: 4})
	if err != nil || len(first.Items) != 4 || first.Continue == "" || first.RemainingItemCount == nil ||
		*first.RemainingItemCount != 6 {
		t.Fatalf("first page: %v, %d items, continue %q, %v remain", err, len(first.Items), first.Continue,
			first.RemainingItemCount)
	}
	if err := maps.Delete(ctx, "m9", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(ctx, servertest.ConfigMap("m55"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for next := first.Continue; ; {
		page, err := maps.List(ctx, metav1.ListOptions{Limit: 4, Continue: next})
		if err != nil {
			t.Fatal(err)
		}
		if page.ResourceVersion != first.ResourceVersion {
			t.Errorf("a further page is of version %s, the first of %s", page.ResourceVersion, first.ResourceVersion)
		}
		for _, m := range page.Items {
			names = append(names, m.Name)
		}
		if next = page.Continue; next == "" {
			if page.RemainingItemCount != nil {
				t.Errorf("%d remain after the last page", *page.RemainingItemCount)
			}
			break
		}
	}
	if got := strings.Join(names, " "); got != "m4 m5 m6 m7 m8 m9" {
		t.Errorf("further pages: %s", got)
	}
	// With a selector the remaining items are not counted.
	selected, err := maps.List(ctx, metav1.ListOptions{Limit: 2, LabelSelector: "half=0"})
	if err != nil || len(selected.Items) != 2 || selected.Continue == "" || selected.RemainingItemCount != nil {
		t.Errorf("a page of a selection: %v, %d items, %v remain", err, len(selected.Items),
			selected.RemainingItemCount)
	}
	// A token without a revision goes on with what there is now.
	inconsistent, err := maps.List(ctx, metav1.ListOptions{Limit: 100, Continue: token("meta.k8s.io/v1", -1, "m4\x00")})
	if err != nil || len(inconsistent.Items) != 5 { // m5 m55 m6 m7 m8
		t.Errorf("inconsistent continuation: %v, %d items", err, len(inconsistent.Items))
	}
}

// TestShapes asks for objects as metadata and as tables, in every encoding.
func TestShapes(t *testing.T) {
	running := servertest.Start(t, nil)
	ctx := t.Context()
	maps := running.Clients(t).CoreV1().ConfigMaps("default")
	m := servertest.ConfigMap("m")
	m.Labels = map[string]string{"a": "b"}
	m.Data = map[string]string{"secret": "text"}
	if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mc := metadata.NewForConfigOrDie(rest.CopyConfig(running.Rest)).Resource(
		corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("default")
	one, err := mc.Get(ctx, "m", metav1.GetOptions{})
	if err != nil || one.Labels["a"] != "b" {
		t.Errorf("metadata of one: %v %+v", err, one)
	}
	list, err := mc.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "m" || list.ResourceVersion == "" {
		t.Errorf("metadata of all: %v %+v", err, list)
	}
	if _, err := mc.Patch(ctx, "m", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"c"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Errorf("patch through metadata: %v", err)
	}
	if err := mc.Delete(ctx, "m", metav1.DeleteOptions{DryRun: []string{"All"}}); err != nil {
		t.Errorf("delete through metadata: %v", err)
	}
	for _, v := range []string{"v1", "v1beta1"} {
		accept := "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=" + v
		got := running.Call(t, "GET", servertest.MapsPath, "", "Accept", accept)
		got.Wants(t, accept, 200, `"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/`+v+`"`)
		if strings.Contains(string(got.Body), "text") {
			t.Errorf("%s: the data came too: %s", accept, got.Body)
		}
	}
	const asTable = "application/json;as=Table;g=meta.k8s.io;v=v1"
	var table metav1.Table
	for query, want := range map[string]string{
		"":                        "PartialObjectMetadata",
		"?includeObject=Metadata": "PartialObjectMetadata",
		"?includeObject=Object":   "ConfigMap",
		"?includeObject=None":     "",
	} {
		table = metav1.Table{}
		running.Call(t, "GET", servertest.MapsPath+query, "", "Accept", asTable).Into(t, &table)
		if table.Kind != "Table" || table.APIVersion != "meta.k8s.io/v1" || len(table.Rows) != 1 ||
			len(table.ColumnDefinitions) != 3 || table.Rows[0].Cells[0] != "m" {
			t.Errorf("table %s: %+v", query, table)
			continue
		}
		var object metav1.TypeMeta
		if raw := table.Rows[0].Object.Raw; len(raw) > 0 && string(raw) != "null" {
			if err := json.Unmarshal(raw, &object); err != nil {
				t.Fatal(err)
			}
		}
		if object.Kind != want {
			t.Errorf("table %s: rows carry a %q, want %q", query, object.Kind, want)
		}
	}
	running.Call(t, "GET", servertest.MapsPath+"?includeObject=Some", "", "Accept", asTable).Wants(t, "no such include", 400,
		"Unable to convert to Table as requested: includeObject: Invalid value: \"Some\"")
	for accept, code := range map[string]int{
		"application/xml":             406,
		"*/*":                         200,
		"text/*":                      406,
		"application/*":               406,
		"application/yaml":            200,
		asTable + ",application/json": 200,
		"application/json;as=Chair;g=meta.k8s.io;v=v1":                    406,
		"application/json;q=0.5, application/yaml;q=0.9":                  200,
		"application/vnd.kubernetes.protobuf, application/json":           200,
		"application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1": 406,
	} {
		got := running.Call(t, "GET", servertest.MapsPath+"/m", "", "Accept", accept)
		if got.Code != code || code == 406 && !strings.Contains(got.Status(t).Message,
			"application/json, application/yaml, application/vnd.kubernetes.protobuf") {
			t.Errorf("Accept %s: %d %s, want %d", accept, got.Code, servertest.Short(got.Body), code)
		}
	}
	if ct := running.Call(t, "GET", servertest.MapsPath, "", "Accept",
		"application/json;q=0.5, application/yaml;q=0.9").Header.Get(
		"Content-Type"); ct != "application/yaml" {
		t.Errorf("preferred encoding: %s", ct)
	}
	running.Call(t, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get"}}}`,
		"Accept", asTable).Wants(t, "a review as a table", 406, "only the following media types are accepted: "+
		"application/json, application/yaml, application/vnd.kubernetes.protobuf")
}

// TestGzip: what is long enough comes compressed to those who take it.
func TestGzip(t *testing.T) {
	running := servertest.Start(t, nil)
	m := servertest.ConfigMap("big")
	m.Data = map[string]string{"a": strings.Repeat("all work and no play ", 10000)}
	if _, err := running.Clients(t).CoreV1().ConfigMaps("default").Create(t.Context(), m,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := running.Call(t, "GET", servertest.MapsPath, "", "Accept-Encoding", "gzip")
	if got.Header.Get("Content-Encoding") != "gzip" || got.Header.Get("Vary") == "" {
		t.Fatalf("headers %v", got.Header)
	}
	z, err := gzip.NewReader(strings.NewReader(string(got.Body)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil || !strings.Contains(string(plain), "no play") || len(got.Body) > len(plain)/10 {
		t.Errorf("%d bytes compressed, %d plain, %v", len(got.Body), len(plain), err)
	}
	if got := running.Call(t, "GET", servertest.MapsPath, "", "Accept-Encoding", "identity"); got.Header.Get(
		"Content-Encoding") != "" {
		t.Errorf("compressed for who does not take it")
	}
}
