// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// widget is a custom resource with a subresource. described counts how often its schema is read.
func widget(name, sum string, described *int) []Resource {
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	model := &Model{
		Name:     "com.example.v1." + name,
		ListName: "com.example.v1." + name + "List",
		ListKind: name + "List",
		Sum:      sum,
		Schema: func(bool) (*spec.Schema, bool) {
			*described++
			s := new(spec.Schema).Typed("object", "")
			s.SetProperty("size", *spec.Int64Property().WithDescription("of " + name + " " + sum))
			return s, false
		},
	}
	out := []Resource{{
		GVR:        gv.WithResource(strings.ToLower(name) + "s"),
		Namespaced: true,
		Kind:       gv.WithKind(name),
		Parent:     name,
		Model:      model,
		Verbs:      []string{"create", "get", "list", "update", "patch", "delete", "deletecollection", "watch"},
	}}
	status := out[0]
	status.Subresource = "status"
	status.Verbs = []string{"get", "patch", "update"}
	return append(out, status)
}

func get(t *testing.T, h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func object(t *testing.T, b []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%v in %.200s", err, b)
	}
	return out
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPiecesAreTheWhole: a document that is put together from pieces is the one made of all resources at once.
func TestPiecesAreTheWhole(t *testing.T) {
	var described int
	custom := append(widget("Gadget", "g", &described), widget("Widget", "w", &described)...)
	documents := New("v1.37.2", "", resources())
	documents.Set(custom, nil)
	mux := http.NewServeMux()
	documents.Mount(mux)

	whole3, err := documents.v3(custom, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := marshal(t, whole3)
	got := get(t, mux, "/openapi/v3/apis/example.com/v1")
	if diff := cmp.Diff(object(t, want), object(t, got.Body.Bytes())); diff != "" {
		t.Errorf("v3 (-whole +pieces):\n%s", diff)
	}
	wantProto, err := handler3.ToV3ProtoBinary(want)
	if err != nil {
		t.Fatal(err)
	}
	got = get(t, mux, "/openapi/v3/apis/example.com/v1", "Accept", protobufV3)
	sameMessages(t, &openapiv3.Document{}, &openapiv3.Document{}, wantProto, got.Body.Bytes())

	fixed, err := Swagger("v1.37.2", resources())
	if err != nil {
		t.Fatal(err)
	}
	more, err := documents.v2(custom)
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range more.Definitions {
		if _, ok := fixed.Definitions[name]; !ok {
			fixed.Definitions[name] = d
		}
	}
	maps.Copy(fixed.Paths.Paths, more.Paths.Paths)
	maps.Copy(fixed.Parameters, more.Parameters)
	want = marshal(t, fixed)
	got = get(t, mux, "/openapi/v2")
	if diff := cmp.Diff(object(t, want), object(t, got.Body.Bytes())); diff != "" {
		t.Errorf("v2 (-whole +pieces):\n%s", diff)
	}
	if wantProto, err = handler.ToProtoBinary(want); err != nil {
		t.Fatal(err)
	}
	got = get(t, mux, "/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	sameMessages(t, &openapiv2.Document{}, &openapiv2.Document{}, wantProto, got.Body.Bytes())
}

// sameMessages compares two encodings. The order of what is named does not matter.
func sameMessages(t *testing.T, a, b proto.Message, want, got []byte) {
	t.Helper()
	if err := proto.Unmarshal(want, a); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(got, b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sorted(t, a), sorted(t, b)); diff != "" {
		t.Errorf("protobuf (-whole +pieces):\n%.3000s", diff)
	}
}

// sorted is a message with its named things in order.
func sorted(t *testing.T, m proto.Message) any {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var order func(any) any
	order = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for key := range v {
				v[key] = order(v[key])
			}
		case []any:
			for i := range v {
				v[i] = order(v[i])
			}
			slices.SortStableFunc(v, func(a, b any) int {
				x, _ := a.(map[string]any)
				y, _ := b.(map[string]any)
				return strings.Compare(fmt.Sprint(x["name"]), fmt.Sprint(y["name"]))
			})
		}
		return v
	}
	return order(object(t, b))
}

// TestOneChangeMakesOnePiece: the index and a changed definition make no document, and a request after the change
// describes only the changed resource.
func TestOneChangeMakesOnePiece(t *testing.T) {
	var gadgets, widgets int
	documents := New("v1.37.2", "", resources())
	mux := http.NewServeMux()
	documents.Mount(mux)
	url := func() string {
		t.Helper()
		all := struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}{}
		if err := json.Unmarshal(get(t, mux, "/openapi/v3").Body.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		return all.Paths["apis/example.com/v1"].ServerRelativeURL
	}
	documents.Set(append(widget("Gadget", "1", &gadgets), widget("Widget", "1", &widgets)...), nil)
	first := url()
	if gadgets+widgets != 0 {
		t.Errorf("the index described %d resources", gadgets+widgets)
	}
	before := get(t, mux, first)
	beforeV2 := get(t, mux, "/openapi/v2")
	documents.Set(append(widget("Gadget", "1", &gadgets), widget("Widget", "2", &widgets)...), nil)
	second := url()
	if first == second {
		t.Error("the hash did not change with the definition")
	}
	if moved := get(t, mux, first); moved.Code != http.StatusMovedPermanently || moved.Header().Get("Location") != second {
		t.Errorf("the old hash: %d to %q, want 301 to %q", moved.Code, moved.Header().Get("Location"), second)
	}
	after := get(t, mux, second)
	afterV2 := get(t, mux, "/openapi/v2")
	if gadgets != 2 || widgets != 4 { // v2 and v3
		t.Errorf("Gadget was described %d times and Widget %d times, want 2 and 4", gadgets, widgets)
	}
	for what, pair := range map[string][2]*httptest.ResponseRecorder{"v3": {before, after}, "v2": {beforeV2, afterV2}} {
		if !strings.Contains(pair[0].Body.String(), "of Widget 1") || !strings.Contains(pair[1].Body.String(), "of Widget 2") {
			t.Errorf("%s does not have the schema of its time", what)
		}
		if pair[0].Header().Get("Etag") == pair[1].Header().Get("Etag") {
			t.Errorf("%s has the same Etag before and after the change", what)
		}
	}
	if got := after.Header().Get("Cache-Control"); got != "public, immutable" {
		t.Errorf("with its hash a document has Cache-Control %q", got)
	}
	if again := get(t, mux, "/openapi/v2", "If-None-Match", afterV2.Header().Get("Etag")); again.Code != 304 {
		t.Errorf("an unchanged document is sent again: %d", again.Code)
	}
	documents.Set(nil, nil)
	if gone := get(t, mux, second); gone.Code != http.StatusNotFound {
		t.Errorf("the document of a deleted group version: %d", gone.Code)
	}
}

// TestForms: documents are sent compressed to clients that accept it, and in the media type that they prefer.
func TestForms(t *testing.T) {
	mux := http.NewServeMux()
	New("v1.37.2", "", resources()).Mount(mux)
	plain := get(t, mux, "/openapi/v3/apis/apps/v1")
	packed := get(t, mux, "/openapi/v3/apis/apps/v1", "Accept-Encoding", "gzip", "Accept", "application/json")
	zip, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(zip)
	if err != nil || !bytes.Equal(b, plain.Body.Bytes()) {
		t.Errorf("compressed and plain differ: %d and %d bytes, %v", len(b), plain.Body.Len(), err)
	}
	if bad := get(t, mux, "/openapi/v2", "Accept", "text/html"); bad.Code != http.StatusNotAcceptable {
		t.Errorf("text/html: %d, want 406", bad.Code)
	}
	for _, accept := range []string{"application/json;q=0.1, */*", "*/*", ""} {
		if got := get(t, mux, "/openapi/v2", "Accept", accept).Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("Accept %q: %s", accept, got)
		}
	}
}

// TestCacheIsBounded: what was used longest ago goes first, and a document that is too large is not kept.
func TestCacheIsBounded(t *testing.T) {
	c := newCache(190)
	made := map[string]int{}
	read := func(key string, size int) {
		t.Helper()
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(i * i * 31 >> 3) // does not become much smaller
		}
		if _, err := c.plain(key, piece{json: func() ([]byte, error) {
			made[key]++
			return content, nil
		}}); err != nil {
			t.Fatal(err)
		}
	}
	read("a", 40)
	read("b", 40)
	read("a", 40)
	read("c", 40)
	read("large", 4000)
	read("a", 40)
	read("b", 40)
	read("large", 4000)
	if c.bytes > 190 || made["a"] != 1 || made["b"] != 2 || made["large"] != 2 {
		t.Errorf("%d bytes are kept, made %v", c.bytes, made)
	}
}
