// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

func TestCustomResourceEncodings(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	const path = "/apis/example.com/v1/namespaces/ns/widgets"
	const proto = "application/vnd.kubernetes.protobuf"
	yamlBody := []byte("apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: yy}\nspec: {size: 3}\n")
	twice := []byte(
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"t"},"spec":{"size":3,"size":4}}`)
	for _, tc := range []struct {
		name, method, path string
		header             map[string]string
		body               []byte
		code               int
		want               string
	}{
		{
			"create from yaml", "POST", path,
			map[string]string{"Content-Type": "application/yaml"},
			yamlBody, 201,
			`"size":3`,
		},
		{"get as yaml", "GET", path + "/yy", map[string]string{"Accept": "application/yaml"}, nil, 200, "  size: 3\n"},
		{
			"protobuf body", "POST", path,
			map[string]string{"Content-Type": proto},
			[]byte("k8s\x00"), 415,
			"accepted media types include: application/json, application/yaml",
		},
		{"protobuf only", "GET", path + "/yy", map[string]string{"Accept": proto}, nil, 406, "NotAcceptable"},
		{
			"protobuf or json", "GET", path + "/yy",
			map[string]string{"Accept": proto + ",application/json"},
			nil,
			200, `{"apiVersion":"example.com/v1"`,
		},
		{
			"partial as protobuf", "GET", path + "/yy", map[string]string{
				"Accept": proto + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
			}, nil, 200, "k8s\x00",
		},
		{"duplicates warned of", "POST", path + "?fieldValidation=Warn", nil, twice, 201, `"size":4`},
		{
			"duplicates refused", "POST", path + "?fieldValidation=Strict", nil, twice, 400,
			`duplicate field \"spec.size\"`,
		},
		{
			"wrong kind", "POST", path, nil,
			[]byte(`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"t"}}`), 422, "must be Widget",
		},
		{"no kind", "POST", path, nil, []byte(`{"metadata":{"name":"t"}}`), 400, "Object 'Kind' is missing"},
		{
			"bad metadata", "POST", path, nil,
			[]byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"t","labels":{"a":1}}}`), 400,
			"labels",
		},
		{
			"no field", "GET", path + "?fieldSelector=spec.size%3D3", nil, nil, 400,
			"field label not supported: spec.size",
		},
		{
			"list", "GET", path, nil, nil, 200,
			`{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":`,
		},
	} {
		resp := custom.Raw(t, tc.method, tc.path, tc.header, tc.body)
		if got := servertest.Text(t, resp); resp.StatusCode != tc.code || !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %d %s\nwant %d %s", tc.name, resp.StatusCode, got, tc.code, tc.want)
		}
	}
}

