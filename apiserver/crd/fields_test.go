// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"keelson/apiserver/servertest"
)

// TestSelectableFieldsOfConvertedVersions: a version that a webhook converts is selected by its own fields, in lists,
// pages, watches and collections to delete, while the stored version keeps its fields.
func TestSelectableFieldsOfConvertedVersions(t *testing.T) {
	custom := servertest.StartCustom(t)
	addr, ca := serveTLS(t, &converter{})
	url := "https://" + addr + "/convert"
	crd := servertest.TwoVersions(&apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{CABundle: ca, URL: &url},
			ConversionReviewVersions: []string{"v1"},
		},
	})
	crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".host"}, {JSONPath: ".port"}}
	crd.Spec.Versions[1].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".hostPort"}}
	custom.Define(crd)
	ctx := t.Context()
	v1 := custom.In("v1", "servers")
	v2 := custom.In("v2", "servers")
	for i := range 12 {
		u := servertest.Object("example.com/v2", "Server", "ns", fmt.Sprintf("s-%02d", i), map[string]any{
			"hostPort": fmt.Sprintf("h:%d", i%3),
		})
		if err := create(t, v2, u); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		r          dynamic.ResourceInterface
		field, err string
		want       string
	}{
		{v2, "hostPort=h:1", "", "s-01 s-04 s-07 s-10"},
		{v2, "hostPort!=h:1,hostPort!=h:2", "", "s-00 s-03 s-06 s-09"},
		{v2, "hostPort=h:1,metadata.name=s-04", "", "s-04"},
		{v2, "hostPort=h:1,metadata.name!=s-04", "", "s-01 s-07 s-10"},
		{v2, "hostPort=nowhere", "", ""},
		{v2, "host=h", "field label not supported: host", ""},
		{v1, "port=2,host=h", "", "s-02 s-05 s-08 s-11"},
		{v1, "hostPort=h:1", "field label not supported: hostPort", ""},
	} {
		list, err := tc.r.List(ctx, metav1.ListOptions{FieldSelector: tc.field})
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: got %v, want %s", tc.field, err, tc.err)
			}
		case err != nil:
			t.Errorf("%s: %v", tc.field, err)
		case strings.Join(namesIn(list), " ") != tc.want:
			t.Errorf("%s selects %v, want %s", tc.field, namesIn(list), tc.want)
		}
	}
	pageSelected(t, v2)
	watchSelected(t, v1, v2)
	if err := v2.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "hostPort=h:2"}); err != nil {
		t.Fatal(err)
	}
	if list, err := v1.List(ctx, metav1.ListOptions{FieldSelector: "port=2"}); err != nil || len(list.Items) != 0 {
		t.Errorf("after the collection's deletion: %v, %v", namesIn(list), err)
	}
}

func namesIn(l *unstructured.UnstructuredList) []string {
	var out []string
	for i := range l.Items {
		out = append(out, l.Items[i].GetName())
	}
	return out
}

// pageSelected reads a selection in pages, each of the same moment although there are writes between them.
func pageSelected(t *testing.T, v2 dynamic.ResourceInterface) {
	t.Helper()
	ctx := t.Context()
	var pages []string
	revision := ""
	listOptions := metav1.ListOptions{FieldSelector: "hostPort=h:1", Limit: 3}
	for range 10 {
		list, err := v2.List(ctx, listOptions)
		if err != nil {
			t.Fatal(err)
		}
		if revision == "" {
			revision = list.GetResourceVersion()
		}
		if list.GetResourceVersion() != revision {
			t.Errorf("a page of revision %s, the first was of %s", list.GetResourceVersion(), revision)
		}
		pages = append(pages, strings.Join(namesIn(list), " "))
		if listOptions.Continue = list.GetContinue(); listOptions.Continue == "" {
			break
		}
		if err := create(t, v2, servertest.Object("example.com/v2", "Server", "ns", "t-between",
			map[string]any{"hostPort": "h:1"})); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{"s-01 s-04 s-07", "s-10"}, pages); d != "" {
		t.Errorf("pages (-want +got):\n%s", d)
	}
	if err := v2.Delete(ctx, "t-between", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// watchSelected sees objects enter, change within and leave a selection, written in both versions.
func watchSelected(t *testing.T, v1, v2 dynamic.ResourceInterface) {
	t.Helper()
	ctx := t.Context()
	list, err := v2.List(ctx, metav1.ListOptions{FieldSelector: "hostPort=h:1"})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := v2.Watch(ctx, metav1.ListOptions{
		FieldSelector:   "hostPort=h:1",
		ResourceVersion: list.GetResourceVersion(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	var want []string
	patch := func(r dynamic.ResourceInterface, name, body string) string {
		t.Helper()
		u, err := r.Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u.GetResourceVersion()
	}
	rv := patch(v1, "s-01", `{"port":"9"}`)
	want = append(want, "DELETED s-01 "+rv)
	patch(v2, "s-01", `{"hostPort":"h:8"}`) // owned by no manager
	rv = patch(v2, "s-04", `{"metadata":{"labels":{"a":"b"}}}`)
	want = append(want, "MODIFIED s-04 "+rv)
	rv = patch(v1, "s-00", `{"port":"1"}`)
	want = append(want, "ADDED s-00 "+rv)
	if err := v1.Delete(ctx, "s-02", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := v1.Delete(ctx, "s-07", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want = append(want, "DELETED s-07")
	for _, text := range want {
		ev := <-watcher.ResultChan()
		u, ok := ev.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("event %s %v, want %s", ev.Type, ev.Object, text)
		}
		got := fmt.Sprintf("%s %s %s", ev.Type, u.GetName(), u.GetResourceVersion())
		if !strings.HasPrefix(got, text) || u.Object["hostPort"] != "h:1" || u.GetAPIVersion() != "example.com/v2" {
			t.Errorf("event %s %v, want %s", got, u.Object["hostPort"], text)
		}
	}
	initial, err := v2.Watch(ctx, metav1.ListOptions{FieldSelector: "hostPort=h:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer initial.Stop()
	for _, name := range []string{"s-00", "s-04", "s-10"} {
		if ev := <-initial.ResultChan(); ev.Type != watch.Added ||
			ev.Object.(*unstructured.Unstructured).GetName() != name {
			t.Errorf("initial event %s %v, want %s", ev.Type, ev.Object, name)
		}
	}
}