func TestCustomResourceTable(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, withStatus, func(
		crd *apiextensionsv1.CustomResourceDefinition,
	) {
		crd.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Size", Type: "integer", JSONPath: ".spec.size", Description: "How big."},
			{Name: "Phase", Type: "string", JSONPath: ".status.phase"},
			{Name: "Tags", Type: "string", JSONPath: ".spec.tags", Priority: 1},
			{Name: "Ready", Type: "string", JSONPath: `.spec.free.conditions[?(@.type=="Ready")].status`},
			{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
		}
	}))
	if err := create(t, custom.In("v1", "widgets"), servertest.Widget("a", map[string]any{
		"size": int64(7),
		"tags": []any{"x", "y"},
		"free": map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	})); err != nil {
		t.Fatal(err)
	}
	resp := custom.Raw(t, "GET", "/apis/example.com/v1/widgets",
		map[string]string{"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}, nil)
	var table metav1.Table
	if err := json.Unmarshal([]byte(servertest.Text(t, resp)), &table); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, col := range table.ColumnDefinitions {
		names = append(names, col.Name+" "+col.Type+" "+strconv.Itoa(int(col.Priority)))
	}
	if d := cmp.Diff(
		[]string{"Name string 0", "Size integer 0", "Phase string 0", "Tags string 1", "Ready string 0", "Age date 0"},
		names); d != "" {
		t.Errorf("columns (-want +got):\n%s", d)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	cells := table.Rows[0].Cells
	if d := cmp.Diff([]any{"a", float64(7), nil, `["x","y"]`, "True"}, cells[:5]); d != "" {
		t.Errorf("cells (-want +got):\n%s", d)
	}
	if !strings.Contains(string(table.Rows[0].Object.Raw), `"kind":"PartialObjectMetadata"`) {
		t.Errorf("row's object: %s", table.Rows[0].Object.Raw)
	}
}

func TestCustomResourceScale(t *testing.T) {
	custom := servertest.StartCustom(t)
	selector := ".status.selector"
	custom.Define(servertest.Definition("farms", "Farm", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, func(
		crd *apiextensionsv1.CustomResourceDefinition,
	) {
		crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			Scale: &apiextensionsv1.CustomResourceSubresourceScale{
				SpecReplicasPath:   ".spec.pool.count",
				StatusReplicasPath: ".status.count",
				LabelSelectorPath:  &selector,
			},
		}
	}))
	farms := custom.In("v1", "farms")
	ctx := t.Context()
	farm := servertest.Object("example.com/v1", "Farm", "ns", "f", map[string]any{
		"spec": map[string]any{"pool": map[string]any{"count": int64(2)}},
	})
	if err := create(t, farms, farm); err != nil {
		t.Fatal(err)
	}
	if err := create(t, farms, servertest.Object("example.com/v1", "Farm", "ns", "none", nil)); err != nil {
		t.Fatal(err)
	}
	farm.Object["status"] = map[string]any{"count": int64(1), "selector": "app=f"}
	live, err := farms.Get(ctx, "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	live.Object["status"] = farm.Object["status"]
	if _, err := farms.UpdateStatus(ctx, live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale := func(u *unstructured.Unstructured, err error) autoscalingv1.Scale {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		b, _ := u.MarshalJSON() // plain
		var s autoscalingv1.Scale
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := scale(farms.Get(ctx, "f", metav1.GetOptions{}, "scale"))
	if s.Kind != "Scale" || s.Spec.Replicas != 2 || s.Status.Replicas != 1 || s.Status.Selector != "app=f" {
		t.Errorf("scale is %+v", s)
	}
	s = scale(farms.Patch(ctx, "f", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{},
		"scale"))
	if s.Spec.Replicas != 5 {
		t.Errorf("after patch: %+v", s.Spec)
	}
	got, err := farms.Get(ctx, "f", metav1.GetOptions{})
	if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "pool", "count"); err != nil || n != 5 ||
		got.GetGeneration() != 2 {
		t.Errorf("count %d generation %d, %v", n, got.GetGeneration(), err)
	}
	_, err = farms.Get(ctx, "none", metav1.GetOptions{}, "scale")
	if !apierrors.IsInternalError(err) ||
		!strings.Contains(err.Error(), `the spec replicas field ".spec.pool.count" does not exist`) {
		t.Errorf("scale without a count: %v", err)
	}
}

func TestCustomResourceSelectableFields(t *testing.T) {
	c := servertest.StartCustom(t)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}}
	}))
	widgets := c.In("v1", "widgets")
	ctx := t.Context()
	green := metav1.ListOptions{FieldSelector: "spec.color=green"}
	watcher, err := widgets.Watch(ctx, green)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for name, color := range map[string]string{"r": "red", "g": "green"} {
		if err := create(t, widgets, servertest.Widget(name, map[string]any{"size": int64(1), "color": color})); err != nil {
			t.Fatal(err)
		}
	}
	list, err := widgets.List(ctx, green)
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "g" {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, err := widgets.Patch(ctx, "g", types.MergePatchType, []byte(`{"spec":{"color":"red"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		if ev := <-watcher.ResultChan(); ev.Type != want || ev.Object.(*unstructured.Unstructured).GetName() != "g" {
			t.Errorf("event %s %v, want %s of g", ev.Type, ev.Object, want)
		}
	}
}

// TestWatchOverDefinitionUpdate: a changed schema ends watches, which resume and miss nothing; what is stored is read
// again.
func TestWatchOverDefinitionUpdate(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	widgets := custom.In("v1", "widgets")
	ctx := t.Context()
	made, err := widgets.Create(ctx, servertest.Widget("a", map[string]any{"size": int64(1), "free": map[string]any{"x": "y"}}),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := widgets.Watch(ctx, metav1.ListOptions{ResourceVersion: made.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	crd, err := custom.CRD("widgets.example.com")
	if err != nil {
		t.Fatal(err)
	}
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	spec.Properties["weight"] = apiextensionsv1.JSONSchemaProps{
		Type:    "integer",
		Default: &apiextensionsv1.JSON{Raw: []byte("10")},
	}
	delete(spec.Properties, "free")
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	crd.APIVersion = "apiextensions.k8s.io/v1"
	crd.Kind = "CustomResourceDefinition"
	if _, err := custom.Resource(servertest.DefinitionsGVR).Update(ctx, servertest.ToUnstructured(t, crd), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range watcher.ResultChan() { // until it ends
		t.Error("an event of nothing")
	}
	got, err := widgets.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"size": int64(1), "color": "red", "weight": int64(10)},
		got.Object["spec"]); d != "" {
		t.Errorf("read by the new schema (-want +got):\n%s", d)
	}
	if _, err := widgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"weight":11}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// A client that comes back while the definition is being replaced may be sent away once more.
	waittest.Until(t, "the patch is seen", func() bool {
		again, err := widgets.Watch(ctx, metav1.ListOptions{ResourceVersion: made.GetResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Stop()
		ev, ok := <-again.ResultChan()
		if ok && ev.Type != watch.Modified {
			t.Fatalf("event %s %v, want the patch", ev.Type, ev.Object)
		}
		return ok
	})
}

// TestRatcheting: what was invalid before its schema was tightened stays as it is, until it is touched.
func TestRatcheting(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget",
		`{type: object, properties: {spec: {type: object, properties: {name: {type: string}, other: {type: string}}}}}`))
	widgets := custom.In("v1", "widgets")
	ctx := t.Context()
	if err := create(t, widgets, servertest.Widget("a", map[string]any{"name": "much too long"})); err != nil {
		t.Fatal(err)
	}
	patch := `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/name/maxLength","value":4}]`
	if _, err := custom.Resource(servertest.DefinitionsGVR).Patch(ctx, "widgets.example.com", types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	custom.Wait("the new schema", func() bool {
		err := create(t, widgets, servertest.Widget("b", map[string]any{"name": "also too long"}))
		if err == nil {
			_ = widgets.Delete(ctx, "b", metav1.DeleteOptions{}) // the old schema was still in force
		}
		return apierrors.IsInvalid(err)
	})
	if _, err := widgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"other":"x"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Errorf("change of another field: %v", err)
	}
	if _, err := widgets.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"name":"too long again"}}`),
		metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("change of the invalid field: %v", err)
	}
}

func TestMetadataClientSeesCustomResources(t *testing.T) {
	c := servertest.StartCustom(t)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	u := servertest.Widget("a", map[string]any{"size": int64(1)})
	u.SetLabels(map[string]string{"l": "v"})
	if err := create(t, c.In("v1", "widgets"), u); err != nil {
		t.Fatal(err)
	}
	md, err := metadata.NewForConfig(c.Rest)
	if err != nil {
		t.Fatal(err)
	}
	r := md.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"})
	list, err := r.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Labels["l"] != "v" || list.Items[0].UID == "" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	w, err := r.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ev := <-w.ResultChan()
	if p, ok := ev.Object.(*metav1.PartialObjectMetadata); !ok || p.Name != "a" || p.CreationTimestamp.IsZero() {
		t.Errorf("event %s %+v", ev.Type, ev.Object)
	}
}

// TestDeleteOptionsOfCustomGroup: clients send the options in no version, in that of meta.k8s.io or in the resource's
// own.
func TestDeleteOptionsOfCustomGroup(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	const path = "/apis/example.com/v1/namespaces/ns/widgets/a"
	for _, tc := range []struct {
		body string
		code int
	}{
		{`{"propagationPolicy":"Background"}`, 200},
		{`{"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions","propagationPolicy":"Background"}`, 200},
		{`{"apiVersion":"example.com/v1","kind":"DeleteOptions","propagationPolicy":"Background"}`, 200},
		{`{"apiVersion":"example.com/v1","kind":"Widget"}`, 400},
		{`{"apiVersion":"example.com/v1","kind":"DeleteOptions","preconditions":{"uid":"other"}}`, 409},
	} {
		if err := create(t, custom.In("v1", "widgets"), servertest.Widget("a", map[string]any{"size": int64(1)})); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		if resp := custom.Raw(t, "DELETE", path, nil, []byte(tc.body)); resp.StatusCode != tc.code {
			t.Errorf("%s: got %d %s, want %d", tc.body, resp.StatusCode, servertest.Text(t, resp), tc.code)
		}
	}
}

// TestCreateWithResourceVersion: validation comes first, the store refuses, a dry run does not mind.
func TestCreateWithResourceVersion(t *testing.T) {
	c := servertest.StartCustom(t)
	c.Define(servertest.Definition("widgets", "Widget", servertest.WidgetSchema))
	widgets := c.In("v1", "widgets")
	with := func(size int64) *unstructured.Unstructured {
		u := servertest.Widget("a", map[string]any{"size": size})
		u.SetResourceVersion("7")
		return u
	}
	if err := create(t, widgets, with(0)); !apierrors.IsInvalid(err) {
		t.Errorf("invalid: %v", err)
	}
	if err := create(t, widgets, with(1)); err == nil ||
		err.Error() != "resourceVersion should not be set on objects to be created" {
		t.Errorf("valid: %v", err)
	}
	if _, err := widgets.Create(t.Context(), with(1),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("dry run: %v", err)
	}
}
